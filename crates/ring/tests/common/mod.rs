//! Memory to try things on: a sealed memfd, mapped between pages that nobody may touch.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(unsafe_code, reason = "mappings")]
#![allow(dead_code, reason = "not every test needs all of it")]

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use vellum_ring::{Layout, Region};

const GUARD: usize = 64 << 10;

/// A mapping with guard pages before and behind.
pub(crate) struct Mapping {
    all: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is a range of addresses; what is there is only reached through atomics.
unsafe impl Send for Mapping {}
// SAFETY: it is a range of addresses; what is there is only reached through atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: impl AsFd, bytes: usize) -> Self {
        let reserved = bytes + 2 * GUARD;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let all =
            unsafe { mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE) }
                .unwrap();
        let all = NonNull::new(all.cast::<u8>()).unwrap();
        // SAFETY: inside of what was reserved above.
        let middle = unsafe { all.add(GUARD) };
        let (both, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: it replaces a part of the mapping above, which nobody uses yet.
        unsafe { mmap(middle.as_ptr().cast(), bytes, both, flags, fd, 0) }.unwrap();
        Self { all, bytes }
    }

    fn base(&self) -> NonNull<u8> {
        // SAFETY: inside of the mapping.
        unsafe { self.all.add(GUARD) }
    }

    pub(crate) fn region(&self) -> Region<'_> {
        // SAFETY: mapped as long as self, sealed, and touched by way of regions only; scribbling has a mapping of its own.
        unsafe { Region::new(self.base(), self.bytes) }.unwrap()
    }

    /// All of it, for a hostile client.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as self, aligned to a page, and only reached through atomics.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().cast(), self.bytes / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole of it, and what was borrowed from it has ended.
        let _ = unsafe { munmap(self.all.as_ptr().cast(), self.bytes + 2 * GUARD) };
    }
}

/// Memory of a session: of its size for ever. Not closed by exec, so that children can have it.
pub(crate) fn memory(layout: &Layout) -> OwnedFd {
    let fd = memfd_create("vellum-ring", MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create("vellum-ring", MemfdFlags::ALLOW_SEALING))
        .unwrap();
    ftruncate(&fd, layout.bytes() as u64).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

pub(crate) fn epoch(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

/// Where a test starts: from the environment, or the clock.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("VELLUM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64)
    });
    println!("VELLUM_TEST_SEED={seed}");
    seed
}

/// A checksum that notices changed and exchanged bytes.
pub(crate) fn sum(data: &[u8]) -> u64 {
    vellum_ring::fnv1a(data.iter().copied())
}

/// The word of 32 bits at the start of one of 64, for a futex of a hostile client.
pub(crate) fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: inside of the word, aligned, and only reached through atomics.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

/// A descriptor that this process was started with.
pub(crate) fn borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: it is inherited, and nobody closes it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
