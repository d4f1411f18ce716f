//! Permission bits without following a link, also through O_PATH descriptors.

use crate::proc_path::ProcPath;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the kernel has refused fchmodat2 (before 6.6).
pub(crate) static NO_FCHMODAT2: AtomicBool = AtomicBool::new(false);

fn fchmodat2(dir: BorrowedFd<'_>, name: &CStr, mode: u32, flags: i32) -> Result<(), Errno> {
    // SAFETY: the name ends with NUL; the other arguments are plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_fchmodat2, dir.as_raw_fd(), name.as_ptr(), mode, flags) };
    if result == 0 {
        return Ok(());
    }
    let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Errno::from_raw_os_error(raw))
}

fn try_new(dir: BorrowedFd<'_>, name: &CStr, mode: u32, flags: i32) -> Option<Result<(), Errno>> {
    if NO_FCHMODAT2.load(Ordering::Relaxed) {
        return None;
    }
    match fchmodat2(dir, name, mode, flags) {
        Err(Errno::NOSYS) => {
            NO_FCHMODAT2.store(true, Ordering::Relaxed);
            None
        }
        result => Some(result),
    }
}

/// Sets the bits of what `fd` holds (O_PATH or not).
pub(crate) fn set_of(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    try_new(fd, c"", mode, libc::AT_EMPTY_PATH).unwrap_or_else(|| by_proc(fd, mode))
}

/// Sets the bits of `name`, which is not followed. EOPNOTSUPP on a symbolic link.
pub(crate) fn set_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<(), Errno> {
    try_new(dir, name, mode, libc::AT_SYMLINK_NOFOLLOW).unwrap_or_else(|| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        by_proc(held.as_fd(), mode)
    })
}

fn by_proc(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmodat(
        CWD,
        ProcPath::of_fd(fd).as_c_str(),
        Mode::from_raw_mode(mode),
        rustix::fs::AtFlags::empty(),
    )
}
