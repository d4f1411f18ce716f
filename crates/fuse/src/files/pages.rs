//! Nodes of which the kernel may have pages, and writes that go past these.
//!
//! Before a write past its cache (O_DIRECT) the kernel drops the pages of that range, and afterwards once more, for somebody may have
//! read the old data in between. Not so after an asynchronous one (io_submit, io_uring) through FUSE: pages that were read in
//! between would be shown for ever. So the word that they are no longer good goes out before the answer. To drop a page the kernel waits
//! until a read of it has been answered, so no worker may be the one that waits: [`FuseNotifier::answer_after`] does it on its thread.
//! What has not been read through the cache for a minute has no such pages: a write that takes that long is one for which nobody
//! waits any more. So files that are only read and written past the cache pay nothing.
//!
//! [`FuseNotifier::answer_after`]: crate::session::notify::FuseNotifier::answer_after

use crate::wire::{self, ReadIn, WriteIn};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Places for nodes.
const PLACES: usize = 1 << 13;
/// So long a write past the cache is believed to take at most, in seconds.
const LONGEST: u32 = 60;

/// When somebody last read a node through the kernel's cache. Two nodes may share a place.
pub(crate) struct Pages {
    /// Seconds since the beginning and [`LONGEST`] on top of that; 0: never.
    last: Box<[AtomicU32]>,
    begin: Instant,
}

impl Pages {
    /// `kept`: a predecessor may have served any node just now.
    pub(crate) fn new(kept: bool) -> Self {
        let at_first = if kept { LONGEST } else { 0 };
        Self { last: (0..PLACES).map(|_| AtomicU32::new(at_first)).collect(), begin: Instant::now() }
    }

    fn place(&self, node: u64) -> Option<&AtomicU32> {
        self.last.get((node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % PLACES)
    }

    fn clock(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.begin).as_secs())
            .unwrap_or(u32::MAX)
            .saturating_add(LONGEST)
    }

    /// To be called before a read is served: whoever writes afterwards finds it.
    pub(crate) fn add(&self, node: u64, now: Instant) {
        let now = self.clock(now);
        if let Some(last) = self.place(node)
            && last.load(SeqCst) != now
        {
            last.store(now, SeqCst);
        }
    }

    /// Whether there may be pages of a node that are older than what was written just now.
    pub(crate) fn has(&self, node: u64, now: Instant) -> bool {
        let last = self.place(node).map_or(u32::MAX, |last| last.load(SeqCst));
        last != 0 && self.clock(now).saturating_sub(last) < LONGEST
    }
}

/// Whether what is read goes to a page. Only who reads past the cache says for whom.
pub(crate) const fn fills_pages(read: &ReadIn) -> bool {
    read.read_flags & wire::READ_LOCKOWNER == 0
}

/// Whether data were written past the cache. Then nobody waits for the answer with a page locked, as with any other write.
pub(crate) const fn passes_pages(write: &WriteIn) -> bool {
    write.write_flags & (wire::WRITE_CACHE | wire::WRITE_LOCKOWNER) == wire::WRITE_LOCKOWNER
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_read_file_is_remembered_for_a_minute() {
        let pages = Pages::new(false);
        let now = pages.begin + Duration::from_secs(5);
        assert!(!pages.has(77, now));
        pages.add(77, now);
        assert!(pages.has(77, now) && pages.has(77, now + Duration::from_secs(50)));
        assert!(!pages.has(77, now + Duration::from_secs(70)));
        let others = (1000..2000).filter(|node| pages.has(*node, now)).count();
        assert!(others < 5, "{others}");
    }

    #[test]
    fn a_successor_considers_every_file_read() {
        let pages = Pages::new(true);
        assert!(pages.has(5, pages.begin) && !pages.has(5, pages.begin + Duration::from_secs(61)));
    }
}
