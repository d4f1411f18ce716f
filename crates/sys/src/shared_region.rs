//! Shared memory of two processes that do not trust each other, for calls over a ring.

use crate::PersistentMemory;
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use vellum_ring::Region;

/// A sealed memory file, mapped to be read and written, and reached through a [`Region`] alone.
#[derive(Debug)]
pub struct SharedRegion(PersistentMemory);

impl SharedRegion {
    /// New memory of at least so many bytes, all 0, with a name for those who look at /proc.
    pub fn create(name: &CStr, bytes: usize) -> Result<Self, Errno> {
        PersistentMemory::unsealed(name, bytes.div_ceil(size_of::<u64>()))?.seal().map(Self)
    }

    /// Maps memory that another process has made. EBADMSG: it is not sealed, so that it could become shorter.
    pub fn open(memory: OwnedFd) -> Result<Self, Errno> {
        if !fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK) {
            return Err(Errno::BADMSG);
        }
        PersistentMemory::map(memory, &(1..=usize::MAX)).map(Self)
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> Option<Region<'_>> {
        let start = NonNull::from(self.0.word(0)?);
        // SAFETY: the mapping is that long, lives as long as `self`, and cannot become shorter, for it is sealed; in this process
        // nothing else refers to it, for the words are not shown.
        unsafe { Region::new(start.cast(), self.0.len() * size_of::<u64>()) }
    }
}

impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
