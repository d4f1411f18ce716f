//! Extended attributes of anything: open files, held objects without I/O, names in a directory.
//!
//! Kernel 6.13 has calls relative to a directory descriptor; before it, the way leads through /proc.

use crate::proc_path::ProcPath;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_long};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

// These numbers hold on every architecture that has the calls, except alpha. libc has none of them yet.
const SYS_SETXATTRAT: c_long = 463;
const SYS_GETXATTRAT: c_long = 464;
const SYS_LISTXATTRAT: c_long = 465;
const SYS_REMOVEXATTRAT: c_long = 466;

/// Whose attributes.
#[derive(Clone, Copy, Debug)]
pub enum XattrTarget<'a> {
    /// An open file or directory (not O_PATH).
    File(BorrowedFd<'a>),
    /// A directory, also O_PATH.
    Dir(BorrowedFd<'a>),
    /// Anything held by an O_PATH descriptor.
    Held(BorrowedFd<'a>),
    /// A name in a directory (O_PATH or not), never followed.
    Name(BorrowedFd<'a>, &'a CStr),
}

/// `struct xattr_args` of the kernel.
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// Set once the kernel has refused these calls altogether.
pub(crate) static NO_XATTRAT: AtomicBool = AtomicBool::new(false);

/// Whether the calls relative to a directory exist, as far as known.
fn is_known_missing() -> bool {
    NO_XATTRAT.load(Ordering::Relaxed)
}

/// Remembers that the calls are missing, if that is what the errno says.
fn note_missing(errno: Errno) -> bool {
    if errno == Errno::NOSYS {
        NO_XATTRAT.store(true, Ordering::Relaxed);
    }
    errno == Errno::NOSYS
}

fn checked(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Errno::from_raw_os_error(raw)
    })
}

fn size_of_slice(len: usize) -> u32 {
    // Values are at most 64 KiB; a longer buffer than u32 can say is as good as the longest.
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn getxattrat(dir: BorrowedFd<'_>, name: &CStr, attr: &CStr, buf: &mut [u8]) -> Result<usize, Errno> {
    let mut args = XattrArgs { value: buf.as_mut_ptr() as u64, size: size_of_slice(buf.len()), flags: 0 };
    // SAFETY: both strings end with NUL, `args` has the kernel's layout and size and names a buffer that is
    // writable for its length while the call lasts.
    checked(unsafe {
        libc::syscall(
            SYS_GETXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attr.as_ptr(),
            &raw mut args,
            size_of::<XattrArgs>(),
        )
    })
}

fn setxattrat(dir: BorrowedFd<'_>, name: &CStr, attr: &CStr, value: &[u8], flags: u32) -> Result<(), Errno> {
    let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    let args = XattrArgs { value: value.as_ptr() as u64, size, flags };
    // SAFETY: both strings end with NUL, `args` has the kernel's layout and size and names a readable value.
    checked(unsafe {
        libc::syscall(
            SYS_SETXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attr.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    })
    .map(|_| ())
}

fn listxattrat(dir: BorrowedFd<'_>, name: &CStr, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the name ends with NUL, and the buffer is writable for its length.
    checked(unsafe {
        libc::syscall(
            SYS_LISTXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW as c_int,
            buf.as_mut_ptr().cast::<c_char>(),
            buf.len(),
        )
    })
}

fn removexattrat(dir: BorrowedFd<'_>, name: &CStr, attr: &CStr) -> Result<(), Errno> {
    // SAFETY: both strings end with NUL.
    checked(unsafe {
        libc::syscall(
            SYS_REMOVEXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attr.as_ptr(),
        )
    })
    .map(|_| ())
}

/// Where to look: a descriptor, a name relative to one, or a path. A path ending in a name is not followed, one
/// of a descriptor is (that leads to the held object itself).
enum XattrPath<'a> {
    Fd(BorrowedFd<'a>),
    At(BorrowedFd<'a>, &'a CStr),
    Follow(ProcPath),
    NoFollow(ProcPath),
}

fn way(of: XattrTarget<'_>) -> Result<XattrPath<'_>, Errno> {
    Ok(match of {
        XattrTarget::File(fd) => XattrPath::Fd(fd),
        XattrTarget::Dir(fd) if is_known_missing() => XattrPath::Follow(ProcPath::of_fd(fd)),
        XattrTarget::Dir(fd) => XattrPath::At(fd, c"."),
        XattrTarget::Held(fd) => XattrPath::Follow(ProcPath::of_fd(fd)),
        XattrTarget::Name(fd, name) if is_known_missing() => XattrPath::NoFollow(ProcPath::below(fd, name)?),
        XattrTarget::Name(fd, name) => XattrPath::At(fd, name),
    })
}

/// Runs a call, once more by the old way when the kernel does not know the new one.
fn with_way<R>(
    of: XattrTarget<'_>,
    mut call: impl FnMut(&XattrPath<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let first = way(of)?;
    match call(&first) {
        Err(errno) if matches!(first, XattrPath::At(..)) && note_missing(errno) => call(&way(of)?),
        other => other,
    }
}

pub(crate) fn get(of: XattrTarget<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize, Errno> {
    let ask = buf.is_empty();
    with_way(of, |way| match way {
        XattrPath::At(dir, name) => getxattrat(*dir, name, attr, buf),
        XattrPath::Fd(fd) if ask => rustix::fs::fgetxattr_query(fd, attr),
        XattrPath::Fd(fd) => rustix::fs::fgetxattr(fd, attr, &mut *buf),
        XattrPath::Follow(path) if ask => rustix::fs::getxattr_query(path.as_c_str(), attr),
        XattrPath::Follow(path) => rustix::fs::getxattr(path.as_c_str(), attr, &mut *buf),
        XattrPath::NoFollow(path) if ask => rustix::fs::lgetxattr_query(path.as_c_str(), attr),
        XattrPath::NoFollow(path) => rustix::fs::lgetxattr(path.as_c_str(), attr, &mut *buf),
    })
}

pub(crate) fn set(of: XattrTarget<'_>, attr: &CStr, value: &[u8], flags: u32) -> Result<(), Errno> {
    let old_flags = XattrFlags::from_bits_retain(flags);
    with_way(of, |way| match way {
        XattrPath::At(dir, name) => setxattrat(*dir, name, attr, value, flags),
        XattrPath::Fd(fd) => rustix::fs::fsetxattr(fd, attr, value, old_flags),
        XattrPath::Follow(path) => rustix::fs::setxattr(path.as_c_str(), attr, value, old_flags),
        XattrPath::NoFollow(path) => rustix::fs::lsetxattr(path.as_c_str(), attr, value, old_flags),
    })
}

pub(crate) fn list(of: XattrTarget<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    let ask = buf.is_empty();
    with_way(of, |way| match way {
        XattrPath::At(dir, name) => listxattrat(*dir, name, buf),
        XattrPath::Fd(fd) if ask => rustix::fs::flistxattr_query(fd),
        XattrPath::Fd(fd) => rustix::fs::flistxattr(fd, &mut *buf),
        XattrPath::Follow(path) if ask => rustix::fs::listxattr_query(path.as_c_str()),
        XattrPath::Follow(path) => rustix::fs::listxattr(path.as_c_str(), &mut *buf),
        XattrPath::NoFollow(path) if ask => rustix::fs::llistxattr_query(path.as_c_str()),
        XattrPath::NoFollow(path) => rustix::fs::llistxattr(path.as_c_str(), &mut *buf),
    })
}

pub(crate) fn remove(of: XattrTarget<'_>, attr: &CStr) -> Result<(), Errno> {
    with_way(of, |way| match way {
        XattrPath::At(dir, name) => removexattrat(*dir, name, attr),
        XattrPath::Fd(fd) => rustix::fs::fremovexattr(fd, attr),
        XattrPath::Follow(path) => rustix::fs::removexattr(path.as_c_str(), attr),
        XattrPath::NoFollow(path) => rustix::fs::lremovexattr(path.as_c_str(), attr),
    })
}
