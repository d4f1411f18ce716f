//! What the protocol needs of the system beneath.

use crate::sync::AtomicU32;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The word had changed, or somebody woke, or there was no reason at all.
    Maybe,
    /// The time was over.
    TimedOut,
}

/// Sleeping, waking, time. Both sides of a session use the same words, in shared memory.
pub trait Platform {
    /// Sleeps while `word` has the value `expected`, until woken, for at most `timeout` nanoseconds.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<u64>) -> WakeReason;

    /// Wakes one that sleeps on `word`; there is never more than one, unless a client lets a thousand of its threads
    /// sleep there so that waking all of them is work.
    fn wake(&self, word: &AtomicU32);

    /// Nanoseconds since some time in the past.
    fn now(&self) -> u64;

    /// What a spinning core does between two looks.
    fn pause(&self);
}

impl<T: Platform + ?Sized> Platform for &T {
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<u64>) -> WakeReason {
        (**self).wait(word, expected, timeout)
    }

    fn wake(&self, word: &AtomicU32) {
        (**self).wake(word);
    }

    fn now(&self) -> u64 {
        (**self).now()
    }

    fn pause(&self) {
        (**self).pause();
    }
}
