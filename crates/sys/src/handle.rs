//! File handles: a file's identity that outlives its descriptor and its name.

use rustix::io::Errno;
use std::ffi::{CStr, c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest handle that Linux has, in bytes (MAX_HANDLE_SZ).
pub const HANDLE_MAX: usize = 128;

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    bytes: c_uint,
    kind: c_int,
    data: [u8; HANDLE_MAX],
}

/// A file handle, as name_to_handle_at(2) gives it.
#[derive(Clone, Copy)]
pub struct FileHandle(Raw);

impl FileHandle {
    /// The handle's type and bytes, to be stored.
    #[must_use]
    pub fn parts(&self) -> (i32, &[u8]) {
        (self.0.kind, self.0.data.get(..self.0.bytes as usize).unwrap_or(&self.0.data))
    }

    /// A handle from stored parts. EINVAL when there are more than [`HANDLE_MAX`] bytes.
    pub fn from_parts(kind: i32, bytes: &[u8]) -> Result<Self, Errno> {
        let mut raw = Raw { bytes: 0, kind, data: [0; HANDLE_MAX] };
        raw.data.get_mut(..bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(bytes);
        raw.bytes = c_uint::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
        Ok(Self(raw))
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for FileHandle {}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, bytes) = self.parts();
        write!(f, "FileHandle({kind}, {bytes:02x?})")
    }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The handle of `name` (of `dir` itself when empty), and the id of its mount.
pub(crate) fn name_to_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<(FileHandle, i32), Errno> {
    #[allow(clippy::cast_possible_truncation)]
    let mut raw = Raw { bytes: HANDLE_MAX as c_uint, kind: 0, data: [0; HANDLE_MAX] };
    let mut mount_id: c_int = 0;
    // SAFETY: `raw` has the layout of `struct file_handle` followed by the announced room, the name ends with
    // NUL, and both results are written to live variables.
    let result = unsafe {
        libc::name_to_handle_at(
            dir.as_raw_fd(),
            name.as_ptr(),
            (&raw mut raw).cast(),
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if result == 0 { Ok((FileHandle(raw), mount_id)) } else { Err(last_errno()) }
}

/// Opens a handle on the filesystem of `mount`.
pub(crate) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &FileHandle,
    flags: c_int,
) -> Result<OwnedFd, Errno> {
    let mut raw = handle.0;
    // SAFETY: `raw` has the layout of `struct file_handle`, its length is at most its room.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut raw).cast(), flags) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just made this descriptor for us, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
