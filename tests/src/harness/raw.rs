//! The few system calls that have no safe wrapper elsewhere: mappings, filesystem ids.
#![allow(unsafe_code)]

#[path = "../../../crates/sys/tests/support/file_handle.rs"]
mod file_handle;

pub(crate) use file_handle::FileHandle;
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn last() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// A mapping of a file. Access goes through copies, since other processes write to the same pages.
pub(crate) struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes from the file's start; shared, and writable when asked.
    pub(crate) fn shared(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(last()) } else { Ok(Self { at: at.cast(), len }) }
    }

    /// Copies out `len` bytes at `offset`.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "outside of the mapping");
        (offset..offset + len)
            .map(|index| {
                // SAFETY: `index` is inside of the mapping, which lives as long as `self`.
                unsafe { self.at.wrapping_add(index).read_volatile() }
            })
            .collect()
    }

    /// Copies `data` in at `offset`. The mapping must be writable.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len, "outside of the mapping");
        for (index, byte) in data.iter().enumerate() {
            // SAFETY: inside of the mapping, which lives as long as `self`; nobody holds a reference into it.
            unsafe { self.at.wrapping_add(offset + index).write_volatile(*byte) };
        }
    }

    /// Waits until what was written has reached the file.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the range is the mapping's own.
        let rc = unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) };
        if rc == 0 { Ok(()) } else { Err(last()) }
    }
}

/// Whether the kernel maps a file to be run.
pub(crate) fn maps_to_run(fd: BorrowedFd<'_>) -> bool {
    let (null, prot) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
    let at = unsafe { libc::mmap(null, 4096, prot, libc::MAP_PRIVATE, fd.as_raw_fd(), 0) };
    let is_mapped = at != libc::MAP_FAILED;
    if is_mapped {
        // SAFETY: the mapping that has just been made, to which nothing refers.
        unsafe { libc::munmap(at, 4096) };
    }
    is_mapped
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// The handle of `path`, not following a symbolic link.
pub(crate) fn name_to_handle(path: &Path) -> Result<FileHandle, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    FileHandle::lookup(rustix::fs::CWD, &path)
}

/// Opens a handle for reading; `mount` is any descriptor on the same mount.
pub(crate) fn open_by_handle(mount: BorrowedFd<'_>, handle: &FileHandle) -> Result<OwnedFd, Errno> {
    handle.open(mount, rustix::fs::OFlags::RDONLY)
}

/// Closes a file, and says what close(2) said.
pub(crate) fn close(file: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor is ours alone, and nobody else closes it.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 { Ok(()) } else { Err(last()) }
}

/// Copies from one file to another, by the C library, which the preload library sees; how many bytes.
pub(crate) fn copy_range(
    (from, from_at): (BorrowedFd<'_>, &mut i64),
    (to, to_at): (BorrowedFd<'_>, &mut i64),
    len: usize,
) -> Result<usize, Errno> {
    // SAFETY: the offsets are there for as long as the call takes.
    let done = unsafe { libc::copy_file_range(from.as_raw_fd(), from_at, to.as_raw_fd(), to_at, len, 0) };
    usize::try_from(done).map_err(|_| last())
}

/// Acts as another user on filesystems, in this thread, until dropped.
pub(crate) struct AsUser(());

impl AsUser {
    /// Takes on the ids. Capabilities over files go with uid 0.
    pub(crate) fn new(uid: u32, gid: u32) -> Self {
        // SAFETY: changes two numbers of this thread.
        unsafe { libc::setfsgid(gid) };
        // SAFETY: changes a number of this thread.
        unsafe { libc::setfsuid(uid) };
        Self(())
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        // SAFETY: changes two numbers of this thread.
        unsafe { libc::setfsuid(0) };
        // SAFETY: changes a number of this thread.
        unsafe { libc::setfsgid(0) };
    }
}

/// Sets the umask of this process and returns the former.
pub(crate) fn umask(mask: u32) -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::umask(mask) }
}
