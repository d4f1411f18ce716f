//! What the kernel says of threads that are traced, and why they have stopped.

use crate::failure::{Failure, Result, While};
use crate::service::Service;
use nix::errno::Errno;
use nix::libc::user_regs_struct;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What an interrupted call has as its result while the kernel has yet to begin it anew: ERESTARTSYS and its kin.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

/// Whether a signal waits for a thread to take it.
pub(super) fn is_pending(service: Service, id: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/task/{id}/status", service.pid));
    let status = status.unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    pending >> (signal as i32 - 1) & 1 == 1
}

/// Whether a call has been interrupted, and comes next once more, and not what stands behind it.
pub(super) fn is_restarted(registers: &user_regs_struct) -> bool {
    // Otherwise it did not come out of a call.
    let in_call = registers.orig_rax.cast_signed() >= 0;
    in_call && RESTARTS.contains(&registers.rax.cast_signed())
}

/// What has happened to one of our threads.
pub(super) fn next(how: WaitPidFlag) -> Result<WaitStatus> {
    loop {
        // Threads of the service only: children of other threads of ours are theirs.
        match waitpid(None, Some(how | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Err(Failure::new("the service has ended")),
            Err(Errno::EINVAL) => {
                return Err(Failure::new("the service got a real-time signal, which cannot be passed on"));
            }
            status => return status.doing(|| "waiting for the service"),
        }
    }
}
