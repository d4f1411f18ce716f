//! What a process needs to become a daemon and to end in order: fork, signals, and its standing in memory reclaim.

use rustix::io::Errno;
use rustix::process::Pid;
use std::mem::MaybeUninit;

/// In which process [`fork`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The one that called; with the id of the new one.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Duplicates the process. EBUSY when it has several threads (only one of them would exist in the child, whatever
/// locks the others hold), or when /proc cannot tell.
pub fn fork() -> Result<Fork, Errno> {
    if thread_count() != Some(1) {
        return Err(Errno::BUSY);
    }
    // SAFETY: the process has one thread, so every lock and every piece of memory is as consistent in the child as
    // it is here.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        raw => Pid::from_raw(raw).filter(|_| raw > 0).map(Fork::Parent).ok_or_else(last_errno),
    }
}

/// Threads of this process, as /proc states it. None without /proc.
#[must_use]
pub fn thread_count() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

/// Signals that are held back so that one thread can wait for them.
#[derive(Clone)]
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Holds back `signals` (SIG* numbers) and no others in this thread and in all threads that it starts from now on. EINVAL: no
    /// such signal.
    pub fn hold(signals: &[i32]) -> Result<Self, Errno> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset fills the set that it is given.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset has filled it.
        let mut set = unsafe { set.assume_init() };
        for signal in signals {
            // SAFETY: `set` is an initialised set; a bad number is refused.
            if unsafe { libc::sigaddset(&raw mut set, *signal) } != 0 {
                return Err(last_errno());
            }
        }
        // SAFETY: `set` is initialised; no old mask is asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(Self(set)),
            raw => Err(Errno::from_raw_os_error(raw)),
        }
    }

    /// Waits for one of them, which will be long in coming, and returns its number. Lets pages go before: see
    /// [`drop_code`](crate::code_pages::drop_code). Nothing but this function runs in between, so that little comes back, and of all who rest the same.
    #[inline(never)]
    pub fn rest(&self) -> Result<i32, Errno> {
        let mut signal = 0;
        crate::code_pages::drop_code();
        // SAFETY: the set is initialised, and `signal` takes the answer.
        match unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } {
            0 => Ok(signal),
            raw => Err(Errno::from_raw_os_error(raw)),
        }
    }

    /// Waits for one of them for so many seconds at most. None: none has come.
    pub fn wait_for(&self, seconds: u32) -> Result<Option<i32>, Errno> {
        let most = libc::timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        // SAFETY: the set is initialised; nobody asks who has sent the signal.
        match unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const most) } {
            -1 => match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(None),
                error => Err(error),
            },
            signal => Ok(Some(signal)),
        }
    }
}

/// prctl(2)'s PR_SET_IO_FLUSHER, since Linux 5.6; the libc crate lacks it.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Tells the kernel that memory reclaim depends on this process, so that allocations of the process itself never wait
/// for its own filesystem's write-back. EPERM without CAP_SYS_RESOURCE.
pub fn become_io_flusher() -> Result<(), Errno> {
    // SAFETY: PR_SET_IO_FLUSHER takes plain numbers.
    match unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Has signals do what they do by default, whatever the process that started this one did with them; but for the limits of processor
/// time and file size, which are errors from then on and no reason to die, and pipes without readers. Handlers stay.
pub fn reset_signals() {
    const IGNORED: [libc::c_int; 3] = [libc::SIGXCPU, libc::SIGXFSZ, libc::SIGPIPE];
    for signal in 1..32 {
        let mut now = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: nothing is changed, and `now` takes the answer.
        if unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) } != 0 {
            continue;
        }
        // SAFETY: sigaction has filled it.
        let is_handled = !matches!(unsafe { now.assume_init() }.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        if !is_handled {
            let wanted = if IGNORED.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: neither is a handler, so none is replaced by one that could not run.
            unsafe { libc::signal(signal, wanted) };
        }
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_forked() {
        // The test harness itself has at least two.
        let other = std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(50)));
        assert_eq!(fork(), Err(Errno::BUSY));
        other.join().unwrap();
    }

    #[test]
    fn a_blocked_signal_can_be_waited_for() {
        std::thread::spawn(|| {
            let held = BlockedSignals::hold(&[libc::SIGUSR2]).unwrap();
            let me = rustix::thread::gettid();
            let send = || {
                // SAFETY: tgkill takes plain numbers; the signal is held back in this thread.
                let sent = unsafe {
                    libc::syscall(
                        libc::SYS_tgkill,
                        rustix::process::getpid().as_raw_nonzero().get(),
                        me.as_raw_nonzero().get(),
                        libc::SIGUSR2,
                    )
                };
                assert_eq!(sent, 0);
            };
            crate::find_code();
            assert_eq!(held.wait_for(0), Ok(None));
            send();
            assert_eq!(held.wait_for(60), Ok(Some(libc::SIGUSR2)));
            send();
            assert_eq!(held.rest(), Ok(libc::SIGUSR2));
        })
        .join()
        .unwrap();
        assert!(BlockedSignals::hold(&[-1]).is_err());
    }
}
