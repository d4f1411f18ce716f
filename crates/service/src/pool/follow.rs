//! A program's thread of the service runs where the program runs.
//!
//! A call is two steps one after the other, so two processors gain nothing by it, and lose: what one has just made (an inode, its
//! pages, the locks of its directory) the other has to fetch, and a processor that sleeps takes longer to wake than most calls take. The
//! kernel's scheduler places a thread that is woken on a processor that is idle, so the two have to be brought together.

use rustix::thread::{CpuSet, sched_setaffinity};

/// So many calls in a row come from a processor before it is followed there.
const FEW: u32 = 4;
/// After so many calls it is tried again, where it was not allowed.
const AGAIN: u32 = 10_000;

/// Where a thread is to run.
#[derive(Debug, Default)]
pub(super) struct Follow {
    /// The processor that this thread is bound to.
    bound: Option<u32>,
    /// Where the last calls came from, and how many.
    last: u32,
    calls: u32,
}

impl Follow {
    /// A call has come from a processor, as the program says.
    pub(super) fn call_from(&mut self, core: u32) {
        if self.bound == Some(core) {
            return;
        }
        if core != self.last {
            (self.last, self.calls) = (core, 0);
        }
        self.calls += 1;
        if self.calls != FEW {
            self.calls %= AGAIN;
            return;
        }
        let mut set = CpuSet::new();
        if (core as usize) < CpuSet::MAX_CPU {
            set.set(core as usize);
            // Outside of the pool's processors it is not allowed, and stays where it is.
            if sched_setaffinity(None, &set).is_ok() {
                self.bound = Some(core);
            }
        }
    }
}
