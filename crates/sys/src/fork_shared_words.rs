//! Words that a process shares with those that it forks, and with nobody else: no descriptor leads to them.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// So many words; they are one page at most.
pub const FAMILY_WORDS: usize = 8;

/// The words, all 0 at first. They stay as long as one of the processes lives.
#[derive(Clone, Copy, Debug)]
pub struct ForkSharedWords(&'static [AtomicU64; FAMILY_WORDS]);

impl ForkSharedWords {
    /// New ones. Their memory is given back by the end of the last process.
    pub fn create() -> Result<Self, Errno> {
        let bytes = size_of::<[AtomicU64; FAMILY_WORDS]>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED) }?;
        let start = NonNull::new(start.cast::<[AtomicU64; FAMILY_WORDS]>()).ok_or(Errno::FAULT)?;
        // SAFETY: mapped, aligned to a page, large enough, never unmapped; zeros are valid, and it is only reached through atomic
        // operations, here as in the other processes.
        Ok(Self(unsafe { start.as_ref() }))
    }

    #[must_use]
    pub const fn words(&self) -> &'static [AtomicU64; FAMILY_WORDS] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_at_first_and_stay() {
        let words = ForkSharedWords::create().unwrap();
        assert!(words.words().iter().all(|word| word.load(Relaxed) == 0));
        words.words()[3].store(7, Relaxed);
        let other = words;
        assert_eq!(other.words()[3].load(Relaxed), 7);
    }
}
