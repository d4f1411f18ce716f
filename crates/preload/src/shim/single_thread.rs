//! Counting that need not be atomic for other threads where there are none: a locked instruction takes 7 ns, and a write by a companion
//! or a read from a mapping has two.

use crate::shim::symbols::Next;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

/// glibc, from 2.32 on, says in it whether the process has one thread. What it says changes in that one thread only.
static SINGLE_THREADED: Next = Next::variable(c"__libc_single_threaded");

/// Looks where it is said, once: later that takes no search.
pub(crate) fn find() {
    SINGLE_THREADED.get();
}

/// Somebody else may use this memory who is no thread of libc's.
pub(crate) fn mark_shared() {
    static NO: u8 = 0;
    SINGLE_THREADED.set(&raw const NO as usize);
}

/// Whether this is the only thread, for certain.
#[inline]
fn is_single_threaded() -> bool {
    // SAFETY: a byte of libc's that stays.
    SINGLE_THREADED.cached_address().is_some_and(|at| unsafe { (at as *const u8).read_volatile() } != 0)
}

/// One more; what it is then, or later.
#[inline]
pub(crate) fn increase(count: &AtomicU64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_single_threaded() {
        // SAFETY: one instruction on a word that is there; a handler comes before it or after it.
        unsafe { core::arch::asm!("inc qword ptr [{}]", in(reg) count.as_ptr(), options(nostack)) };
        return count.load(Acquire);
    }
    count.fetch_add(1, Acquire) + 1
}

/// One less; what it is then, or later.
#[inline]
pub(crate) fn decrease(count: &AtomicU64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_single_threaded() {
        // SAFETY: one instruction on a word that is there; a handler comes before it or after it.
        unsafe { core::arch::asm!("dec qword ptr [{}]", in(reg) count.as_ptr(), options(nostack)) };
        return count.load(Acquire);
    }
    count.fetch_sub(1, AcqRel) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_count_is_correct_in_every_case() {
        find();
        let count = AtomicU64::new(1 << 32);
        assert_eq!(
            (increase(&count), increase(&count), decrease(&count)),
            (1 << 32 | 1, 1 << 32 | 2, 1 << 32 | 1)
        );
        // The harness of tests has threads.
        assert!(!is_single_threaded());
        mark_shared();
        assert!(!is_single_threaded() && SINGLE_THREADED.cached_address().is_some());
    }
}
