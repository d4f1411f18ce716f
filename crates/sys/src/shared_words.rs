//! Memory that outlives the process which writes it: 64-bit words in a memory file, shared by whoever holds its descriptor.
//!
//! Every access is one atomic load or store, so a process that is killed between two of them leaves each word as it was or as it
//! was to be, and none in between.

use crate::daemon::last_errno;
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words in shared memory. What was never written is 0 and takes no memory.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    words: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping lives as long as the value, and is only reached through atomic operations.
unsafe impl Send for SharedWords {}
// SAFETY: the mapping lives as long as the value, and is only reached through atomic operations.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// A new memory file of `words` words, all 0, with a name for those who look at /proc.
    pub fn create(name: &CStr, words: usize) -> Result<Self, Errno> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC)?;
        let bytes = words.checked_mul(size_of::<u64>()).ok_or(Errno::NOMEM)?;
        ftruncate(&fd, bytes as u64)?;
        Self::open(fd)
    }

    /// Makes words with a size that nobody can change any more, whoever has a descriptor of them; only their owner can open them for writing.
    pub fn create_sealed(name: &CStr, words: usize) -> Result<Self, Errno> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let bytes = words.checked_mul(size_of::<u64>()).ok_or(Errno::NOMEM)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::open(fd)
    }

    /// Maps all of a memory file. EINVAL: it has no whole words.
    pub fn open(fd: OwnedFd) -> Result<Self, Errno> {
        let bytes = usize::try_from(fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)?;
        if bytes == 0 || bytes % size_of::<u64>() != 0 {
            return Err(Errno::INVAL);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, &fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { start, words: bytes / size_of::<u64>(), fd })
    }

    /// How many words there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.words
    }

    /// Whether there are none; never so.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// A word; None beyond the end.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.words {
            return None;
        }
        // SAFETY: index < words, so this stays inside the mapping.
        let at = unsafe { self.start.add(index) };
        // SAFETY: `at` is mapped, aligned (a mapping begins at a page) and holds a valid value whatever its bits are; it
        // lives as long as self. Others reach it through atomic operations only.
        Some(unsafe { at.as_ref() })
    }

    /// Gives the memory of a range of words back; they are 0 again. The range should begin and end at a page.
    pub fn clear(&self, first: usize, words: usize) -> Result<(), Errno> {
        let size = size_of::<u64>();
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = ((first * size) as libc::off_t, (words * size) as libc::off_t);
        // SAFETY: fallocate takes plain numbers and an open descriptor.
        if unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset, len) } == 0 {
            return Ok(());
        }
        Err(last_errno())
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: this is the whole of a mapping of ours, and nothing borrowed from it can still exist.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn what_is_written_is_seen_through_another_mapping_and_can_be_given_back() {
        let one = SharedWords::create(c"test", 2048).unwrap();
        one.word(700).unwrap().store(7, Relaxed);
        let other = SharedWords::open(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        drop(one);
        assert_eq!(other.len(), 2048);
        assert_eq!(other.word(700).unwrap().load(Relaxed), 7);
        assert!(other.word(2048).is_none());
        other.clear(512, 512).unwrap();
        assert_eq!(other.word(700).unwrap().load(Relaxed), 0);
    }

    #[test]
    fn what_has_no_whole_words_is_refused() {
        let fd = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(SharedWords::open(fd.try_clone().unwrap()).unwrap_err(), Errno::INVAL);
        ftruncate(&fd, 12).unwrap();
        assert_eq!(SharedWords::open(fd).unwrap_err(), Errno::INVAL);
    }
}
