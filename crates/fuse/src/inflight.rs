//! Which requests a service was carrying out when it was killed.
//!
//! The kernel sends requests again that a predecessor has not answered. Most can be carried out twice: who reads, writes or sets
//! something does it again. But a directory that was made is there already the second time, and a name that was removed is not
//! there any more: these are then successes. So each worker writes down, in memory that outlives the process, what it has begun of
//! this kind, and strikes it out when it has failed or has been answered. The kernel holds the directory's lock until it has its
//! answer, so nobody else can have been at the same name in between.

use crate::wire::UNIQUE_RESEND;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vellum_sys::SharedWords;
use vellum_vfs::{Error, Result};

/// Words of a worker's entry: two cache lines, which nobody else writes to.
const ENTRY: usize = 16;
/// Entries of workers.
const ENTRIES: usize = crate::init::WORKERS_MAX + 1;
/// Requests of predecessors that have not been heard of again.
const CARRIED: usize = 1024;
/// Words of a half: the entries of workers, then what is carried on, an id and a detail each.
const HALF: usize = ENTRY * ENTRIES + 2 * CARRIED;
/// A first entry that says which half is in use, then two halves. A successor collects what it finds in one in the other, and then
/// puts that into use.
const WORDS: usize = ENTRY + 2 * HALF;

/// What workers are carrying out, and what those of predecessors were.
#[derive(Debug)]
pub struct Inflight {
    words: SharedWords,
    /// First word of the half in use.
    half: usize,
    /// Ids of requests that predecessors had begun: what was written down of each, and where it is carried on.
    begun: HashMap<u64, (u64, usize)>,
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
        Ok(Self { words, half: ENTRY, begun: HashMap::new() })
    }

    /// For a successor.
    pub fn open(descriptor: OwnedFd) -> Result<Self> {
        let bad = |errno| Error::new(errno, "requests in flight");
        let words = SharedWords::open(descriptor).map_err(bad)?;
        let in_use = words.word(0).filter(|_| words.len() == WORDS).ok_or(bad(Errno::INVAL))?;
        let first = in_use.load(Acquire) == 0;
        let (old, half) = if first { (ENTRY, ENTRY + HALF) } else { (ENTRY + HALF, ENTRY) };
        let load = |word: usize| words.word(word).map_or(0, |word| word.load(Acquire));
        let store = |word: usize, value: u64| {
            if let Some(word) = words.word(word) {
                word.store(value, Relaxed);
            }
        };
        let carried = |half: usize, number: usize| half + ENTRY * ENTRIES + 2 * number;
        let workers = (0..ENTRIES).map(|worker| old + worker * ENTRY);
        let found = workers.chain((0..CARRIED).map(|number| carried(old, number)));
        let found = found.map(|word| (load(word), load(word + 1))).filter(|(id, _)| *id != 0);
        // Two may be the same: begun by one, and again by the next.
        let found: HashMap<u64, u64> = found.take(CARRIED).collect();
        (0..HALF).for_each(|word| store(half + word, 0));
        let mut begun = HashMap::new();
        for ((id, detail), number) in found.into_iter().zip(0..CARRIED) {
            let at = carried(half, number);
            store(at, id);
            store(at + 1, detail);
            begun.insert(id, (detail, at));
        }
        in_use.store(first.into(), Release);
        Ok(Self { words, half, begun })
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
        self.begun.get(&(unique & !UNIQUE_RESEND)).map_or(Replay::Fresh, |(detail, _)| Replay::Begun(*detail))
    }

    /// Whether something that a predecessor had begun may still come again. One that was answered in the moment in which the predecessor died
    /// never does.
    #[must_use]
    pub fn has_unfinished(&self) -> bool {
        let is_open = |word: &usize| self.words.word(*word).is_some_and(|id| id.load(Acquire) != 0);
        self.begun.values().any(|(_, carried)| is_open(carried))
    }

    /// A worker begins.
    pub(crate) fn begin(&self, worker: usize, unique: u64, detail: u64) {
        let word = self.half + worker * ENTRY;
        if let (Some(id), Some(at)) = (self.words.word(word), self.words.word(word + 1)) {
            at.store(detail, Relaxed);
            id.store(unique & !UNIQUE_RESEND, Release);
        }
    }

    /// It has failed, or has been answered.
    pub(crate) fn end(&self, worker: usize, unique: u64) {
        if unique & UNIQUE_RESEND != 0
            && let Some((_, carried)) = self.begun.get(&(unique & !UNIQUE_RESEND))
            && let Some(id) = self.words.word(*carried)
        {
            id.store(0, Release);
        }
        if let Some(id) = self.words.word(self.half + worker * ENTRY) {
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
        first.end(1, 12);
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
        // And again before it has heard of anything; then one of them is answered.
        let fourth = Inflight::open(third.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(fourth.replay(10 | UNIQUE_RESEND), Replay::Begun(77));
        assert!(fourth.has_unfinished() && !first.has_unfinished());
        fourth.begin(0, 10 | UNIQUE_RESEND, 77);
        fourth.end(0, 10 | UNIQUE_RESEND);
        assert!(fourth.has_unfinished(), "the other one");
        let fifth = Inflight::open(fourth.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(fifth.replay(10 | UNIQUE_RESEND), Replay::Fresh);
        assert_eq!(fifth.replay(14 | UNIQUE_RESEND), Replay::Begun(0));
        fifth.begin(3, 14 | UNIQUE_RESEND, 0);
        assert!(fifth.has_unfinished());
        fifth.end(3, 14 | UNIQUE_RESEND);
        assert!(!fifth.has_unfinished());
    }
}
