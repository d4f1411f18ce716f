//! Cached files as readers hold them: without the store, its lock or an allocation.
//!
//! Each block has a word, odd while the block is there. A reader looks at it before and after it has copied; the store makes it even
//! before it frees or gives up the block's memory. So a reader that met that knows that it has copied nothing of use.

use crate::key::{BLOCK_BYTES, BlockIndex, Version};
use crate::memory::Memory;
use crate::shares::Container;
use crate::sync::{AtomicU8, AtomicU32, Mutex, fence};
use arc_swap::ArcSwapOption;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Uses of a block that are counted until the store asks for them: as many as a policy tells apart.
const USES_MAX: u8 = 3;

/// A file of which the cache holds something.
pub(crate) struct FileBlocks<M: Memory> {
    words: Box<[AtomicU32]>,
    /// None: the store has dropped it.
    memory: ArcSwapOption<M::File>,
    /// Touched with the store's lock held only.
    marks: Mutex<SmallVec<[ContainerUses; 1]>>,
}

/// A container, and what it has used.
type ContainerUses = (Container, Arc<Marks>);

impl<M: Memory> FileBlocks<M> {
    /// Fills all of `buf` from `offset` in a block. False: the block is not there, or went meanwhile.
    pub(crate) fn read(&self, memory: &M, block: u64, offset: u64, buf: &mut [u8]) -> bool {
        let Some(word) = self.word(block) else { return false };
        let before = word.load(Acquire);
        if before.is_multiple_of(2) {
            return false;
        }
        let file = self.memory.load();
        let Some(file) = file.as_deref() else { return false };
        if memory.read(file, buf, block * BLOCK_BYTES + offset).is_err() {
            return false;
        }
        fence(Acquire);
        word.load(Relaxed) == before
    }

    /// The memory itself. None: the store has dropped it.
    pub(crate) fn memory(&self) -> Option<Arc<M::File>> {
        self.memory.load_full()
    }

    /// What a container has used of it.
    pub(crate) fn marks_of(&self, container: Container) -> Arc<Marks> {
        let mut all = self.marks.lock();
        if let Some((_, marks)) = all.iter().find(|(of, _)| *of == container) {
            return Arc::clone(marks);
        }
        // One that has left had its place.
        all.retain(|(of, _)| of.place() != container.place());
        let marks = Arc::new(Marks(self.words.iter().map(|_| AtomicU8::new(0)).collect()));
        all.push((container, Arc::clone(&marks)));
        marks
    }

    fn word(&self, block: u64) -> Option<&AtomicU32> {
        self.words.get(usize::try_from(block).ok()?)
    }

    /// By the store only.
    fn publish(&self, block: u64) {
        if let Some(word) = self.word(block) {
            word.store(word.load(Relaxed).wrapping_add(1) | 1, Release);
        }
    }

    /// By the store only, before what it hides is changed.
    fn hide(&self, block: u64) {
        if let Some(word) = self.word(block) {
            let now = word.load(Relaxed);
            word.store(now.wrapping_add(now % 2), SeqCst);
        }
        fence(SeqCst);
    }

    fn hide_all(&self) {
        (0..self.words.len() as u64).for_each(|block| self.hide(block));
    }
}

/// Which blocks of a file a container has used, and how often since the store last asked: a byte for each. 0: the store has to hear of
/// the next use.
#[derive(Debug)]
pub(crate) struct Marks(Box<[AtomicU8]>);

impl Marks {
    fn mark(&self, block: u64) -> Option<&AtomicU8> {
        self.0.get(usize::try_from(block).ok()?)
    }

    /// Counts a use. False: the store has to hear of it.
    pub(crate) fn note(&self, block: u64) -> bool {
        let Some(mark) = self.mark(block) else { return true };
        let now = mark.load(Relaxed);
        if now == 0 {
            return false;
        }
        // Not written again where it is full, so that the line stays with all processors that read it. Where the store has just taken
        // the uses, this one is lost, and the next one is told to it.
        if now <= USES_MAX {
            mark.compare_exchange(now, now + 1, Relaxed, Relaxed).ok();
        }
        true
    }

    /// The store has heard of a use.
    pub(crate) fn record_use(&self, block: u64) {
        if let Some(mark) = self.mark(block) {
            mark.compare_exchange(0, 1, Relaxed, Relaxed).ok();
        }
    }

    fn take(&self, block: u64) -> u8 {
        self.mark(block).map_or(0, |mark| mark.swap(0, Relaxed).saturating_sub(1))
    }
}

/// Memory whose files readers hold, too.
pub(crate) struct SharedMemory<M>(pub(crate) Arc<M>);

/// The store's hold on a file. Readers find nothing in it any more once the store drops this, and its memory goes with the last that
/// is just reading or has borrowed it.
pub(crate) struct Entry<M: Memory>(pub(crate) Arc<FileBlocks<M>>);

impl<M: Memory> Drop for Entry<M> {
    fn drop(&mut self) {
        self.0.hide_all();
        self.0.memory.store(None);
    }
}

impl<M: Memory> Entry<M> {
    /// A file of which some blocks are there.
    pub(crate) fn with_blocks(
        version: Version,
        memory: M::File,
        is_there: impl Fn(BlockIndex) -> bool,
    ) -> Self {
        let word = |block| AtomicU32::new(is_there(BlockIndex(block)).into());
        let words = (0..version.blocks()).map(word).collect();
        let memory = ArcSwapOption::from_pointee(memory);
        Self(Arc::new(FileBlocks { words, memory, marks: Mutex::default() }))
    }

    fn file(&self) -> Result<Arc<M::File>, Errno> {
        self.0.memory().ok_or(Errno::IO)
    }
}

impl<M: Memory> Memory for SharedMemory<M> {
    type File = Entry<M>;

    fn create(&self, version: Version) -> Result<Self::File, Errno> {
        Ok(Entry::with_blocks(version, self.0.create(version)?, |_| false))
    }

    fn is_shared(&self, bytes: u64) -> bool {
        self.0.is_shared(bytes)
    }

    fn write(&self, entry: &Self::File, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.0.write(&*entry.file()?, data, offset)?;
        entry.0.publish(offset / BLOCK_BYTES);
        Ok(())
    }

    fn read(&self, entry: &Self::File, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        self.0.read(&*entry.file()?, buf, offset)
    }

    fn release(&self, entry: &Self::File, offset: u64, bytes: u64) -> Result<(), Errno> {
        let block = offset / BLOCK_BYTES;
        let was_there = entry.0.word(block).is_some_and(|word| word.load(Relaxed) % 2 == 1);
        entry.0.hide(block);
        let released = entry.file().and_then(|file| self.0.release(&file, offset, bytes));
        // The store still has it then.
        if released.is_err() && was_there {
            entry.0.publish(block);
        }
        released
    }

    fn seal(&self, entry: &Self::File) -> Result<(), Errno> {
        self.0.seal(&*entry.file()?)
    }

    fn hide(&self, entry: &Self::File) {
        entry.0.hide_all();
        if let Ok(file) = entry.file() {
            self.0.hide(&file);
        }
    }

    fn next_owner(
        &self,
        entry: &Self::File,
        block: u64,
        is_there: &dyn Fn(Container) -> bool,
    ) -> Option<Container> {
        let all = entry.0.marks.lock();
        let mut used = all.iter().filter(|(of, marks)| is_there(*of) && marks.take(block) > 0);
        used.next().map(|(of, _)| *of)
    }

    fn uses(&self, entry: &Self::File, place: u32, block: u64) -> u8 {
        let all = entry.0.marks.lock();
        all.iter().find(|(of, _)| of.place() == place).map_or(0, |(_, marks)| marks.take(block))
    }
}
