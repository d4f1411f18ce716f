//! Linux: futexes of shared memory, the monotonic clock. By rustix, whose default back end makes the system calls itself
//! and so does not care which libc the process has, or leaves errno as it is.

use crate::platform::{Platform, WakeReason};
use crate::sync::AtomicU32;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};

const SECOND: u64 = 1_000_000_000;

/// The Linux kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

impl Linux {
    /// The core on which the caller runs just now.
    #[must_use]
    pub fn core(self) -> u32 {
        rustix::thread::sched_getcpu() as u32
    }
}

impl Platform for Linux {
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<u64>) -> WakeReason {
        let timeout = timeout.map(timespec);
        // Not private: the other side is another process.
        match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
            Err(Errno::TIMEDOUT) => WakeReason::TimedOut,
            _ => WakeReason::Maybe,
        }
    }

    fn wake(&self, word: &AtomicU32) {
        // It fails for no word that is mapped.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    fn now(&self) -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        (time.tv_sec as u64).wrapping_mul(SECOND).wrapping_add(time.tv_nsec as u64)
    }

    fn pause(&self) {
        core::hint::spin_loop();
    }
}

fn timespec(nanoseconds: u64) -> Timespec {
    // Both fit: 2^64 nanoseconds are 584 years.
    Timespec { tv_sec: (nanoseconds / SECOND) as i64, tv_nsec: (nanoseconds % SECOND) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end() {
        let one = AtomicU32::new(1);
        assert_eq!(Linux.wait(&one, 0, None), WakeReason::Maybe);
        let begin = Linux.now();
        assert_eq!(Linux.wait(&one, 1, Some(2_000_000)), WakeReason::TimedOut);
        assert!(Linux.now() - begin >= 2_000_000);
    }
}
