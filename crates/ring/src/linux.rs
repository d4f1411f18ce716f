//! Linux: futexes of shared memory, the monotonic clock. By rustix, whose default back end makes the system calls itself
//! and so does not care which libc the process has, or leaves errno as it is.

use crate::platform::{Platform, WAIT_ANY_MAX, Woken};
use crate::sync::AtomicU32;
use core::ptr;
use rustix::io::Errno;
use rustix::thread::futex::{self, Wait, WaitFlags, WaitPtr, WaitvFlags};
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
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<u64>) -> Woken {
        let timeout = timeout.map(timespec);
        // Not private: the other side is another process.
        match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
            Err(Errno::TIMEDOUT) => Woken::TimedOut,
            _ => Woken::Maybe,
        }
    }

    fn wait_any(&self, words: &[(&AtomicU32, u32)], timeout: Option<u64>) -> (Woken, Option<usize>) {
        let mut waits = [Wait::new(); WAIT_ANY_MAX];
        let mut count = 0;
        for (wait, (word, expected)) in waits.iter_mut().zip(words) {
            wait.val = u64::from(*expected);
            wait.uaddr = WaitPtr::new(ptr::from_ref(*word).cast_mut().cast());
            wait.flags = WaitFlags::SIZE_U32;
            count += 1;
        }
        let until = timeout.map(|timeout| timespec(self.now().saturating_add(timeout)));
        let waits = waits.get(..count).unwrap_or_default();
        match futex::waitv(waits, WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
            Ok(which) => (Woken::Maybe, Some(which)),
            Err(Errno::TIMEDOUT) => (Woken::TimedOut, None),
            Err(Errno::NOSYS) => self.wait_first(words, timeout),
            Err(_) => (Woken::Maybe, None),
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

impl Linux {
    /// Before Linux 5.16: the first word, and a look at the others each millisecond.
    fn wait_first(self, words: &[(&AtomicU32, u32)], timeout: Option<u64>) -> (Woken, Option<usize>) {
        let Some((word, expected)) = words.first() else { return (Woken::TimedOut, None) };
        let slice = if words.len() > 1 { SECOND / 1000 } else { u64::MAX };
        let timeout = timeout.map_or(slice, |timeout| timeout.min(slice));
        (self.wait(word, *expected, Some(timeout)), None)
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
        assert_eq!(Linux.wait(&one, 0, None), Woken::Maybe);
        let begin = Linux.now();
        assert_eq!(Linux.wait(&one, 1, Some(2_000_000)), Woken::TimedOut);
        assert!(Linux.now() - begin >= 2_000_000);
    }

    #[test]
    #[cfg_attr(miri, ignore = "futex_waitv is not there")]
    fn waits_for_several_words_end() {
        let (one, two) = (AtomicU32::new(1), AtomicU32::new(2));
        assert_eq!(Linux.wait_any(&[(&one, 1), (&two, 1)], None).0, Woken::Maybe);
        assert_eq!(Linux.wait_any(&[(&one, 1), (&two, 2)], Some(2_000_000)), (Woken::TimedOut, None));
        assert_eq!(Linux.wait_first(&[(&one, 1), (&two, 2)], None), (Woken::TimedOut, None));
        assert_eq!(Linux.wait_first(&[(&one, 0)], None).0, Woken::Maybe);
    }
}
