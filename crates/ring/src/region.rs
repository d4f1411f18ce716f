//! The mapped memory. All unsafe code of this crate is here: it makes references to atomics from an address and offsets
//! that have been checked. Nothing else ever refers to the memory, so whatever the other process writes there, and
//! when, is a value that some load may return, and no more.

use crate::state::LINE;
use crate::sync::{AtomicU32, AtomicU64};
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A mapping of shared memory that lives for `'m`.
#[derive(Clone, Copy, Debug)]
pub struct Region<'m> {
    base: NonNull<u8>,
    bytes: usize,
    life: PhantomData<&'m [AtomicU64]>,
}

// SAFETY: it stands for `&'m [AtomicU64]`, which may be sent.
unsafe impl Send for Region<'_> {}
// SAFETY: it stands for `&'m [AtomicU64]`, which may be shared.
unsafe impl Sync for Region<'_> {}

impl<'m> Region<'m> {
    /// The mapping of `bytes` bytes at `base`. None when `base` is not at a multiple of 64.
    ///
    /// # Safety
    /// For all of `'m` the range is mapped, can be read and written, and cannot become shorter (the file beneath is
    /// sealed). This process touches it only by way of regions and by system calls. Other processes may do anything.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, bytes: usize) -> Option<Self> {
        (base.addr().get().is_multiple_of(LINE) && isize::try_from(bytes).is_ok()).then_some(Self {
            base,
            bytes,
            life: PhantomData,
        })
    }

    /// The size of the mapping.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A word of 32 bits. None when it is not inside or not aligned.
    pub(crate) fn word32(&self, offset: usize) -> Option<&'m AtomicU32> {
        let at = self.at(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>())?;
        // SAFETY: `at` is aligned for it and mapped for 'm; in this process every access to it is atomic and of this
        // size, for the layout gives each offset to words of one size.
        Some(unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) })
    }

    /// Words of 64 bits. None when they are not inside or not aligned.
    pub(crate) fn words(&self, offset: usize, count: usize) -> Option<&'m [AtomicU64]> {
        let bytes = count.checked_mul(size_of::<AtomicU64>())?;
        let at = self.at(offset, bytes, align_of::<AtomicU64>())?;
        // SAFETY: `bytes` bytes at `at` are aligned for it and mapped for 'm, fewer than isize::MAX; in this process
        // every access to them is atomic and of this size, for the layout gives each offset to words of one size.
        Some(unsafe { NonNull::slice_from_raw_parts(at.cast::<AtomicU64>(), count).as_ref() })
    }

    /// Where `bytes` bytes at `offset` are.
    fn at(&self, offset: usize, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes)?;
        // The base is aligned to more than any word.
        if end > self.bytes || !offset.is_multiple_of(align) {
            return None;
        }
        // SAFETY: offset <= bytes, so this stays inside the mapping or at its end.
        Some(unsafe { self.base.add(offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[repr(align(64))]
    struct Memory([AtomicU64; 16]);

    #[test]
    fn accesses_outside_or_unaligned_are_refused() {
        let memory = Memory([const { AtomicU64::new(0) }; 16]);
        let base = NonNull::from(&memory.0).cast::<u8>();
        // SAFETY: the memory lives longer than the region and is touched by it alone.
        let region = unsafe { Region::new(base, 128) }.unwrap();
        assert_eq!(region.bytes(), 128);
        assert!(
            region.word32(124).is_some() && region.words(64, 8).is_some() && region.words(128, 0).is_some()
        );
        for offset in [1, 2, 126, 128, 129, usize::MAX, usize::MAX - 3] {
            assert!(region.word32(offset).is_none(), "{offset}");
        }
        for (offset, count) in [(4, 1), (64, 9), (128, 1), (0, usize::MAX), (usize::MAX - 7, 1)] {
            assert!(region.words(offset, count).is_none(), "{offset} {count}");
        }
        region.word32(8).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(memory.0[1].load(Ordering::Relaxed).to_ne_bytes()[..4], 7_u32.to_ne_bytes());
        // SAFETY: this one is refused.
        assert!(unsafe { Region::new(base.map_addr(|a| a.saturating_add(8)), 64) }.is_none());
    }
}
