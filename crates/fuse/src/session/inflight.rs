//! Which requests a service was carrying out when it was killed.
//!
//! The kernel sends requests again that a predecessor has not answered. Most can be carried out twice: who reads, writes or sets
//! something does it again. But a directory that was made is there already the second time, and a name that was removed is not
//! there any more: these are then successes. And an open ends once. So each worker writes down, in memory that outlives the process, what it has begun of
//! this kind, and strikes it out when it has failed or has been answered.
//!
//! What is found at the name by a request that had been begun must be what that request has left. The kernel holds the directory's lock until
//! it has its answer. Others who make names, past the kernel, ask before they do ([`Inflight::is_pending`]) and let be what is written
//! down here, be it by a predecessor; both sides hold the directory's names meanwhile:
//!
//! - What takes a name away is written down before it is looked at. The name is there, so that nobody can make it before it is gone.
//! - What makes a name is written down once it was seen to be free.
//!
//! A lookup or an open that has been counted, and not answered, would count twice. So what an answer is about to promise is written down,
//! too, and taken back when the request comes again.

use crate::wire::UNIQUE_RESEND;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vellum_sys::{MemoryKind, PersistentMemory};
use vellum_vfs::{Error, Name, NodeId, Result};

/// Words of a worker's entry: two cache lines, which nobody else writes to.
const ENTRY: usize = 16;
/// In an entry: where it says what an answer promises, and where it carries on what one of a predecessor's counts.
const PROMISES: [usize; 2] = [4, 8];
/// Entries of workers.
const ENTRIES: usize = crate::session::init::WORKERS_MAX + 1;
/// Requests of predecessors that have not been heard of again.
const CARRIED: usize = 1024;
/// Words of what is written down of a request: its id, a detail, the place that it is about.
const NOTE: usize = 3;
/// Words of a half: the entries of workers, then what is carried on.
const HALF: usize = ENTRY * ENTRIES + NOTE * CARRIED;
/// Word of the header that says which half is in use.
const IN_USE: usize = 1;
/// Where the halves begin. A successor collects what it finds in one in the other, and then puts that into use.
const HALVES: [usize; 2] = [PersistentMemory::HEADER, PersistentMemory::HEADER + HALF];
const WORDS: usize = HALVES[1] + HALF;

const _: () =
    assert!(HALVES[0].is_multiple_of(ENTRY) && HALF.is_multiple_of(ENTRY), "entries have their lines");
const _: () = assert!(PROMISES[1] + 4 <= ENTRY && PROMISES[0] + 4 <= PROMISES[1] && NOTE <= PROMISES[0]);

/// What workers are carrying out, and what those of predecessors were.
#[derive(Debug)]
pub struct Inflight {
    words: PersistentMemory,
    /// First word of the half in use.
    half: usize,
    /// Ids of requests that predecessors had begun: what was written down of each, and where it is carried on.
    begun: HashMap<u64, (Mark, usize)>,
    /// What predecessors were about to promise, by the ids of requests.
    counts: HashMap<u64, (AnswerCounts, usize)>,
    is_of_successor: bool,
}

/// What an answer promises to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    /// A lookup of it is counted.
    pub node: Option<NodeId>,
    /// An open of it is counted, by a handle.
    pub open: Option<(NodeId, u64)>,
}

/// What is written down of a request that is not the same when it is carried out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// What a second one has to know of how it was before.
    pub(crate) detail: u64,
    /// The [`place`] that it is about; 0: none.
    pub(crate) place: u64,
}

/// A name in a directory, as it is written down: two may be the same, which only keeps others away from both.
pub(crate) fn place(dir: NodeId, name: Name<'_>) -> u64 {
    // A successor may be another program.
    vellum_sys::fnv1a(dir.0.to_le_bytes().into_iter().chain(name.bytes().iter().copied())) | 1
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
    /// Its memory.
    const MEMORY: MemoryKind =
        MemoryKind { name: c"vellum-inflight", magic: 0x7665_6c6c_696e_0001, words: WORDS..=WORDS };

    /// For a first service.
    pub fn create() -> Result<Self> {
        let words = PersistentMemory::create(&Self::MEMORY, WORDS).map_err(unusable)?;
        let (begun, counts) = (HashMap::new(), HashMap::new());
        Ok(Self { words, half: HALVES[0], begun, counts, is_of_successor: false })
    }

    /// For a successor.
    pub fn open(descriptor: OwnedFd) -> Result<Self> {
        let words = PersistentMemory::open(&Self::MEMORY, descriptor).map_err(unusable)?;
        let load = |word: usize| words.load(word, Acquire);
        let store = |word: usize, value: u64| words.store(word, value, Relaxed);
        let first = load(IN_USE) == 0;
        let [old, half] = if first { HALVES } else { [HALVES[1], HALVES[0]] };
        let carried = |half: usize, number: usize| half + ENTRY * ENTRIES + NOTE * number;
        let workers = (0..ENTRIES).map(|worker| old + worker * ENTRY);
        let found = workers.chain((0..CARRIED).map(|number| carried(old, number)));
        let mark = |word: usize| Mark { detail: load(word + 1), place: load(word + 2) };
        let found = found.map(|word| (load(word), mark(word))).filter(|(id, _)| *id != 0);
        // Two may be the same: begun by one, and again by the next.
        let found: HashMap<u64, Mark> = found.take(CARRIED).collect();
        let node = |word: usize| Some(NodeId(load(word))).filter(|node| node.0 != 0);
        let counts = |word: usize| AnswerCounts {
            node: node(word + 1),
            open: node(word + 2).map(|node| (node, load(word + 3))),
        };
        let promises = (0..ENTRIES * PROMISES.len()).map(|at| old + at / 2 * ENTRY + PROMISES[at % 2]);
        let mut promises: Vec<_> = promises.map(|word| (load(word), counts(word))).collect();
        // What was answered in the moment of death never comes again: the oldest are dropped.
        promises.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        promises.truncate(ENTRIES);
        promises.retain(|(id, _)| *id != 0);
        (0..HALF).for_each(|word| store(half + word, 0));
        let mut counts = HashMap::new();
        for ((id, what), entry) in promises.into_iter().zip(0..) {
            let at = half + entry * ENTRY + PROMISES[1];
            [id].into_iter().chain(what.to_words()).zip(at..).for_each(|(value, word)| store(word, value));
            counts.insert(id, (what, at));
        }
        let mut begun = HashMap::new();
        for ((id, mark), number) in found.into_iter().zip(0..CARRIED) {
            let at = carried(half, number);
            [id, mark.detail, mark.place].into_iter().zip(at..).for_each(|(value, word)| store(word, value));
            begun.insert(id, (mark, at));
        }
        words.store(IN_USE, first.into(), Release);
        Ok(Self { words, half, begun, counts, is_of_successor: true })
    }

    /// Whether there was a service before this one.
    pub(crate) const fn is_of_successor(&self) -> bool {
        self.is_of_successor
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
        self.begun
            .get(&(unique & !UNIQUE_RESEND))
            .map_or(Replay::Fresh, |(mark, _)| Replay::Begun(mark.detail))
    }

    /// Whether a request about this place has been begun, and may come again. One that was answered in the moment in which a predecessor died
    /// never does, and its place is said to be such for as long as the mount is there.
    pub(crate) fn is_pending(&self, place: u64) -> bool {
        let word = |word: usize| self.words.load(word, Acquire);
        let workers = (0..ENTRIES).map(|worker| self.half + worker * ENTRY);
        let here = workers.filter(|entry| word(entry + 2) == place);
        let carried = self.begun.values().filter(|(mark, _)| mark.place == place).map(|(_, at)| *at);
        here.chain(carried).any(|entry| word(entry) != 0)
    }

    /// A worker begins.
    pub(crate) fn begin(&self, worker: usize, unique: u64, mark: Mark) {
        let entry = self.half + worker * ENTRY;
        self.words.store(entry + 1, mark.detail, Relaxed);
        self.words.store(entry + 2, mark.place, Relaxed);
        self.words.store(entry, unique & !UNIQUE_RESEND, Release);
    }

    /// An answer is about to promise something.
    pub fn note_counts(&self, worker: usize, unique: u64, what: AnswerCounts) {
        let at = self.half + worker * ENTRY + PROMISES[0];
        for (value, word) in what.to_words().into_iter().zip(at + 1..) {
            self.words.store(word, value, Relaxed);
        }
        self.words.store(at, unique & !UNIQUE_RESEND, Release);
    }

    /// It has been answered, or what it counts is about to be taken back.
    pub fn has_promised(&self, worker: usize) {
        self.words.store(self.half + worker * ENTRY + PROMISES[0], 0, Release);
    }

    /// What a predecessor was about to promise by the answer to a request that has come again, once.
    pub(crate) fn take_counts(&self, unique: u64) -> Option<AnswerCounts> {
        if unique & UNIQUE_RESEND == 0 {
            return None;
        }
        let (what, at) = self.counts.get(&(unique & !UNIQUE_RESEND))?;
        (self.words.word(*at)?.change().swap(0, Relaxed) != 0).then_some(*what)
    }

    /// It has failed, or has been answered.
    pub(crate) fn end(&self, worker: usize, unique: u64) {
        if unique & UNIQUE_RESEND != 0
            && let Some((_, carried)) = self.begun.get(&(unique & !UNIQUE_RESEND))
        {
            self.words.store(*carried, 0, Release);
        }
        self.words.store(self.half + worker * ENTRY, 0, Release);
    }
}

impl AnswerCounts {
    fn to_words(self) -> [u64; 3] {
        let (open, handle) = self.open.map_or((0, 0), |(node, handle)| (node.0, handle));
        [self.node.map_or(0, |node| node.0), open, handle]
    }
}

fn unusable(errno: Errno) -> Error {
    Error::new(errno, "memory for requests in flight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use vellum_sys::crash_point::{at_each, copy};

    const fn with(detail: u64) -> Mark {
        Mark { detail, place: 100 + detail }
    }

    #[test]
    fn a_successor_finds_unanswered_requests() {
        let first = Inflight::create().unwrap();
        first.begin(0, 10, with(77));
        first.begin(1, 12, with(0));
        first.end(1, 12);
        let next = Inflight::open(first.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(next.replay(10 | UNIQUE_RESEND), Replay::Begun(77));
        assert_eq!(next.replay(12 | UNIQUE_RESEND), Replay::Fresh);
        // A new request with an old id is a new request.
        assert_eq!(next.replay(10), Replay::Fresh);
        // Killed again, while it does something else and before it has heard of it.
        next.begin(0, 14, with(0));
        let third = Inflight::open(next.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(third.replay(10 | UNIQUE_RESEND), Replay::Begun(77));
        assert_eq!(third.replay(14 | UNIQUE_RESEND), Replay::Begun(0));
        // And again before it has heard of anything; then one of them is answered.
        let fourth = Inflight::open(third.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(fourth.replay(10 | UNIQUE_RESEND), Replay::Begun(77));
        fourth.begin(0, 10 | UNIQUE_RESEND, with(77));
        fourth.end(0, 10 | UNIQUE_RESEND);
        let fifth = Inflight::open(fourth.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(fifth.replay(10 | UNIQUE_RESEND), Replay::Fresh);
        assert_eq!(fifth.replay(14 | UNIQUE_RESEND), Replay::Begun(0));
    }

    #[test]
    fn unanswered_counts_are_reverted_once() {
        let next =
            |before: &Inflight| Inflight::open(before.descriptor().try_clone_to_owned().unwrap()).unwrap();
        let looked_up = AnswerCounts { node: Some(NodeId(7)), open: None };
        let made = AnswerCounts { node: Some(NodeId(8)), open: Some((NodeId(8), 1)) };
        let opened = AnswerCounts { node: None, open: Some((NodeId(9), 1 << 63)) };
        let first = Inflight::create().unwrap();
        first.note_counts(0, 10, looked_up);
        first.note_counts(1, 12, made);
        first.note_counts(2, 14, opened);
        first.has_promised(0);
        // Also by one that comes later, and was killed before it heard of it.
        let second = next(&next(&first));
        assert_eq!(second.take_counts(10 | UNIQUE_RESEND), None);
        assert_eq!(second.take_counts(12), None, "another request");
        assert_eq!(second.take_counts(12 | UNIQUE_RESEND), Some(made));
        assert_eq!(second.take_counts(12 | UNIQUE_RESEND), None);
        // Carried out again.
        second.note_counts(0, 12 | UNIQUE_RESEND, looked_up);
        let third = next(&second);
        assert_eq!(third.take_counts(12 | UNIQUE_RESEND), Some(looked_up));
        assert_eq!(third.take_counts(14 | UNIQUE_RESEND), Some(opened));
    }

    #[test]
    fn old_records_of_counts_are_overwritten() {
        let mut inflight = Inflight::create().unwrap();
        let what = AnswerCounts { node: Some(NodeId(7)), open: None };
        for round in 0..3 {
            for worker in 0..ENTRIES {
                inflight.note_counts(worker, (round * ENTRIES + worker + 1) as u64, what);
            }
            inflight = Inflight::open(inflight.descriptor().try_clone_to_owned().unwrap()).unwrap();
        }
        let last = (3 * ENTRIES) as u64;
        assert_eq!(inflight.counts.len(), ENTRIES);
        assert_eq!(inflight.take_counts(last | UNIQUE_RESEND), Some(what));
    }

    #[test]
    fn a_name_is_reserved_until_its_answer() {
        let first = Inflight::create().unwrap();
        let (name, other) = (Name::new(c"name").unwrap(), Name::new(c"other").unwrap());
        let place = place(NodeId::ROOT, name);
        assert!(place != super::place(NodeId::ROOT, other) && place != super::place(NodeId(2), name));
        let mark = Mark { detail: 0, place };
        assert!(!first.is_pending(place));
        first.begin(3, 10, mark);
        assert!(first.is_pending(place) && !first.is_pending(super::place(NodeId::ROOT, other)));
        first.end(3, 10);
        assert!(!first.is_pending(place));
        // Over a death, and over another before it has come again.
        first.begin(3, 12, mark);
        let next = Inflight::open(first.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert!(next.is_pending(place));
        let third = Inflight::open(next.descriptor().try_clone_to_owned().unwrap()).unwrap();
        third.begin(0, 12 | UNIQUE_RESEND, mark);
        assert!(third.is_pending(place));
        third.end(0, 12 | UNIQUE_RESEND);
        assert!(!third.is_pending(place));
    }

    /// What a death now leaves, as its successor knows it: the detail of a request that was begun, and a promise.
    fn left(inflight: &Inflight) -> (Replay, Option<AnswerCounts>) {
        let next = Inflight::open(copy(inflight.descriptor(), c"copy").unwrap()).unwrap();
        (next.replay(10 | UNIQUE_RESEND), next.take_counts(10 | UNIQUE_RESEND))
    }

    #[test]
    fn a_crash_at_any_store_keeps_requests_atomic() {
        let made = AnswerCounts { node: Some(NodeId(8)), open: Some((NodeId(8), 1)) };
        let inflight = Rc::new(Inflight::create().unwrap());
        // Of an earlier request, nothing of which is to be seen.
        inflight.begin(0, 8, with(5));
        inflight.note_counts(0, 8, AnswerCounts { node: Some(NodeId(3)), open: None });
        inflight.end(0, 8);
        inflight.has_promised(0);
        let begun = Replay::Begun(77);
        let sees = |expected: (Replay, Option<AnswerCounts>)| {
            let inflight = Rc::clone(&inflight);
            move || assert_eq!(left(&inflight), expected)
        };
        let at = |expected, work: &dyn Fn()| at_each(sees(expected), work).1;
        let mut points = at((Replay::Fresh, None), &|| inflight.begin(0, 10, with(77)));
        points += at((begun, None), &|| inflight.note_counts(0, 10, made));
        points += at((begun, Some(made)), &|| inflight.has_promised(0));
        points += at((begun, None), &|| inflight.end(0, 10));
        assert_eq!((points, left(&inflight)), (3 + 4 + 1 + 1, (Replay::Fresh, None)));
        // A successor that dies while it collects: the next one finds the same.
        inflight.begin(0, 10, with(77));
        inflight.note_counts(0, 10, made);
        let mut points = 0;
        let mut memory = inflight.descriptor().try_clone_to_owned().unwrap();
        for _ in 0..2 {
            let look = {
                let own = memory.try_clone().unwrap();
                let mut looks = 0;
                move || {
                    looks += 1;
                    // A look at each of what is only zeros takes long.
                    if looks % 97 == 0 || looks > HALF {
                        let next = Inflight::open(copy(&own, c"copy").unwrap()).unwrap();
                        assert_eq!(next.replay(10 | UNIQUE_RESEND), begun, "store {looks}");
                        assert_eq!(next.take_counts(10 | UNIQUE_RESEND), Some(made), "store {looks}");
                    }
                }
            };
            let (next, more) = at_each(look, || Inflight::open(memory).unwrap());
            points += more;
            memory = next.descriptor().try_clone_to_owned().unwrap();
        }
        assert!(points > 2 * HALF, "{points} stores");
    }
}
