//! Opening a path that may not leave a directory.
#![forbid(unsafe_code)]

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the kernel has refused openat2 (before 5.6).
pub(crate) static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Opens `path` beneath `dir` and without any symbolic link. ENOSYS where the kernel cannot.
pub(crate) fn open(dir: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    if NO_OPENAT2.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let result = retry_on_intr(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve));
    if result.as_ref().err() == Some(&Errno::NOSYS) {
        NO_OPENAT2.store(true, Ordering::Relaxed);
    }
    result
}
