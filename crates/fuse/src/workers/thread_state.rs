//! Whether a thread sleeps in the kernel, as another thread sees it.
//!
//! A worker that does not get on may wait for a disk, a lock or a network, or it may only wait for a processor. In the
//! second case a second worker would wait beside it, so that the two have to be told apart.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// What the kernel says about one thread: its `/proc/PID/task/TID/stat`, kept open.
#[derive(Debug)]
pub(crate) struct ThreadState(File);

impl ThreadState {
    /// Of the calling thread. None without /proc.
    pub(crate) fn of_this_thread() -> Option<Self> {
        File::open("/proc/thread-self/stat").ok().map(Self)
    }

    /// It sleeps, until something else happens; false: it has a processor or waits for one. A thread that has ended
    /// sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        // "TID (NAME) S ...": 10 digits and 15 bytes of name at most. What follows are numbers.
        let mut head = [0; 48];
        let len = self.0.read_at(&mut head, 0).unwrap_or(0);
        state(head.get(..len).unwrap_or_default()) != Some(b'R')
    }
}

/// The letter after the name; a name may contain anything, brackets too.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    #[test]
    fn the_thread_state_follows_the_name() {
        assert_eq!(state(b"17 (vellum-0) S 1 17 17 0 -1"), Some(b'S'));
        assert_eq!(state(b"17 (a) R (b) D 1 17"), Some(b'D'));
        assert_eq!(state(b"17 (vell"), None);
        assert_eq!(state(b"17 (a)"), None);
    }

    #[test]
    fn waiting_threads_sleep_and_computing_ones_do_not() {
        let busy = AtomicBool::new(true);
        let (say, hear) = mpsc::channel();
        let (wake, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let busy = &busy;
            scope.spawn(move || {
                say.send(ThreadState::of_this_thread()).unwrap();
                while busy.load(Ordering::Relaxed) {}
                let _ = wait.recv();
            });
            let other = hear.recv().unwrap().expect("/proc is there");
            // It may still be on its way from waking us; from then on it computes.
            std::thread::sleep(Duration::from_millis(5));
            let awake: Vec<bool> = (0..20).map(|_| other.is_asleep()).collect();
            busy.store(false, Ordering::Relaxed);
            let begin = Instant::now();
            let mut asleep = other.is_asleep();
            while !asleep && begin.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
                asleep = other.is_asleep();
            }
            drop(wake);
            assert!(awake.iter().all(|asleep| !asleep), "{awake:?}");
            assert!(asleep);
        });
    }
}
