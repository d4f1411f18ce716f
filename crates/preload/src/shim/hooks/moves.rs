//! Renaming, and removing directories: of names that are not there, as of files, without a request.

use super::files::settle;
use crate::session::calls;
use crate::shim::hook_macros::{hooks, next, set_errno, system};
use crate::shim::process;
use crate::shim::raw::{self, AT_FDCWD, word};
use core::ffi::{c_char, c_int};

type RmDir = unsafe extern "C" fn(*const c_char) -> c_int;
type Rename = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
type RenameAt = unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char) -> c_int;

const ENOENT: c_int = 2;
const AT_REMOVEDIR: usize = 0x200;

/// A rename by the ring, or by the next function.
///
/// # Safety
/// The paths must be the program's.
unsafe fn rename_by(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    next: impl Fn() -> c_int,
) -> c_int {
    if !process::is_on() {
        return next();
    }
    // SAFETY: the caller's.
    settle(unsafe { calls::rename((from.0, from.1 as usize), (to.0, to.1 as usize)) }, ENOENT, next)
}

hooks! {
    fn rmdir(path: *const c_char) -> c_int {
        // SAFETY: the program's path.
        if process::is_on() && unsafe { calls::is_missing(AT_FDCWD, path as usize) } {
            set_errno(ENOENT);
            return -1;
        }
        match next!(RMDIR as RmDir) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(path) },
            None => system(raw::number::UNLINKAT, [word(AT_FDCWD), path as usize, AT_REMOVEDIR, 0, 0, 0]) as c_int,
        }
    }

    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        let next = || match next!(RENAME as Rename) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(from, to) },
            None => raw::abort(),
        };
        // SAFETY: the program's paths.
        unsafe { rename_by((AT_FDCWD, from), (AT_FDCWD, to), next) }
    }

    fn renameat(old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> c_int {
        let next = || match next!(RENAMEAT as RenameAt) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(old, from, new, to) },
            None => raw::abort(),
        };
        // SAFETY: the program's paths.
        unsafe { rename_by((old, from), (new, to), next) }
    }
}
