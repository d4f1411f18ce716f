//! Opening and creating, new directories and symbolic links.

use super::identity;
use crate::session::CallFailure;
use crate::session::calls::{self, O_CREAT, O_EXCL, O_NOFOLLOW, O_TRUNC, O_WRONLY};
use crate::shim::hook_macros::{call_next, errno, hooks, next, set_errno, system};
use crate::shim::process;
use crate::shim::raw::{self, AT_FDCWD, word};
use core::ffi::{c_char, c_int, c_uint};

type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
type Creat = unsafe extern "C" fn(*const c_char, c_uint) -> c_int;
type Open2 = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type OpenAt2 = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
type MkDir = unsafe extern "C" fn(*const c_char, c_uint) -> c_int;
type MkDirAt = unsafe extern "C" fn(c_int, *const c_char, c_uint) -> c_int;
type Link = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
type LinkAt = unsafe extern "C" fn(*const c_char, c_int, *const c_char) -> c_int;

const EEXIST: c_int = 17;

/// An open by the ring, or by the next function, which is given the flags.
///
/// # Safety
/// The path must be the program's.
unsafe fn open_by(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: Option<c_uint>,
    next: impl Fn(c_int) -> c_int,
) -> c_int {
    let mode = match mode {
        _ if flags & O_CREAT == 0 => Some(0),
        mode => mode.map(|mode| mode & 0o7777 & !identity::mask()),
    };
    let Some(mode) = mode.filter(|_| process::is_on()) else { return next(flags) };
    // SAFETY: the caller's.
    match unsafe { calls::open(directory, path as usize, flags, mode) } {
        Ok(fd) => fd,
        Err(CallFailure::Failed(error)) => {
            set_errno(error);
            -1
        }
        Err(CallFailure::Kernel) => next(flags),
        Err(CallFailure::Unknown) => {
            let before = errno();
            let fd = next(flags);
            // It is there because this call has made it, as far as anybody can tell.
            let was_made = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
            if fd >= 0 || !was_made || errno() != EEXIST {
                return fd;
            }
            set_errno(before);
            next(flags & !O_EXCL | O_NOFOLLOW)
        }
    }
}

fn open_raw(directory: c_int, path: *const c_char, flags: c_int, mode: Option<c_uint>) -> c_int {
    let words = [word(directory), path as usize, flags as usize, mode.unwrap_or(0) as usize, 0, 0];
    system(raw::number::OPENAT, words) as c_int
}

/// The forms that have been compiled to be checked have no mode.
macro_rules! open {
    ($name:ident as $type:ty: ($($arg:ident),*), $directory:expr, $path:ident, $flags:ident, $mode:expr) => {{
        let next = |$flags: c_int| match next!($name as $type) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($($arg),*) },
            None => open_raw($directory, $path, $flags, $mode),
        };
        // SAFETY: the program's path.
        unsafe { open_by($directory, $path, $flags, $mode, next) }
    }};
}

macro_rules! creat {
    ($name:ident, $path:ident, $mode:ident) => {{
        const FLAGS: c_int = O_CREAT | O_WRONLY | O_TRUNC;
        let next = |flags: c_int| match next!($name as Creat) {
            // SAFETY: passed on as it came.
            Some(next) if flags == FLAGS => unsafe { next($path, $mode) },
            _ => open_raw(AT_FDCWD, $path, flags, Some($mode)),
        };
        // SAFETY: the program's path.
        unsafe { open_by(AT_FDCWD, $path, FLAGS, Some($mode), next) }
    }};
}

/// A call about a name, by the ring, or by the next function. `already`: that one's error if what was to be done has been done.
pub(super) fn ring_or_next(
    call: impl FnOnce() -> Result<(), CallFailure>,
    already: c_int,
    next: impl Fn() -> c_int,
) -> c_int {
    match if process::is_on() { call() } else { Err(CallFailure::Kernel) } {
        Ok(()) => 0,
        Err(CallFailure::Kernel) => next(),
        Err(CallFailure::Failed(error)) => {
            set_errno(error);
            -1
        }
        Err(CallFailure::Unknown) => {
            let before = errno();
            let done = next();
            if done != 0 && errno() == already {
                // By this call, as far as anybody can tell.
                set_errno(before);
                return 0;
            }
            done
        }
    }
}

/// A directory made by the ring, or by the next function.
///
/// # Safety
/// The path must be the program's.
unsafe fn make_dir_by(
    directory: c_int,
    path: *const c_char,
    mode: c_uint,
    next: impl Fn() -> c_int,
) -> c_int {
    let mode = mode & 0o1777 & !identity::mask();
    // SAFETY: the caller's.
    ring_or_next(|| unsafe { calls::make_dir(directory, path as usize, mode) }, EEXIST, next)
}

/// A symbolic link made by the ring, or by the next function.
///
/// # Safety
/// The strings must be the program's.
unsafe fn make_link_by(
    target: *const c_char,
    directory: c_int,
    path: *const c_char,
    next: impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    ring_or_next(|| unsafe { calls::make_link(target as usize, directory, path as usize) }, EEXIST, next)
}

fn make_dir_raw(directory: c_int, path: *const c_char, mode: c_uint) -> c_int {
    system(raw::number::MKDIRAT, [word(directory), path as usize, mode as usize, 0, 0, 0]) as c_int
}

// In C the mode is there only with some flags. Where it is not, what comes in its place is not looked at.
hooks! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open!(OPEN as Open: (path, flags, mode), AT_FDCWD, path, flags, Some(mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open!(OPEN64 as Open: (path, flags, mode), AT_FDCWD, path, flags, Some(mode))
    }

    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open!(OPENAT as OpenAt: (directory, path, flags, mode), directory, path, flags, Some(mode))
    }

    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open!(OPENAT64 as OpenAt: (directory, path, flags, mode), directory, path, flags, Some(mode))
    }

    fn creat(path: *const c_char, mode: c_uint) -> c_int {
        creat!(CREAT, path, mode)
    }

    fn creat64(path: *const c_char, mode: c_uint) -> c_int {
        creat!(CREAT64, path, mode)
    }

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open!(OPEN_2 as Open2: (path, flags), AT_FDCWD, path, flags, None)
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open!(OPEN64_2 as Open2: (path, flags), AT_FDCWD, path, flags, None)
    }

    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        open!(OPENAT_2 as OpenAt2: (directory, path, flags), directory, path, flags, None)
    }

    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        open!(OPENAT64_2 as OpenAt2: (directory, path, flags), directory, path, flags, None)
    }

    fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
        let next = || match next!(MKDIR as MkDir) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(path, mode) },
            None => make_dir_raw(AT_FDCWD, path, mode),
        };
        // SAFETY: the program's path.
        unsafe { make_dir_by(AT_FDCWD, path, mode, next) }
    }

    fn mkdirat(directory: c_int, path: *const c_char, mode: c_uint) -> c_int {
        let next = || match next!(MKDIRAT as MkDirAt) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(directory, path, mode) },
            None => make_dir_raw(directory, path, mode),
        };
        // SAFETY: the program's path.
        unsafe { make_dir_by(directory, path, mode, next) }
    }

    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        let next = || call_next!(SYMLINK as Link, (target, path));
        // SAFETY: the program's strings.
        unsafe { make_link_by(target, AT_FDCWD, path, next) }
    }

    fn symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int {
        let next = || call_next!(SYMLINKAT as LinkAt, (target, directory, path));
        // SAFETY: the program's strings.
        unsafe { make_link_by(target, directory, path, next) }
    }
}
