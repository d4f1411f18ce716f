//! Reads past the library's cache, of a file that whoever reads it keeps.
//!
//! The library's cache keeps what it reads, up to 200 MiB, copies it, and reads in pieces of its own. Above it there is one copy already.
//! But it also reads ahead, several pieces at once, where a file is read from front to back. So reads that go on in a row are made
//! through it, and others past it.

use rustix::fs::OFlags;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use vellum_sys::ceph::{CephFile, CephInode};

/// Reads that begin so close to the end of the one before follow it, in bytes: several readers that read ahead come in any order.
const CLOSE: u64 = 1 << 20;
/// So many have to follow each other: one or two may do so by chance.
const ROW: u32 = 2;

/// How a file is read.
#[derive(Default)]
pub(super) struct UncachedRead {
    /// The end of the last read.
    end: AtomicU64,
    /// How many before it have followed each other.
    row: AtomicU32,
    /// The file, opened for reads past the cache. None: it could not be opened so.
    open: OnceLock<Option<CephFile>>,
}

impl UncachedRead {
    /// The file by which to read so many bytes at `offset`; None: by the library's cache.
    pub(super) fn file_for(&self, inode: &Arc<CephInode>, offset: u64, len: usize) -> Option<&CephFile> {
        if self.is_sequential(offset, len) {
            return None;
        }
        // The library sends what it has of writes before it reads so. It wants nothing aligned.
        let flags = OFlags::RDONLY | OFlags::DIRECT;
        self.open.get_or_init(|| inode.open(flags.bits().cast_signed()).ok()).as_ref()
    }

    /// Whether a read goes on in a row. What several threads do at once is a guess, which costs nothing but time.
    fn is_sequential(&self, offset: u64, len: usize) -> bool {
        let end = self.end.swap(offset.saturating_add(len as u64), Relaxed);
        let follows = end.abs_diff(offset) <= CLOSE;
        let row = if follows { self.row.load(Relaxed).saturating_add(1) } else { 0 };
        self.row.store(row, Relaxed);
        row >= ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_reads_are_recognised() {
        const LEN: usize = 512 << 10;
        let past = UncachedRead::default();
        let goes_on = |at: u64| past.is_sequential(at * LEN as u64, LEN);
        assert!(!goes_on(0));
        // Some with the next one before it.
        assert!([1, 3, 2, 5, 4, 6].into_iter().all(goes_on));
        assert!(!goes_on(80) && !goes_on(81));
        assert!(goes_on(82));
        assert!(!goes_on(3));
    }
}
