//! Whether a sync of a file's data is enough to find them again.
//!
//! fdatasync(2) promises the data, and of the metadata what it takes to read them from this very inode. That a copy has got
//! its name, or has lost the mark that says that its data are below, is none of that: ext4 commits a change of size or of
//! blocks, and leaves a link or an extended attribute to the next commit. Until then a loss of power brings the lower file
//! back, and with it data that a database has overwritten and been told are safe. So the first sync after such a change is
//! a full one. That commits the names of its directories as well: a filesystem with a journal commits changes of metadata
//! in their order, and btrfs logs an inode's new directories with it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use vellum_vfs::Result;

/// What has happened to the names and marks of one inode since it was last synced in full. Written to by changes and by such
/// syncs only.
pub(crate) struct UnsyncedMetadata {
    /// Changes so far.
    changes: AtomicU32,
    /// How many there had been when a full sync began that succeeded.
    synced: AtomicU32,
    /// It is no copy, as somebody has found out who looked.
    original: AtomicBool,
}

/// No number of changes: nothing is known of what was before.
const NEVER: u32 = u32::MAX;

impl UnsyncedMetadata {
    /// For an inode of which nothing is known: it may have been copied a moment ago, and forgotten and found again since.
    pub(crate) const fn new() -> Self {
        Self { changes: AtomicU32::new(0), synced: AtomicU32::new(NEVER), original: AtomicBool::new(false) }
    }

    /// It was made in the upper layer, and is no copy of anything.
    pub(crate) fn is_original(&self) -> bool {
        self.original.load(Relaxed)
    }

    /// Notes that.
    pub(crate) fn note_original(&self) {
        self.original.store(true, Relaxed);
    }

    /// A name or a mark has changed. To be called before anybody can write to what the change has made.
    pub(crate) fn change(&self) {
        self.changes.fetch_add(1, Release);
    }

    /// Whether a sync of data is enough.
    pub(crate) fn is_data_sync_enough(&self) -> bool {
        self.synced.load(Acquire) == self.changes.load(Acquire)
    }

    /// Syncs by `sync`, which is told whether data are enough. Who comes while another is still syncing does not rely on him.
    pub(crate) fn sync(&self, datasync: bool, sync: impl FnOnce(bool) -> Result<()>) -> Result<()> {
        let changes = self.changes.load(Acquire);
        let settled = self.synced.load(Acquire) == changes;
        let datasync = datasync && settled;
        sync(datasync)?;
        if !settled {
            self.synced.store(changes, Release);
        }
        Ok(())
    }

    /// Syncs if data would not be enough: the file is about to be synced past the union.
    pub(crate) fn sync_metadata(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        self.sync(true, |datasync| if datasync { Ok(()) } else { sync() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use vellum_vfs::Errno;

    /// Syncs, and says whether that was a sync of data only.
    fn how(unsynced: &UnsyncedMetadata) -> bool {
        let only = Cell::new(false);
        unsynced
            .sync(true, |datasync| {
                only.set(datasync);
                Ok(())
            })
            .unwrap();
        only.get()
    }

    #[test]
    fn the_first_sync_after_a_change_is_a_full_one() {
        let unsynced = UnsyncedMetadata::new();
        assert!(!how(&unsynced), "nothing is known at first");
        assert!(how(&unsynced));
        unsynced.change();
        assert!(!how(&unsynced));
        assert!(how(&unsynced));
    }

    #[test]
    fn a_failed_sync_clears_nothing() {
        let unsynced = UnsyncedMetadata::new();
        assert!(unsynced.sync(true, |_| Err(Errno::IO.into())).is_err());
        assert!(!how(&unsynced));
        unsynced.change();
        assert!(unsynced.sync_metadata(|| Err(Errno::IO.into())).is_err());
        assert!(!how(&unsynced));
    }

    /// Two syncs at once: neither may count on what the other has not done yet, and a change meanwhile stays one.
    #[test]
    fn a_sync_does_not_rely_on_a_running_one() {
        let unsynced = UnsyncedMetadata::new();
        unsynced
            .sync(true, |datasync| {
                assert!(!datasync);
                assert!(!how(&unsynced), "while another is syncing");
                unsynced.change();
                Ok(())
            })
            .unwrap();
        assert!(!how(&unsynced), "after a change during a sync");
    }

    #[test]
    fn synced_metadata_is_not_synced_again() {
        let unsynced = UnsyncedMetadata::new();
        unsynced.sync_metadata(|| Ok(())).unwrap();
        unsynced.sync_metadata(|| Err(Errno::IO.into())).unwrap();
        assert!(how(&unsynced));
    }
}
