//! Which files programs may be writing to past the mount, and since when programs make names.

use crate::coherence::attr_reply_budget::AttrProbeBudget;
use crate::coherence::no_writer_cache::NoWriterCache;
use crate::sync::AtomicU8;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;
use vellum_vfs::Export;

/// So long after the last name that a program made the kernel may believe again that names are not there.
const SHARED_SECONDS: u64 = 30;
/// Bytes of a set of [`WriterFilter`].
const PLACES: usize = if cfg!(shuttle) { 16 } else { 1 << 16 };

/// Spreads inode numbers, for those of files that are used together are close to each other. No two become one.
pub(crate) const fn spread(ino: u64) -> u64 {
    ino.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Files by their inode numbers. It only grows, and two files may share a place.
pub(crate) struct WriterFilter(Box<[AtomicU8]>);

impl WriterFilter {
    pub(crate) fn new(all: bool) -> Self {
        Self((0..PLACES).map(|_| AtomicU8::new(if all { u8::MAX } else { 0 })).collect())
    }

    fn place(&self, ino: u64) -> Option<(&AtomicU8, u8)> {
        let hash = spread(ino);
        Some((self.0.get((hash >> 48) as usize % PLACES)?, 1 << ((hash >> 45) & 7)))
    }

    pub(crate) fn add(&self, ino: u64) {
        if let Some((byte, bit)) = self.place(ino)
            && byte.load(Relaxed) & bit == 0
        {
            byte.fetch_or(bit, SeqCst);
        }
    }

    pub(crate) fn have(&self, ino: u64) -> bool {
        self.place(ino).is_some_and(|(byte, bit)| byte.load(SeqCst) & bit != 0)
    }
}

/// Files that programs may be writing to past the mount.
pub(crate) struct Handouts {
    /// By what they are handed out.
    pub(crate) export: Arc<dyn Export>,
    pub(crate) written: WriterFilter,
    /// Those of them that nobody writes to any more.
    pub(crate) no_writer_cache: NoWriterCache,
    /// Those that programs may also make shorter past the mount.
    pub(crate) cut: WriterFilter,
    /// Of which of them a list of names says whether that is so.
    pub(crate) attr_probe: AttrProbeBudget,
    clock: Instant,
}

impl Handouts {
    /// `after_restart`: a predecessor may have handed out anything.
    pub(crate) fn new(export: Arc<dyn Export>, after_restart: bool) -> Self {
        let [written, cut] = [(); 2].map(|()| WriterFilter::new(after_restart));
        Self {
            export,
            written,
            no_writer_cache: NoWriterCache::new(),
            cut,
            attr_probe: AttrProbeBudget::new(),
            clock: Instant::now(),
        }
    }

    /// A file is about to be opened for a program, to do with it what it wants.
    pub(crate) fn opens(&self, ino: u64) {
        self.cut.add(ino);
        self.written.add(ino);
    }

    /// A file has been opened that is going to be a program's.
    pub(crate) fn note_handout(&self, ino: u64) {
        self.no_writer_cache.forget(ino);
    }

    /// Seconds, from 1.
    pub(crate) fn now(&self) -> u64 {
        self.clock.elapsed().as_secs() + 1
    }

    /// Whether programs make names in a directory, or did so not long ago. `last`: when they last did; 0: they did not.
    pub(crate) fn is_shared(&self, last: u64) -> bool {
        last != 0 && self.now().saturating_sub(last) < SHARED_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::ObjectExport;
    use vellum_branch::MemoryBranch;

    #[test]
    fn written_files_are_remembered() {
        let export: Arc<dyn Export> = ObjectExport::new(MemoryBranch::new());
        let handouts = Handouts::new(Arc::clone(&export), false);
        assert!(!handouts.written.have(77));
        handouts.opens(77);
        assert!(handouts.written.have(77));
        let others = (1000..2000).filter(|ino| handouts.written.have(*ino)).count();
        assert!(others < 5, "{others}");
        assert!(Handouts::new(export, true).cut.have(5));
        handouts.written.add(78);
        assert!(handouts.written.have(78) && !handouts.cut.have(78) && handouts.cut.have(77));
    }
}
