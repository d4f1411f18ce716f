//! Layers, and lower directories in them.

use crate::extents::OpenSidecars;
use crate::layers::handles::{Evict, EvictOutcome, Slot};
use crate::layers::marks::{DirMarks, MarkFormat, WHITEOUT_PREFIX};
use crate::nodes::shared_name::SharedName;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use vellum_vfs::{Branch, BranchDir, NAME_MAX, Name};

/// An inode in a layer: layer index, and the number that no other object of the layer has.
pub(crate) type InodeKey = (u16, u64);

pub(crate) struct Layer {
    /// Where it is stored.
    pub(crate) branch: Arc<dyn Branch>,
    /// Number of its filesystem among the distinct filesystems of all layers.
    pub(crate) fs: u16,
    /// Its filesystem's identity, folded.
    pub(crate) fsid: u32,
    /// Which marks its files carry.
    pub(crate) marking: MarkFormat,
    /// Its directory of block maps.
    pub(crate) maps: Option<Arc<dyn BranchDir>>,
    /// Which of them are open to be written.
    pub(crate) open_maps: OpenSidecars,
    /// How it records owner, mode and type apart from the inode.
    pub(crate) overrides: crate::layers::overrides::Format,
}

/// Whether a lower directory holds names that look like AUFS whiteouts.
const AUFS_UNKNOWN: u8 = 0;
const AUFS_NONE: u8 = 1;
const AUFS_SOME: u8 = 2;

/// A directory in a lower layer. Lower layers do not change, so it is known by its path for ever; a handle is
/// kept as long as the budget allows.
pub(crate) struct LowerDir {
    /// Index of the layer, 0 the uppermost of all.
    pub(crate) layer: u16,
    /// Path in the layer, without a leading slash; empty for its root.
    pub(crate) path: SharedName,
    /// Inode number as the union shows it.
    pub(crate) ino: u64,
    /// Empty files in it may be whiteouts by attribute.
    pub(crate) xwhiteouts: bool,
    /// Files in it may be without data, in the kernel's format.
    pub(crate) impure: bool,
    /// Its attributes are those of the part below it.
    pub(crate) implied: bool,
    /// That part, where it is opaque, too: nothing but its attributes shows.
    pub(crate) beneath: Option<Arc<Self>>,
    aufs: AtomicU8,
    pub(super) slot: Slot<dyn BranchDir>,
}

impl LowerDir {
    pub(crate) fn new(layer: u16, path: impl Into<SharedName>, ino: u64, marks: &DirMarks) -> Self {
        Self {
            layer,
            path: path.into(),
            ino,
            xwhiteouts: marks.xwhiteouts,
            impure: marks.impure,
            implied: marks.implied,
            beneath: None,
            aufs: AtomicU8::new(AUFS_UNKNOWN),
            slot: Slot::empty(),
        }
    }

    /// Keeps a handle as long as the directory is known.
    pub(crate) fn pin(&self, handle: Arc<dyn BranchDir>) {
        self.slot.fill(handle);
        self.slot.pin();
    }

    /// The path of an entry of this directory.
    pub(crate) fn path_of(&self, name: Name<'_>) -> Box<CStr> {
        join(&self.path, name)
    }

    /// Whether entries that look like AUFS whiteouts must be looked for.
    pub(crate) fn may_have_aufs(&self) -> bool {
        self.aufs.load(Relaxed) != AUFS_NONE
    }

    /// Remembers what a listing of the directory has shown.
    pub(crate) fn set_aufs(&self, some: bool) {
        self.aufs.store(if some { AUFS_SOME } else { AUFS_NONE }, Relaxed);
    }
}

impl Evict for LowerDir {
    fn evict(&self) -> EvictOutcome {
        self.slot.evict()
    }
}

/// Of the parts of a directory, the uppermost that says something of the directory itself; the uppermost of all if none does.
pub(crate) fn described(parts: &[Arc<LowerDir>]) -> Option<&Arc<LowerDir>> {
    let said = parts.iter().find(|part| !part.implied);
    said.or_else(|| parts.last()?.beneath.as_ref()).or_else(|| parts.first())
}

/// `path`/`name`, or `name` alone below the root.
pub(crate) fn join(path: &CStr, name: Name<'_>) -> Box<CStr> {
    let path = path.to_bytes();
    let mut whole = Vec::with_capacity(path.len() + name.bytes().len() + 2);
    if !path.is_empty() {
        whole.extend_from_slice(path);
        whole.push(b'/');
    }
    whole.extend_from_slice(name.bytes());
    c_string(whole)
}

/// Bytes that hold no NUL as a C string; cut at a NUL if they do.
pub(crate) fn c_string(mut bytes: Vec<u8>) -> Box<CStr> {
    if let Some(nul) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(nul);
    }
    CString::new(bytes).unwrap_or_default().into_boxed_c_str()
}

/// The AUFS whiteout's name for a name; None if it would be too long to exist.
pub(crate) fn aufs_name(name: Name<'_>) -> Option<Box<CStr>> {
    let len = WHITEOUT_PREFIX.len() + name.bytes().len();
    (len <= NAME_MAX).then(|| c_string([WHITEOUT_PREFIX, name.bytes()].concat()))
}
