//! Where layers come from.
//!
//! So far, a layer is a directory of this host. Another kind of source is another variant here: what an option calls it, what goes from
//! process to process for it, and what becomes of it when the process that serves it dies. [`crate::layers`] opens it.

use crate::plain;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a layer comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerSource {
    /// A directory of this host.
    Directory(#[serde(with = "plain")] PathBuf),
    /// A tree in memory; for tests, in programs that are built for them.
    #[cfg(feature = "memory-layers")]
    Memory(crate::memory::Tree),
}

impl LayerSource {
    /// What an option names.
    #[must_use]
    pub fn named(text: OsString) -> Self {
        #[cfg(feature = "memory-layers")]
        if let Some(tree) = crate::memory::Tree::named(&text) {
            return Self::Memory(tree);
        }
        Self::Directory(text.into())
    }

    /// The directory, where it is one: it has a place in the tree of files, and disks that can be limited.
    #[must_use]
    #[allow(clippy::unnecessary_wraps, reason = "other sources are no directories")]
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            #[cfg(feature = "memory-layers")]
            Self::Memory(_) => None,
        }
    }

    /// Whether a descriptor of its root goes with it to whoever serves it. Without one, it is opened there.
    pub(crate) fn has_root(&self) -> bool {
        self.directory().is_some()
    }

    /// Whether what a process has written to it is there for the next one.
    pub(crate) fn outlives_its_service(&self) -> bool {
        match self {
            Self::Directory(_) => true,
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
            #[cfg(feature = "memory-layers")]
            Self::Memory(tree) => tree.fmt(f),
        }
    }
}
