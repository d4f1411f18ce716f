//! What an operation has changed, for trees that are written down.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

/// Extended attributes, and whether they were changed.
#[derive(Clone, Default)]
pub(crate) struct Xattrs {
    by_name: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Since this was last set to false.
    pub(crate) is_changed: bool,
}

impl From<BTreeMap<Vec<u8>, Vec<u8>>> for Xattrs {
    fn from(by_name: BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        Self { by_name, is_changed: false }
    }
}

impl From<Xattrs> for BTreeMap<Vec<u8>, Vec<u8>> {
    fn from(xattrs: Xattrs) -> Self {
        xattrs.by_name
    }
}

impl Deref for Xattrs {
    type Target = BTreeMap<Vec<u8>, Vec<u8>>;

    fn deref(&self) -> &Self::Target {
        &self.by_name
    }
}

impl DerefMut for Xattrs {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.is_changed = true;
        &mut self.by_name
    }
}

/// A name that leads elsewhere now, or nowhere (None).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryChange {
    pub(crate) dir: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Option<u64>,
}

/// What was changed since it was last taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeSet {
    /// Whether anybody will take it.
    pub(crate) is_kept: bool,
    /// Inodes that were made.
    pub(crate) made: BTreeSet<u64>,
    /// Inodes that may be different.
    pub(crate) inodes: BTreeSet<u64>,
    /// In their order.
    pub(crate) entries: Vec<EntryChange>,
    /// Inodes that are no more.
    pub(crate) gone: Vec<u64>,
    /// Inodes of which only times, and what a write takes away, are different: that need not be written down at once.
    pub(crate) later: BTreeSet<u64>,
}

impl ChangeSet {
    pub(super) fn note_created(&mut self, ino: u64) {
        if self.is_kept {
            self.made.insert(ino);
            self.inodes.insert(ino);
        }
    }

    pub(super) fn inode(&mut self, ino: u64) {
        if self.is_kept {
            self.inodes.insert(ino);
        }
    }

    pub(super) fn entry(&mut self, dir: u64, name: &[u8], ino: Option<u64>) {
        if self.is_kept {
            self.entries.push(EntryChange { dir, name: name.to_vec(), ino });
        }
    }

    pub(super) fn note_removed(&mut self, ino: u64) {
        if self.is_kept {
            self.gone.push(ino);
            self.later.remove(&ino);
        }
    }

    /// Nothing was changed that must be written down now.
    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.entries.is_empty() && self.gone.is_empty()
    }
}
