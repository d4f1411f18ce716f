//! The layers: what a directory of one holds and means, and how one name is found through all of them.

pub(crate) mod attrs;
pub(crate) mod data_source;
mod dir_version;
mod dirs;
pub(crate) mod handles;
pub(crate) mod host_view;
pub(crate) mod layer;
pub(crate) mod layer_object;
mod link_names;
pub(crate) mod links;
pub(crate) mod list;
pub(crate) mod marks;
pub(crate) mod merge;
pub(crate) mod moves;
mod open;
pub(crate) mod orphan_link;
pub(crate) mod orphans;
pub(crate) mod overrides;
mod own_marks;
pub(crate) mod read_file;
pub(crate) mod sidecar;
pub(crate) mod upper_sidecars;
pub(crate) mod work_dir;

use crate::config::UnionConfig;
use crate::layers::handles::{Evict, Share};
use crate::layers::layer::{Layer, LowerDir};
use crate::layers::links::LayerLinks;
use crate::nodes::ino;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use vellum_vfs::{Profile, Result};

/// The layers, and what is kept open of them. Nothing of it changes but that.
pub(crate) struct Layers {
    pub(crate) config: UnionConfig,
    /// All layers, uppermost first; the writable one, if any, is number 0.
    stack: Vec<Layer>,
    /// Roots of the lower layers, uppermost first.
    lower_roots: Vec<Arc<LowerDir>>,
    /// Hard links inside each layer.
    links: Vec<LayerLinks>,
    /// Some layer has a directory of block maps.
    has_maps: bool,
    budget: Share,
}

impl Layers {
    /// All layers, uppermost first.
    pub(crate) fn all(&self) -> &[Layer] {
        &self.stack
    }

    /// A layer by its number.
    pub(crate) fn layer(&self, at: u16) -> Option<&Layer> {
        self.stack.get(usize::from(at))
    }

    /// The uppermost layer: the writable one, if there is one.
    pub(crate) fn first(&self) -> Option<&Layer> {
        self.stack.first()
    }

    /// An inode number of a layer as the union shows it.
    pub(crate) fn shown_ino(&self, layer: u16, raw: u64) -> u64 {
        ino::visible_ino(self.layer(layer).map_or(0, |l| l.fs), raw)
    }

    /// Whether regular files are handed to the kernel.
    pub(crate) fn is_passthrough(&self) -> bool {
        self.config.profile == Profile::Passthrough
    }

    /// Keeps a handle open that has just been put into a slot, as long as the budget allows; `descriptor`: its own.
    pub(crate) fn watch<T: Evict + 'static>(&self, slot: &Arc<T>, descriptor: Option<BorrowedFd<'_>>) {
        let slot: Weak<T> = Arc::downgrade(slot);
        self.budget.watch(slot, descriptor);
    }

    /// Gives memory back that is kept of what is no more.
    pub(crate) fn trim(&self) {
        self.budget.trim();
    }

    /// Whether a descriptor like this one may be kept for as long as a client likes. ENFILE.
    pub(crate) fn has_room(&self, like: Option<BorrowedFd<'_>>) -> Result<()> {
        self.budget.room_to_hold(like)
    }
}
