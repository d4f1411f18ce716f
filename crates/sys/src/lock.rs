//! Locks that belong to an open file description, so that they end with the last descriptor of it.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Together with other shared locks.
    Shared,
    /// Alone.
    Exclusive,
    /// No longer.
    Unlock,
}

/// Locks a whole file without waiting. EAGAIN: someone else holds it. `fd` must be open for reading (shared) or
/// writing (exclusive).
pub(crate) fn ofd_lock(fd: BorrowedFd<'_>, kind: LockKind) -> Result<(), Errno> {
    let l_type = match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    // l_len 0 is "to the end", l_pid must be 0 for these locks.
    #[allow(clippy::cast_possible_truncation)]
    let lock = libc::flock {
        l_type: l_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads one `struct flock`, which lives here.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EACCES) | None => Err(Errno::AGAIN),
        Some(raw) => Err(Errno::from_raw_os_error(raw)),
    }
}

/// Whether somebody else has a shared lock of that kind on the file, whoever it is and in whatever process.
pub fn is_ofd_shared(fd: BorrowedFd<'_>) -> bool {
    #[allow(clippy::cast_possible_truncation)]
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: F_OFD_GETLK reads and writes one `struct flock`, which lives here.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    result == 0 && libc::c_int::from(lock.l_type) != libc::F_UNLCK
}
