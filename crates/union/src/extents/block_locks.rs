//! Blocks that somebody is filling: one at a time for each block, and no waiting for other blocks.

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::ops::Range;

/// Ranges of blocks that are being filled.
#[derive(Default)]
pub(crate) struct BlockLocks {
    ranges: Mutex<SmallVec<[Range<u64>; 4]>>,
    free: Condvar,
}

/// A range that nobody else fills, until this is dropped.
pub(crate) struct BlockGuard<'a> {
    busy: &'a BlockLocks,
    range: Range<u64>,
}

impl BlockLocks {
    /// Waits until nobody fills a block of `range`, and keeps others off it.
    pub(crate) fn hold(&self, range: Range<u64>) -> BlockGuard<'_> {
        let mut ranges = self.ranges.lock();
        while ranges.iter().any(|other| other.start < range.end && range.start < other.end) {
            self.free.wait(&mut ranges);
        }
        ranges.push(range.clone());
        BlockGuard { busy: self, range }
    }
}

impl Drop for BlockGuard<'_> {
    fn drop(&mut self) {
        let mut ranges = self.busy.ranges.lock();
        if let Some(at) = ranges.iter().position(|range| *range == self.range) {
            ranges.swap_remove(at);
        }
        drop(ranges);
        // Nobody waits as a rule, and then this is one load.
        self.busy.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn a_block_lock_has_one_holder() {
        let busy = BlockLocks::default();
        let first = busy.hold(0..4);
        drop(busy.hold(4..8));
        let inside = AtomicU32::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let held = busy.hold(3..5);
                    assert_eq!(inside.fetch_add(1, SeqCst), 0);
                    inside.fetch_sub(1, SeqCst);
                    drop(held);
                });
            }
            inside.fetch_sub(1, SeqCst);
            drop(first);
        });
        assert!(busy.ranges.lock().is_empty());
    }
}
