//! File handles: a file's identity that outlives its descriptor and its name. For tests: of what a mount answers, and of what a sandbox
//! refuses.
#![allow(unsafe_code, reason = "system calls without a wrapper elsewhere")]
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::{CStr, c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest handle that Linux has, in bytes (MAX_HANDLE_SZ).
const HANDLE_MAX: usize = 128;

/// A file handle: `struct file_handle` with room for the longest one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHandle {
    bytes: c_uint,
    kind: c_int,
    data: [u8; HANDLE_MAX],
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

impl FileHandle {
    /// name_to_handle_at(2), not following a symbolic link. EOPNOTSUPP where the filesystem has none.
    pub fn lookup(dir: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        let mut handle = Self { bytes: HANDLE_MAX as c_uint, kind: 0, data: [0; HANDLE_MAX] };
        let mut mount_id: c_int = 0;
        // SAFETY: `handle` has the layout of `struct file_handle` followed by the announced room, the name ends with
        // NUL, and both results are written to live variables.
        let result = unsafe {
            let raw = (&raw mut handle).cast();
            libc::name_to_handle_at(dir.as_raw_fd(), name.as_ptr(), raw, &raw mut mount_id, 0)
        };
        if result == 0 { Ok(handle) } else { Err(last_errno()) }
    }

    /// open_by_handle_at(2) on the filesystem that `mount` (not O_PATH) is on. ESTALE: the file is gone; EPERM without
    /// CAP_DAC_READ_SEARCH.
    pub fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut handle = *self;
        let flags = flags.bits().cast_signed() | libc::O_CLOEXEC;
        // SAFETY: `handle` has the layout of `struct file_handle`, its length is at most its room.
        let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just made this descriptor for us, nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
