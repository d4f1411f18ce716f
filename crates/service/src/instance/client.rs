//! What a client is: whether it is in a container with processes of its own.

use rustix::process::{Pid, pidfd_open};
use std::os::fd::AsRawFd;
use vellum_sys::THREAD;

/// In how many pid namespaces the thread `id` has an id, from that of /proc downwards. A thread that we know an id of is in our own
/// namespace or below; as deep as we are, it is in our own. (Which namespace it is in is shown only to who may trace it.)
pub(crate) fn pid_depth(id: u32) -> Option<usize> {
    let text = if can_open_threads() {
        let thread = pidfd_open(Pid::from_raw(id.cast_signed())?, THREAD).ok()?;
        std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", thread.as_raw_fd()))
    } else {
        std::fs::read_to_string(format!("/proc/{id}/status"))
    };
    Some(text.ok()?.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().count())
}

/// Whether the kernel gives descriptors of threads. Then nothing of other processes in /proc has to be read: a kernel that shows
/// their environment to whoever has CAP_SYS_ADMIN (since 6.15) is as new.
pub(crate) fn can_open_threads() -> bool {
    pidfd_open(rustix::thread::gettid(), THREAD).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_as_deep_as_its_threads() {
        let own = pid_depth(std::process::id());
        assert!(own.is_some_and(|depth| depth > 0));
        let of_thread = || pid_depth(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        assert_eq!(std::thread::spawn(of_thread).join().unwrap(), own);
        assert_eq!(pid_depth(0), None);
    }
}
