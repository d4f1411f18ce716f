//! What each party may believe of the union, and how it is taken back when that changes.
//!
//! Parties keep answers: the kernel (names, attributes, lists, pages), readers of mappings, and clients that have
//! files of the upper layer open to write. Each change recalls what somebody may still believe before it is answered.
//!
//! | what | the kernel | mappings | writers (clients with the file itself) | recalled by |
//! | --- | --- | --- | --- | --- |
//! | a file's attributes | until told; for no time while somebody writes past it ([`no_writer_cache`]), for 20 ms where it may be mapped to write ([`mmap_files`]) | - | change them unseen: a filter says of which files that may be so ([`writers`]) | `attributes_changed`; the kernel orders answers that are under way itself |
//! | a directory's attributes | until told ([`leases`]) | - | change them with names | the same, by [`name_changes::LockedNames`] when it is dropped |
//! | a list of names | until told ([`leases`]) | - | change it | `data_changed`, by [`name_changes::LockedNames`]; a list that is under way is waited for, by refusing |
//! | one name that is there | until the kernel removes it | - | make names only ([`Nodes::is_unknown_to_kernel`](crate::nodes::Nodes::is_unknown_to_kernel)) | the kernel is never contradicted |
//! | one name that is not there | until the kernel makes it ([`negative_dentries`]) | - | do not make it | not at all: it is the kernel's to make |
//! | data | one page cache in passthrough; else none of files that are handed out | the same pages | the same pages | - |
//! | a file's length | with its attributes | while the generation stays ([`generations`]) | may cut the file: it is mapped by nobody then | [`generations`], before the file is cut |
//! | when a file was changed (ctime) | states it itself, where it writes back ([`ctime_cache`]) | - | - | not at all: what it has stated is shown |
//!
//! Names change in one way, [`name_changes`]; what is found out of names that are there is noted in [`entries`].

pub(crate) mod attr_reply_budget;
mod child_nodes;
pub(crate) mod ctime_cache;
pub(crate) mod ctime_reports;
pub(crate) mod entries;
pub(crate) mod generations;
pub(crate) mod kernel_view;
pub(crate) mod leases;
pub(crate) mod mappings;
pub(crate) mod mmap_files;
pub(crate) mod mmap_opens;
pub(crate) mod name_changes;
pub(crate) mod negative_dentries;
pub(crate) mod no_writer_cache;
pub(crate) mod writers;

use crate::coherence::ctime_cache::CtimeCache;
use crate::coherence::generations::Generations;
use crate::coherence::mmap_files::MmapFiles;
use crate::coherence::writers::Handouts;
use crate::config::Squash;
use crate::layers::Layers;
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Connection, Duties, HandoutError, IdMap, NodeId, Profile, Result, Timestamp, Verdict};

/// What parties were given that holds for all nodes; the rest is noted with the nodes themselves.
pub(crate) struct Coherence {
    kernel: OnceLock<Connection>,
    /// Files are handed out to programs.
    handouts: Option<Handouts>,
    /// Files that may be mapped past the mount; None: the kernel serves none itself.
    mapped: Option<MmapFiles>,
    /// When files were changed; None: nobody states it.
    ctime_cache: Option<CtimeCache>,
    /// What readers of mappings look at.
    generations: Option<Arc<Generations>>,
}

impl Coherence {
    /// `after_restart`: a predecessor may have told anything.
    pub(crate) fn new(layers: &Layers, after_restart: bool) -> Self {
        let config = &layers.config;
        let writable = config.upper.is_some();
        let passthrough = layers.is_passthrough() && writable;
        // Only where a file is in the upper layer what the union shows of it.
        let hands_out = passthrough
            && config.uid_map == IdMap::default()
            && config.gid_map == IdMap::default()
            && config.squash == Squash::default()
            && layers.first().is_some_and(|layer| {
                layer.fs == 0 && layer.overrides.xattr().is_none() && layer.marking.may_be_handed_out()
            });
        let export = config.export.clone().filter(|_| hands_out);
        Self {
            kernel: OnceLock::new(),
            handouts: export.map(|export| Handouts::new(export, after_restart)),
            mapped: passthrough.then(|| MmapFiles::new(after_restart)),
            ctime_cache: (config.profile == Profile::Cached && writable).then(CtimeCache::new),
            generations: config.generations.clone(),
        }
    }

    /// The kernel begins to ask.
    pub(crate) fn start(&self, connection: Connection) {
        let _ = self.kernel.set(connection);
    }

    pub(crate) fn kernel(&self) -> Option<&Connection> {
        self.kernel.get()
    }

    /// Whether files may be handed out to programs.
    pub(crate) fn can_hand_out(&self) -> bool {
        self.handouts.is_some()
    }

    pub(crate) fn handouts(&self) -> Verdict<&Handouts> {
        self.handouts.as_ref().ok_or(HandoutError::Kernel)
    }

    /// The front, if it has no pages of its own of the files that it hands to the kernel.
    pub(crate) fn front(&self) -> Verdict<&Connection> {
        self.kernel().filter(|front| front.duties.contains(Duties::SERVES_FILES)).ok_or(HandoutError::Kernel)
    }

    /// Whether it is remembered when the kernel says that files were changed.
    pub(crate) fn records_ctimes(&self) -> bool {
        self.ctime_cache.is_some()
    }

    /// When a file was changed, if the kernel has said so: its number, and what its layer says.
    pub(crate) fn ctime(&self, ino: u64, layer: Timestamp) -> Option<Timestamp> {
        self.ctime_cache.as_ref()?.get(ino, layer)
    }

    /// Has the kernel forget a file's attributes.
    pub(crate) fn recall_attributes(&self, id: NodeId) -> Result<()> {
        self.kernel().map_or(Ok(()), |kernel| kernel.notifier.attributes_changed(id))
    }

    /// Has readers of a file's mapping not believe it any more.
    pub(crate) fn recall_mapping(&self, id: NodeId) {
        if let Some(generations) = &self.generations {
            generations.advance(id);
        }
    }
}
