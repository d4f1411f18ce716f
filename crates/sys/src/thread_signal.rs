//! A signal to one thread.

use crate::daemon::last_errno;
use rustix::io::Result;
use rustix::process::Signal;

/// Sends a signal to a thread of a process. ESRCH: there is no such thread.
///
/// Where all threads of a process are sent one, each of them meets it before it runs on; of one to the process only a single thread knows at first.
pub fn signal_thread(process: u32, thread: u32, signal: Signal) -> Result<()> {
    let (process, thread) = (process.cast_signed(), thread.cast_signed());
    // SAFETY: tgkill takes plain numbers, and refuses such as are no threads.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal.as_raw()) };
    if sent == 0 { Ok(()) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_existing_threads_are_signalled() {
        let (process, thread) = (std::process::id(), rustix::thread::gettid());
        let thread = thread.as_raw_nonzero().get().cast_unsigned();
        // The default for this one is that nothing happens.
        assert_eq!(signal_thread(process, thread, Signal::CONT), Ok(()));
        assert_eq!(signal_thread(1, thread, Signal::CONT), Err(Errno::SRCH));
        assert_eq!(signal_thread(0, 0, Signal::CONT), Err(Errno::INVAL));
        assert_eq!(signal_thread(u32::MAX, u32::MAX, Signal::CONT), Err(Errno::INVAL));
    }
}
