//! What is known of each descriptor number: an entry of atomics, in which nobody ever waits.
//!
//! An entry is empty, or BUSY while one thread makes or takes away its mapping, or LIVE, or DYING: not to be entered any more, and taken
//! away by the last reader who leaves. Who closes the descriptor may find it BUSY; then he leaves a word (CANCEL), and who is making
//! the mapping takes it back. While a close is under way no mapping is made, for the number may be another file's any time.

use crate::shim::single_thread;
pub(crate) use crate::thresholds::own_fds::DESCRIPTORS;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Readers that are inside.
const READERS: u64 = 0xffff_ffff;
const LIVE: u64 = 1 << 32;
const BUSY: u64 = 1 << 33;
const DYING: u64 = 1 << 34;
const CANCEL: u64 = 1 << 35;

/// A mapping, and when to believe it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) base: usize,
    /// Bytes that were the file's when it was mapped.
    pub(crate) size: usize,
    /// Address of the generation word.
    pub(crate) word: usize,
    /// What the word said.
    pub(crate) generation: u64,
}

/// What an entry can keep: four words.
pub(crate) trait EntryValue: Copy {
    fn words(&self) -> [u64; 4];
    fn from_words(words: [u64; 4]) -> Self;
}

impl EntryValue for View {
    #[inline]
    fn words(&self) -> [u64; 4] {
        [self.base as u64, self.size as u64, self.word as u64, self.generation]
    }

    #[inline]
    fn from_words([base, size, word, generation]: [u64; 4]) -> Self {
        Self { base: base as usize, size: size as usize, word: word as usize, generation }
    }
}

/// How what was kept is taken away.
pub(crate) type Unmap<V = View> = fn(&V);

/// What is known of a descriptor.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Entry<V = View> {
    state: AtomicU64,
    words: [AtomicU64; 4],
    kept: PhantomData<fn() -> V>,
    /// Closes under way.
    closing: AtomicU32,
    /// Calls so far that were the kernel's.
    pub(crate) calls: AtomicU32,
    /// After so many of them a mapping is tried; 0: the number was not used yet.
    pub(crate) due: AtomicU32,
    /// Reads since the mapping was made that went beyond its end.
    pub(crate) beyond: AtomicU32,
}

impl<V: EntryValue> Entry<V> {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; 4],
            kept: PhantomData,
            closing: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            due: AtomicU32::new(0),
            beyond: AtomicU32::new(0),
        }
    }

    #[inline]
    fn view(&self) -> V {
        V::from_words(self.words.each_ref().map(|word| word.load(Relaxed)))
    }

    /// The mapping, which stays until [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self, unmap: Unmap<V>) -> Option<V> {
        if self.state.load(Relaxed) & LIVE == 0 {
            return None;
        }
        if single_thread::increase(&self.state) & LIVE == 0 {
            self.leave(unmap);
            return None;
        }
        Some(self.view())
    }

    /// One reader less.
    #[inline]
    pub(crate) fn leave(&self, unmap: Unmap<V>) {
        if single_thread::decrease(&self.state) == DYING {
            self.reap(unmap);
        }
    }

    /// Takes the mapping away if nobody is inside; whoever leaves last tries it again.
    fn reap(&self, unmap: Unmap<V>) {
        if self.state.compare_exchange(DYING, BUSY, AcqRel, Relaxed).is_ok() {
            unmap(&self.view());
            self.state.fetch_and(!(BUSY | CANCEL), Release);
        }
    }

    /// Nobody enters any more.
    pub(crate) fn retire(&self, unmap: Unmap<V>) {
        let mut now = self.state.load(SeqCst);
        loop {
            let next = match now {
                now if now & LIVE != 0 => now & READERS | DYING,
                now if now & BUSY != 0 => now | CANCEL,
                _ => return,
            };
            match self.state.compare_exchange_weak(now, next, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        self.reap(unmap);
    }

    /// The descriptor is about to be closed, or to become another file.
    pub(crate) fn close_begins(&self, unmap: Unmap<V>) {
        self.closing.fetch_add(1, SeqCst);
        self.forget(unmap);
    }

    /// Whether a close is under way.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst) != 0
    }

    /// As if the number had not been used yet.
    pub(crate) fn forget(&self, unmap: Unmap<V>) {
        self.retire(unmap);
        self.calls.store(0, Relaxed);
        self.due.store(0, Relaxed);
    }

    /// It has been.
    pub(crate) fn close_ends(&self) {
        self.closing.fetch_sub(1, SeqCst);
    }

    /// The right to make a mapping; [`publish`](Self::publish) or [`abandon`](Self::abandon) ends it.
    pub(crate) fn claim(&self) -> bool {
        if self.state.compare_exchange(0, BUSY, SeqCst, Relaxed).is_err() {
            return false;
        }
        // Either this sees the close, or the close sees that the entry is busy.
        if self.is_closing() {
            self.abandon();
            return false;
        }
        true
    }

    /// No mapping after all.
    pub(crate) fn abandon(&self) {
        self.state.fetch_and(!(BUSY | CANCEL), SeqCst);
    }

    /// Puts a mapping into use. If the descriptor was closed meanwhile the mapping is taken away.
    pub(crate) fn publish(&self, view: &V, unmap: Unmap<V>) -> bool {
        self.words.iter().zip(view.words()).for_each(|(to, word)| to.store(word, Relaxed));
        self.beyond.store(0, Relaxed);
        let mut now = self.state.load(SeqCst);
        while now & CANCEL == 0 {
            match self.state.compare_exchange_weak(now, now & READERS | LIVE, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        unmap(view);
        self.abandon();
        false
    }
}

static TABLE: [Entry; DESCRIPTORS] = [const { Entry::new() }; DESCRIPTORS];

/// Takes all mappings away, now or when their last readers leave.
pub(crate) fn retire_all(unmap: Unmap) {
    TABLE.iter().for_each(|entry| entry.forget(unmap));
}

/// Whether there is a mapping, or one is being made or taken away.
pub(crate) fn is_any() -> bool {
    TABLE.iter().any(|entry| entry.state.load(SeqCst) != 0)
}

/// The entry of a descriptor, if it has one.
#[inline]
pub(crate) fn entry(fd: i32) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Mappings of tests are boxes of a number, which is spoilt when they are taken away.
    const GONE: u64 = u64::MAX;

    fn mapping(number: u64) -> View {
        let memory: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(number)));
        View { base: memory as *const AtomicU64 as usize, size: 8, word: 0, generation: number }
    }

    fn memory(view: &View) -> &'static AtomicU64 {
        // SAFETY: `mapping` has leaked it.
        unsafe { &*(view.base as *const AtomicU64) }
    }

    fn spoil(view: &View) {
        assert_ne!(memory(view).swap(GONE, SeqCst), GONE, "taken away twice");
    }

    #[test]
    fn a_mapping_stays_until_its_last_reader_leaves() {
        let entry = Entry::new();
        assert!(entry.enter(spoil).is_none());
        assert!(entry.claim());
        assert!(!entry.claim());
        let view = mapping(7);
        assert!(entry.publish(&view, spoil));
        assert_eq!(entry.enter(spoil), Some(view));
        assert_eq!(entry.enter(spoil), Some(view));
        entry.close_begins(spoil);
        assert!(entry.enter(spoil).is_none());
        assert!(!entry.claim(), "mapped while a close is under way");
        entry.leave(spoil);
        assert_eq!(memory(&view).load(SeqCst), 7);
        entry.leave(spoil);
        assert_eq!(memory(&view).load(SeqCst), GONE);
        entry.close_ends();
        assert!(entry.claim());
        entry.abandon();
        assert!(entry.claim());
    }

    #[test]
    fn a_close_during_mapping_revokes_the_mapping() {
        let entry = Entry::new();
        assert!(entry.claim());
        entry.close_begins(spoil);
        entry.close_ends();
        let view = mapping(1);
        assert!(!entry.publish(&view, spoil));
        assert_eq!(memory(&view).load(SeqCst), GONE);
        assert!(entry.enter(spoil).is_none());
        assert!(entry.claim());
    }

    /// A descriptor that threads read, map, and close for another file, all at once: who reads after a close never sees what was there
    /// before it, and nobody sees a mapping that is gone.
    #[test]
    fn readers_never_see_a_revoked_or_stale_mapping() {
        static ENTRY: Entry = Entry::new();
        static FILE: AtomicU64 = AtomicU64::new(1);
        static END: AtomicBool = AtomicBool::new(false);
        static READS: AtomicU64 = AtomicU64::new(0);
        let mappers = (0..2).map(|_| {
            thread::spawn(|| {
                while !END.load(Relaxed) {
                    if ENTRY.claim() {
                        ENTRY.publish(&mapping(FILE.load(SeqCst)), spoil);
                    }
                }
            })
        });
        let readers = (0..3).map(|_| {
            thread::spawn(|| {
                while !END.load(Relaxed) {
                    let before = FILE.load(SeqCst);
                    if let Some(view) = ENTRY.enter(spoil) {
                        let number = memory(&view).load(SeqCst);
                        assert_ne!(number, GONE);
                        assert_eq!(number, view.generation);
                        assert!(number >= before, "file {number} is read after {before} was opened");
                        READS.fetch_add(1, Relaxed);
                        ENTRY.leave(spoil);
                    }
                }
            })
        });
        let (mappers, readers): (Vec<_>, Vec<_>) = (mappers.collect(), readers.collect());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(4) || READS.load(Relaxed) == 0 {
            // Others get a chance to map it, and to read.
            (0..3).for_each(|_| thread::yield_now());
            ENTRY.close_begins(spoil);
            FILE.fetch_add(1, SeqCst);
            ENTRY.close_ends();
            ENTRY.retire(spoil);
        }
        END.store(true, Relaxed);
        mappers.into_iter().for_each(|mapper| mapper.join().unwrap());
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        ENTRY.retire(spoil);
        assert_eq!(ENTRY.state.load(SeqCst), 0);
    }
}
