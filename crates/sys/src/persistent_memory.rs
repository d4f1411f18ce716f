//! Memory that outlives the process which writes it: a sealed memfd, which the supervisor passes to the successor.
//!
//! ```text
//! page 0     which memory it is, and in which version │ words of its owner
//! the rest   of its owner
//! ```
//!
//! Every access is one atomic load or store. So a process that is killed between two of them leaves each word old or new. What a
//! successor opens is hostile: seals, size and first word are checked here, everything else by the owner.

use crate::crash_point;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, fallocate, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::CStr;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();
/// The size cannot change: a mapping always has its memory.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// That a file cannot be run. Some hosts add it to every memory file (sysctl `vm.memfd_noexec`).
pub const SEAL_EXEC: SealFlags = SealFlags::from_bits_retain(0x20);

#[derive(Debug)]
pub struct MemoryKind {
    /// The name that /proc shows.
    pub name: &'static CStr,
    /// The first word: what it is, and the version of its format.
    pub magic: u64,
    /// Sizes in words, with the header.
    pub words: RangeInclusive<usize>,
}

/// Words in a sealed memfd. What was never written is 0 and takes no memory.
#[derive(Debug)]
pub struct PersistentMemory {
    start: NonNull<MemoryWord>,
    words: usize,
    file: File,
}

// SAFETY: the mapping lives as long as the value, and is only reached through atomic operations.
unsafe impl Send for PersistentMemory {}
// SAFETY: the mapping lives as long as the value, and is only reached through atomic operations.
unsafe impl Sync for PersistentMemory {}

impl PersistentMemory {
    /// Words before those of the owner: a page.
    pub const HEADER: usize = vellum_ring::memory::HEADER;

    /// New memory of so many words. EINVAL: there are none of that size.
    pub fn create(kind: &MemoryKind, words: usize) -> Result<Self, Errno> {
        if !kind.words.contains(&words) {
            return Err(Errno::INVAL);
        }
        let memory = Self::unsealed(kind.name, words)?;
        memory.store(0, kind.magic, Ordering::Release);
        memory.seal()
    }

    /// A predecessor's. EBADMSG: it is none of the kind. ENODATA: who made it was killed before it was one.
    pub fn open(kind: &MemoryKind, memory: impl Into<OwnedFd>) -> Result<Self, Errno> {
        let memory = memory.into();
        let seals = fcntl_get_seals(&memory).map_err(|_| Errno::BADMSG)?.difference(SEAL_EXEC);
        if seals.is_empty() {
            return Err(Errno::NODATA);
        }
        let opened = Self::map(memory, &kind.words)?;
        if seals == SEALS && opened.load(0, Ordering::Acquire) == kind.magic {
            Ok(opened)
        } else {
            Err(Errno::BADMSG)
        }
    }

    /// All 0. Only its owner can open it for writing.
    pub(crate) fn unsealed(name: &CStr, words: usize) -> Result<Self, Errno> {
        let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
        ftruncate(&memory, words.checked_mul(WORD).ok_or(Errno::NOMEM)? as u64)?;
        Self::map(memory, &(1..=words))
    }

    /// From now on nobody can change the size.
    pub(crate) fn seal(self) -> Result<Self, Errno> {
        crash_point::reach();
        fcntl_add_seals(&self.file, SEALS)?;
        Ok(self)
    }

    /// Maps all of a memory file. EBADMSG: it has another size.
    pub(crate) fn map(memory: OwnedFd, words: &RangeInclusive<usize>) -> Result<Self, Errno> {
        let bytes = usize::try_from(fstat(&memory)?.st_size).map_err(|_| Errno::BADMSG)?;
        if bytes % WORD != 0 || !words.contains(&(bytes / WORD)) {
            return Err(Errno::BADMSG);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &memory, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { start, words: bytes / WORD, file: memory.into() })
    }

    /// A word; None beyond the end.
    #[must_use]
    #[inline]
    pub fn word(&self, index: usize) -> Option<&MemoryWord> {
        if index >= self.words {
            return None;
        }
        // SAFETY: index < words, so this stays inside the mapping.
        let at = unsafe { self.start.add(index) };
        // SAFETY: `at` is mapped, aligned (a mapping begins at a page) and holds a valid value whatever its bits are; it
        // lives as long as self. Others reach it through atomic operations only.
        Some(unsafe { at.as_ref() })
    }

    /// A word's value; 0 beyond the end.
    #[must_use]
    #[inline]
    pub fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).map_or(0, |word| word.load(order))
    }

    /// Changes a word, if there is one.
    #[inline]
    pub fn store(&self, index: usize, value: u64, order: Ordering) {
        if let Some(word) = self.word(index) {
            word.change().store(value, order);
        }
    }

    /// How many words there are, with the header.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it always has a header")]
    pub const fn len(&self) -> usize {
        self.words
    }

    /// Writes bytes from a word on.
    pub fn write(&self, data: &[u8], offset: u64) -> Result<(), Errno> {
        crash_point::reach();
        self.file.write_all_at(data, offset).map_err(errno)
    }

    /// Reads bytes, once: whoever else has the memory cannot change what was read. EIO: it ends before.
    pub fn read(&self, data: &mut [u8], offset: u64) -> Result<(), Errno> {
        self.file.read_exact_at(data, offset).map_err(errno)
    }

    /// Gives the memory of a range of words back; they are 0 again. The range should begin and end at a page.
    pub fn clear(&self, first: usize, words: usize) -> Result<(), Errno> {
        crash_point::reach();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, mode, (first * WORD) as u64, (words * WORD) as u64)
    }
}

impl AsFd for PersistentMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for PersistentMemory {
    fn drop(&mut self) {
        // SAFETY: this is the whole of a mapping of ours, and nothing borrowed from it can still exist.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * WORD) };
    }
}

/// What does not come from the kernel, such as an end that is too early, is EIO.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[derive(Debug)]
#[repr(transparent)]
pub struct MemoryWord(AtomicU64);

const _: () = assert!(size_of::<MemoryWord>() == WORD && align_of::<MemoryWord>() == WORD);

impl MemoryWord {
    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// To be changed once: the process may be killed before that.
    #[inline]
    pub fn change(&self) -> &AtomicU64 {
        crash_point::reach();
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    const KIND: MemoryKind = MemoryKind { name: c"test", magic: 7, words: 513..=4096 };

    fn created() -> PersistentMemory {
        PersistentMemory::create(&KIND, 2048).unwrap()
    }

    #[test]
    fn written_words_are_shared_and_can_be_released() {
        let one = created();
        one.store(700, 7, Relaxed);
        one.write(&8_u64.to_ne_bytes(), 701 * 8).unwrap();
        let other = PersistentMemory::open(&KIND, one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        drop(one);
        assert_eq!(other.len(), 2048);
        assert_eq!((other.load(700, Relaxed), other.load(701, Relaxed)), (7, 8));
        assert!(other.word(2048).is_none());
        assert_eq!(other.read(&mut [0; 8], 2048 * 8 - 4), Err(Errno::IO));
        other.clear(512, 512).unwrap();
        assert_eq!((other.load(0, Relaxed), other.load(700, Relaxed)), (7, 0));
    }

    #[test]
    fn the_size_is_sealed() {
        let memory = created();
        assert_eq!(ftruncate(&memory, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&memory, 1 << 20), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&memory, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn foreign_memory_is_refused() {
        assert_eq!(PersistentMemory::create(&KIND, 512).unwrap_err(), Errno::INVAL);
        let open = |memory: OwnedFd| PersistentMemory::open(&KIND, memory).map(drop);
        let memory = || memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let copy = |seals: SealFlags, bytes: u64, magic: u64| {
            let memory = memory();
            rustix::io::pwrite(&memory, &magic.to_ne_bytes(), 0).unwrap();
            ftruncate(&memory, bytes).unwrap();
            fcntl_add_seals(&memory, seals).unwrap();
            open(memory)
        };
        assert_eq!(copy(SEALS, 8192, 7), Ok(()));
        assert_eq!(copy(SealFlags::empty(), 8192, 7), Err(Errno::NODATA));
        for (seals, bytes, magic) in [
            (SEALS, 8192, 8),
            (SEALS, 8192, 0),
            (SEALS, 0, 7),
            (SEALS, 4096, 7),
            (SEALS, 8196, 7),
            (SEALS, 4097 * 8, 7),
            (SealFlags::SEAL, 8192, 7),
            (SealFlags::SHRINK | SealFlags::SEAL, 8192, 7),
        ] {
            assert_eq!(copy(seals, bytes, magic), Err(Errno::BADMSG), "{seals:?}, {bytes} bytes, {magic}");
        }
        // Nobody could write to it.
        let written = memory();
        ftruncate(&written, 8192).unwrap();
        fcntl_add_seals(&written, SEALS | SealFlags::WRITE).unwrap();
        assert!(open(written).is_err());
        assert_eq!(open(std::fs::File::open("/proc/self/exe").unwrap().into()), Err(Errno::BADMSG));
        assert_eq!(open(std::fs::File::open("/dev/null").unwrap().into()), Err(Errno::BADMSG));
    }
}
