//! Where layers come from.
//!
//! A layer is a directory of this host, one of CephFS, or one in a store on a zoned device. Another kind of source is another variant here: what an option calls it, what
//! goes from process to process for it, and what becomes of it when the process that serves it dies. [`crate::layers`] opens it.

use crate::layers::ceph::CephLayer;
use crate::layers::zoned::ZonedLayer;
use crate::path_text;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a layer comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerSource {
    /// A directory of this host.
    Directory(#[serde(with = "path_text")] PathBuf),
    /// A directory of CephFS, which its own library reaches, and not the kernel.
    Ceph(CephLayer),
    /// A directory in a store on a zoned device, or on a file or disk that is used like one.
    Zoned(ZonedLayer),
    /// A tree in memory; for tests, in programs that are built for them.
    #[cfg(feature = "memory-layers")]
    Memory(crate::layers::memory::Tree),
}

impl LayerSource {
    /// What an option names that holds one layer.
    #[must_use]
    pub fn named(text: OsString) -> Self {
        if let Some(layer) = ZonedLayer::named(&text) {
            return Self::Zoned(layer);
        }
        CephLayer::named(&text).map_or_else(|| Self::local(text), Self::Ceph)
    }

    /// What an option names, where it is on no cluster and in no store, whatever it is called.
    #[must_use]
    pub fn local(text: OsString) -> Self {
        #[cfg(feature = "memory-layers")]
        if let Some(tree) = crate::layers::memory::Tree::named(&text) {
            return Self::Memory(tree);
        }
        Self::Directory(text.into())
    }

    /// The directory, where it is one: it has a place in the tree of files, and disks that can be limited.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Ceph(_) | Self::Zoned(_) => None,
            #[cfg(feature = "memory-layers")]
            Self::Memory(_) => None,
        }
    }

    /// Where it lies on CephFS, if it does.
    #[must_use]
    pub const fn ceph(&self) -> Option<&CephLayer> {
        match self {
            Self::Ceph(layer) => Some(layer),
            _ => None,
        }
    }

    /// Where it lies on CephFS, to be changed.
    pub(crate) const fn ceph_mut(&mut self) -> Option<&mut CephLayer> {
        match self {
            Self::Ceph(layer) => Some(layer),
            _ => None,
        }
    }

    /// Where it lies in a store, if it does.
    #[must_use]
    pub const fn zoned(&self) -> Option<&ZonedLayer> {
        match self {
            Self::Zoned(layer) => Some(layer),
            _ => None,
        }
    }

    /// Whether a descriptor goes with it to whoever serves it: of its root, or of the device that it is on. Without one, it is opened there.
    pub(crate) fn has_root(&self) -> bool {
        self.directory().is_some() || self.zoned().is_some()
    }

    /// Whether what a process has written to it is there for the next one.
    pub(crate) fn is_persistent(&self) -> bool {
        match self {
            Self::Directory(_) | Self::Ceph(_) => true,
            // What was not synced was in its memory.
            Self::Zoned(_) => false,
            #[cfg(feature = "memory-layers")]
            Self::Memory(_) => false,
        }
    }
}

impl From<PathBuf> for LayerSource {
    fn from(path: PathBuf) -> Self {
        Self::Directory(path)
    }
}

impl From<&Path> for LayerSource {
    fn from(path: &Path) -> Self {
        Self::Directory(path.to_owned())
    }
}

impl fmt::Display for LayerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Ceph(layer) => layer.fmt(f),
            Self::Zoned(layer) => layer.fmt(f),
            #[cfg(feature = "memory-layers")]
            Self::Memory(tree) => tree.fmt(f),
        }
    }
}
