//! Which requests a service was carrying out when it was killed.
//!
//! The kernel sends requests again that a predecessor has not answered. Most can be carried out twice: who reads, writes or sets
//! something does it again. But a directory that was made is there already the second time, and a name that was removed is not
//! there any more: these are then successes. So each worker writes down, in memory that outlives the process, what it has begun of
//! this kind, and strikes it out when it has failed or has been answered. The kernel holds the directory's lock until it has its
//! answer, so nobody else can have been at the same name in between.

use crate::wire::UNIQUE_RESEND;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vellum_sys::SharedWords;
use vellum_vfs::{Error, Result};

/// Words of a worker's entry: two cache lines, which nobody else writes to.
const ENTRY: usize = 16;
/// Entries of a process.
const ENTRIES: usize = crate::init::WORKERS_MAX + 1;
/// A first entry that says which half is in use, then two halves: what a process was doing stays as long as its successor lives,
/// for that may be killed before it has heard of all of it.
const WORDS: usize = ENTRY * (1 + 2 * ENTRIES);

/// What workers are carrying out, and what those of a predecessor were.
#[derive(Debug)]
pub struct Inflight {
    words: SharedWords,
    /// First entry of this process.
    first: usize,
    /// Ids of requests that the predecessor had begun, each with its detail.
    begun: HashMap<u64, u64>,
}

/// Whether a request has been begun before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// No.
    Fresh,
    /// By a predecessor, who may have carried it out; with what it wrote down of it.
    Begun(u64),
}

impl Inflight {
    /// For a first service.
    pub fn create() -> Result<Self> {
        let words = SharedWords::create(c"vellum-inflight", WORDS)
            .map_err(|errno| Error::new(errno, "memory for requests in flight"))?;
        Ok(Self { words, first: 1, begun: HashMap::new() })
    }

    /// For a successor.
    pub fn open(descriptor: OwnedFd) -> Result<Self> {
        let words = SharedWords::open(descriptor).map_err(|errno| Error::new(errno, "requests in flight"))?;
        let half = words.word(0).filter(|_| words.len() == WORDS);
        let half = half.ok_or(Error::new(rustix::io::Errno::INVAL, "requests in flight"))?;
        let second = half.load(Relaxed) == 0;
        let mut begun = HashMap::new();
        for entry in 1..=2 * ENTRIES {
            if let (Some(id), Some(detail)) = (words.word(entry * ENTRY), words.word(entry * ENTRY + 1)) {
                let id = id.load(Acquire);
                if id != 0 {
                    begun.insert(id, detail.load(Relaxed));
                }
            }
        }
        let first = if second { 1 + ENTRIES } else { 1 };
        for entry in first..first + ENTRIES {
            if let Some(id) = words.word(entry * ENTRY) {
                id.store(0, Relaxed);
            }
        }
        half.store(second.into(), Release);
        Ok(Self { words, first, begun })
    }

    /// Its memory, for a successor.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Whether the request of this id has been begun before.
    pub(crate) fn replay(&self, unique: u64) -> Replay {
        if unique & UNIQUE_RESEND == 0 {
            return Replay::Fresh;
        }
        self.begun.get(&(unique & !UNIQUE_RESEND)).map_or(Replay::Fresh, |detail| Replay::Begun(*detail))
    }

    /// A worker begins.
    pub(crate) fn begin(&self, worker: usize, unique: u64, detail: u64) {
        let word = (self.first + worker) * ENTRY;
        if let (Some(id), Some(at)) = (self.words.word(word), self.words.word(word + 1)) {
            at.store(detail, Relaxed);
            id.store(unique & !UNIQUE_RESEND, Release);
        }
    }

    /// It has failed, or has been answered.
    pub(crate) fn end(&self, worker: usize) {
        if let Some(id) = self.words.word((self.first + worker) * ENTRY) {
            id.store(0, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_knows_what_was_begun_and_not_answered() {
        let first = Inflight::create().unwrap();
        first.begin(0, 10, 77);
        first.begin(1, 12, 0);
        first.end(1);
        let next = Inflight::open(first.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(next.replay(10 | UNIQUE_RESEND), Replay::Begun(77));
        assert_eq!(next.replay(12 | UNIQUE_RESEND), Replay::Fresh);
        // A new request with an old id is a new request.
        assert_eq!(next.replay(10), Replay::Fresh);
        // Killed again, while it does something else and before it has heard of it.
        next.begin(0, 14, 0);
        let third = Inflight::open(next.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(third.replay(10 | UNIQUE_RESEND), Replay::Begun(77));
        assert_eq!(third.replay(14 | UNIQUE_RESEND), Replay::Begun(0));
    }
}
