//! Files that were given to programs, and that nobody writes to any more: found out once, and believed until one is given out again.

use crate::coherence::writers::spread;
use crate::sync::AtomicU64;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

/// Bits of an index.
const INDEX: u32 = if cfg!(shuttle) { 3 } else { 14 };
/// Bits of what is left of an inode number beside the index: so an entry says exactly whose it is.
const TAG: u64 = (1 << (64 - INDEX)) - 1;
/// What is added each time that a file of the entry is given out. It stays at its most: then nothing is kept there any more.
const ONCE: u64 = TAG + 1;

/// The latest files of which it is known.
pub(crate) struct NoWriterCache(OnceLock<Box<[AtomicU64]>>);

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterLookup {
    /// Nobody writes to it.
    NoWriters,
    /// It has to be found out. For [`NoWriterCache::keep`].
    Nothing(u64),
}

impl NoWriterCache {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The entry of a file, and its tag there.
    fn entry(&self, ino: u64) -> Option<(&AtomicU64, u64)> {
        let entries = self.0.get_or_init(|| (0..1 << INDEX).map(|_| AtomicU64::new(0)).collect());
        let hash = spread(ino);
        Some((entries.get((hash >> (64 - INDEX)) as usize)?, hash & TAG))
    }

    pub(crate) fn look(&self, ino: u64) -> WriterLookup {
        let Some((entry, tag)) = self.entry(ino) else { return WriterLookup::Nothing(0) };
        match entry.load(SeqCst) {
            now if now & TAG == tag && tag != 0 => WriterLookup::NoWriters,
            now => WriterLookup::Nothing(now),
        }
    }

    /// Nobody was writing to a file after `then`, which is what [`look`](Self::look) said before that was found out.
    pub(crate) fn keep(&self, ino: u64, then: u64) {
        if let Some((entry, tag)) = self.entry(ino)
            && then & !TAG != !TAG
        {
            // If one was given out meanwhile it is not certain any more.
            let _ = entry.compare_exchange(then, then & !TAG | tag, SeqCst, SeqCst);
        }
    }

    /// A file has been opened, and is about to be given out. Not before it was opened: it could be found out between the two.
    pub(crate) fn forget(&self, ino: u64) {
        if let Some((entry, _)) = self.entry(ino) {
            let _ = entry
                .fetch_update(SeqCst, SeqCst, |now| Some((now & !TAG).checked_add(ONCE).unwrap_or(!TAG)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn nothing(quiet: &NoWriterCache, ino: u64) -> u64 {
        match quiet.look(ino) {
            WriterLookup::Nothing(then) => then,
            WriterLookup::NoWriters => panic!("{ino} is quiet"),
        }
    }

    #[test]
    fn an_entry_lasts_until_the_file_is_handed_out() {
        let quiet = NoWriterCache::new();
        let then = nothing(&quiet, 7);
        quiet.keep(7, then);
        assert_eq!(quiet.look(7), WriterLookup::NoWriters);
        assert!((8..10_000).all(|ino| quiet.look(ino) != WriterLookup::NoWriters));
        quiet.forget(7);
        quiet.keep(7, then);
        let then = nothing(&quiet, 7);
        quiet.keep(7, then);
        assert_eq!(quiet.look(7), WriterLookup::NoWriters);
    }

    #[test]
    fn a_saturated_entry_caches_nothing() {
        let quiet = NoWriterCache::new();
        (0..1 << (INDEX + 1)).for_each(|_| quiet.forget(7));
        let then = nothing(&quiet, 7);
        quiet.keep(7, then);
        assert_ne!(quiet.look(7), WriterLookup::NoWriters);
    }

    /// Some threads find out whether somebody writes to a file; another one gives it out, and takes it back.
    #[test]
    fn a_file_with_writers_is_never_reported_quiet() {
        static QUIET: NoWriterCache = NoWriterCache::new();
        static WRITER: AtomicBool = AtomicBool::new(false);
        /// How often it was given out; odd: it is.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        static END: AtomicBool = AtomicBool::new(false);
        let finders = [(); 2].map(|()| {
            thread::spawn(|| {
                while !END.load(SeqCst) {
                    if let WriterLookup::Nothing(then) = QUIET.look(7)
                        && !WRITER.load(SeqCst)
                    {
                        QUIET.keep(7, then);
                    }
                }
            })
        });
        let looker = thread::spawn(|| {
            while !END.load(SeqCst) {
                let before = GIVEN.load(SeqCst);
                let is_quiet = QUIET.look(7) == WriterLookup::NoWriters;
                let is_given = before % 2 == 1 && GIVEN.load(SeqCst) == before;
                assert!(!(is_given && is_quiet));
            }
        });
        for _ in 0..500 {
            WRITER.store(true, SeqCst);
            QUIET.forget(7);
            GIVEN.fetch_add(1, SeqCst);
            thread::yield_now();
            GIVEN.fetch_add(1, SeqCst);
            WRITER.store(false, SeqCst);
            while QUIET.look(7) != WriterLookup::NoWriters {
                thread::yield_now();
            }
        }
        END.store(true, SeqCst);
        finders.into_iter().for_each(|finder| finder.join().unwrap());
        looker.join().unwrap();
    }
}
