//! Attributes: of descriptors that the service has handed out the device is the mount's, and of what is read and not written the kernel's own
//! knowledge is enough.
//!
//! A FUSE filesystem's access times are old for the kernel after each read that it does itself, and whoever asks for attributes then asks
//! the service for them. On a mount that sets no such times (`noatime`: usual) they are what they were. So the kernel is asked for all but
//! the access time here: it sends a request only if something else may have changed, and the time that it knows comes all the same.
//!
//! On 64-bit machines the forms with 64 in their name are the same as those without.

use super::refuse;
use crate::fds::{companion, service_fds};
use crate::session::root_mount;
use crate::shim::attributes::{
    self, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW, STAT_LEN, STATX_ATIME,
    STATX_BASIC_STATS, Statx,
};
use crate::shim::hook_macros::{errno, hooks, next, set_errno, system};
use crate::shim::raw::{self, word};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct stat`.
type Buf = *mut [u64; STAT_LEN];

type Fstat = unsafe extern "C" fn(c_int, Buf) -> c_int;
type Stat = unsafe extern "C" fn(*const c_char, Buf) -> c_int;
type FstatAt = unsafe extern "C" fn(c_int, *const c_char, Buf, c_int) -> c_int;
type Fxstat = unsafe extern "C" fn(c_int, c_int, Buf) -> c_int;
type FxstatAt = unsafe extern "C" fn(c_int, c_int, *const c_char, Buf, c_int) -> c_int;
type StatX = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut Statx) -> c_int;

/// The version of `struct stat` that is the kernel's.
const VERSION: c_int = if cfg!(target_arch = "x86_64") { 1 } else { 0 };
/// x86-64 has two names for it.
const VERSION_KERNEL: c_int = 0;
const EPERM: c_int = 1;
const ENOENT: c_int = 2;
const EINVAL: c_int = 22;
const ENOSYS: c_int = 38;

/// What `next` says of a descriptor or a name; a descriptor that the service has handed out shows the device of the mount.
///
/// # Safety
/// The path and the memory must be the program's.
unsafe fn stat_by(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    to: Buf,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    if let Some(done) = unsafe { stat_from_kernel(directory, path, flags, to) } {
        return done;
    }
    let done = next();
    // SAFETY: the program's path.
    if done == 0 && flags & AT_EMPTY_PATH != 0 && unsafe { is_empty(path) } {
        // SAFETY: it has just been filled.
        unsafe { correct(directory, to) };
    }
    done
}

/// What the kernel says, and errno, where it need not ask the service for the access time. None: it is to be asked as always.
///
/// # Safety
/// The path and the memory must be the program's.
unsafe fn stat_from_kernel(directory: c_int, path: *const c_char, flags: c_int, to: Buf) -> Option<c_int> {
    const OTHERS: c_int = !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT);
    const ALL_BUT_ATIME: c_uint = STATX_BASIC_STATS & !STATX_ATIME;
    if !root_mount::should_try_attributes() || flags & OTHERS != 0 {
        return None;
    }
    // SAFETY: the program's path, which the kernel reads.
    match unsafe { attributes::ask(directory, path as usize, flags, ALL_BUT_ATIME) } {
        Ok(found) if root_mount::observe_unread(found.device()) => {
            // SAFETY: the caller's.
            *unsafe { to.as_mut() }? = found.as_stat();
            Some(0)
        }
        Err(ENOENT) => Some(refuse(ENOENT)),
        Err(EPERM | ENOSYS) => {
            root_mount::disable();
            None
        }
        _ => None,
    }
}

/// # Safety
/// The kernel has read the path.
unsafe fn is_empty(path: *const c_char) -> bool {
    // SAFETY: it is a string; newer kernels take null for an empty one.
    path.is_null() || unsafe { path.read() } == 0
}

/// A descriptor that the service has handed out shows the device of the mount.
///
/// # Safety
/// `to` must have been filled for this descriptor.
unsafe fn correct(fd: c_int, to: Buf) {
    // SAFETY: the caller's.
    if let Some(stat) = unsafe { to.as_mut() } {
        let (kind, device) = attributes::kind_and_device(stat);
        if let Some(shown) = service_fds::displayed_device(fd, kind, device) {
            let [first, ..] = stat;
            *first = shown;
        }
    }
}

/// # Safety
/// `to` must be the program's.
unsafe fn fstat_by(fd: c_int, to: Buf, next: impl FnOnce() -> c_int) -> c_int {
    let by_companion = companion::look(fd, |companion, shown| {
        let words = [word(companion), to as usize, 0, 0, 0, 0];
        // SAFETY: the program's memory.
        let done = unsafe { raw::call(raw::number::FSTAT, words) };
        if done == 0 {
            // SAFETY: the program's memory, which the call has just filled.
            let filled = unsafe { to.as_mut() };
            if let Some([device, ino, ..]) = filled {
                [*device, *ino] = shown;
            }
        }
        done
    });
    if by_companion == Some(0) {
        return 0;
    }
    // SAFETY: the caller's.
    if let Some(done) = unsafe { stat_from_kernel(fd, c"".as_ptr(), AT_EMPTY_PATH, to) } {
        return done;
    }
    let done = next();
    if done == 0 {
        // SAFETY: it has just been filled.
        unsafe { correct(fd, to) };
    }
    done
}

fn stat_raw(directory: c_int, path: *const c_char, to: Buf, flags: c_int) -> c_int {
    let words = [word(directory), path as usize, to as usize, flags as usize, 0, 0];
    system(raw::number::NEWFSTATAT, words) as c_int
}

fn is_version(version: c_int) -> bool {
    let is_known = version == VERSION || version == VERSION_KERNEL;
    if !is_known {
        set_errno(EINVAL);
    }
    is_known
}

macro_rules! fstat {
    ($name:ident, $fd:ident, $to:ident) => {{
        let next = || match next!($name as Fstat) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($fd, $to) },
            None => stat_raw($fd, c"".as_ptr(), $to, AT_EMPTY_PATH),
        };
        // SAFETY: the program's memory.
        unsafe { fstat_by($fd, $to, next) }
    }};
}

macro_rules! stat {
    ($name:ident, $path:ident, $to:ident, $flags:expr) => {{
        let next = || match next!($name as Stat) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($path, $to) },
            None => stat_raw(raw::AT_FDCWD, $path, $to, $flags),
        };
        // SAFETY: the program's path and memory.
        unsafe { stat_by(raw::AT_FDCWD, $path, $flags, $to, next) }
    }};
}

macro_rules! fstatat {
    ($name:ident, $directory:ident, $path:ident, $to:ident, $flags:ident) => {{
        let next = || match next!($name as FstatAt) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($directory, $path, $to, $flags) },
            None => stat_raw($directory, $path, $to, $flags),
        };
        // SAFETY: the program's path and memory.
        unsafe { stat_by($directory, $path, $flags, $to, next) }
    }};
}

macro_rules! fxstat {
    ($name:ident, $version:ident, $fd:ident, $to:ident) => {{
        let next = || match next!($name as Fxstat) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($version, $fd, $to) },
            None if is_version($version) => stat_raw($fd, c"".as_ptr(), $to, AT_EMPTY_PATH),
            None => -1,
        };
        // SAFETY: the program's memory.
        unsafe { fstat_by($fd, $to, next) }
    }};
}

macro_rules! fxstatat {
    ($name:ident, $version:ident, $directory:ident, $path:ident, $to:ident, $flags:ident) => {{
        let next = || match next!($name as FxstatAt) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($version, $directory, $path, $to, $flags) },
            None if is_version($version) => stat_raw($directory, $path, $to, $flags),
            None => -1,
        };
        if $version != VERSION && $version != VERSION_KERNEL {
            return next();
        }
        // SAFETY: the program's path and memory.
        unsafe { stat_by($directory, $path, $flags, $to, next) }
    }};
}

hooks! {
    fn fstat(fd: c_int, to: Buf) -> c_int {
        fstat!(FSTAT, fd, to)
    }

    fn fstat64(fd: c_int, to: Buf) -> c_int {
        fstat!(FSTAT64, fd, to)
    }

    fn stat(path: *const c_char, to: Buf) -> c_int {
        stat!(STAT, path, to, 0)
    }

    fn stat64(path: *const c_char, to: Buf) -> c_int {
        stat!(STAT64, path, to, 0)
    }

    fn lstat(path: *const c_char, to: Buf) -> c_int {
        stat!(LSTAT, path, to, AT_SYMLINK_NOFOLLOW)
    }

    fn lstat64(path: *const c_char, to: Buf) -> c_int {
        stat!(LSTAT64, path, to, AT_SYMLINK_NOFOLLOW)
    }

    fn fstatat(directory: c_int, path: *const c_char, to: Buf, flags: c_int) -> c_int {
        fstatat!(FSTATAT, directory, path, to, flags)
    }

    fn fstatat64(directory: c_int, path: *const c_char, to: Buf, flags: c_int) -> c_int {
        fstatat!(FSTATAT64, directory, path, to, flags)
    }

    fn __fxstat(version: c_int, fd: c_int, to: Buf) -> c_int {
        fxstat!(FXSTAT, version, fd, to)
    }

    fn __fxstat64(version: c_int, fd: c_int, to: Buf) -> c_int {
        fxstat!(FXSTAT64, version, fd, to)
    }

    fn __fxstatat(version: c_int, directory: c_int, path: *const c_char, to: Buf, flags: c_int) -> c_int {
        fxstatat!(FXSTATAT, version, directory, path, to, flags)
    }

    fn __fxstatat64(version: c_int, directory: c_int, path: *const c_char, to: Buf, flags: c_int) -> c_int {
        fxstatat!(FXSTATAT64, version, directory, path, to, flags)
    }

    fn statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int {
        let to = to.cast::<Statx>();
        let ask = |mask| match next!(STATX as StatX) {
            // SAFETY: passed on as it came, or with less asked for.
            Some(next) => unsafe { next(directory, path, flags, mask, to) },
            None => {
                let words = [word(directory), path as usize, flags as usize, mask as usize, to as usize, 0];
                system(raw::number::STATX, words) as c_int
            }
        };
        if mask & STATX_ATIME != 0 && flags & AT_STATX_SYNC_TYPE == 0 && root_mount::should_try_attributes() {
            let done = ask(mask & !STATX_ATIME);
            // SAFETY: it has just been filled.
            let is_unread = || unsafe { to.as_ref() }.is_some_and(|found| root_mount::observe_unread(found.device()));
            let is_known = match done {
                0 => is_unread(),
                _ => errno() == ENOENT,
            };
            if is_known {
                return done;
            }
        }
        let done = ask(mask);
        // SAFETY: the program's path, which the kernel has read.
        if done == 0 && flags & AT_EMPTY_PATH != 0 && unsafe { is_empty(path) } {
            // SAFETY: it has just been filled.
            unsafe { correct_extended(directory, to) };
        }
        done
    }
}

/// As [`correct`], of `struct statx`.
///
/// # Safety
/// `to` must have been filled for this descriptor.
unsafe fn correct_extended(fd: c_int, to: *mut Statx) {
    // SAFETY: the caller's.
    if let Some(statx) = unsafe { to.as_mut() }
        && let Some(shown) = service_fds::displayed_device(fd, statx.kind(), statx.device())
    {
        statx.dev = attributes::split(shown);
    }
}
