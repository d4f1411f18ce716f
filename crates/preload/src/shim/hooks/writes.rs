//! Writes at an offset, and syncs: by the companion of a descriptor, or by the next function.
#![allow(clippy::missing_safety_doc, reason = "as libc's functions of these names")]

use crate::fds::companion;
use crate::fds::service_fds;
use crate::shim::hook_macros::{hooks, next, pass_on, result, system};
use crate::shim::process;
use crate::shim::raw::{self, word};
use crate::thresholds::companion::SYNC;
use core::ffi::{c_int, c_void};

type Pwrite = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;
type Pwritev = unsafe extern "C" fn(c_int, *const c_void, c_int, i64) -> isize;
type Pwritev2 = unsafe extern "C" fn(c_int, *const c_void, c_int, i64, c_int) -> isize;
type Sync = unsafe extern "C" fn(c_int) -> c_int;

/// Makes the program's system call on the companion, with the arguments after the descriptor. None: there is no companion.
#[inline]
fn by_companion(fd: c_int, weight: u32, number: usize, arguments: [usize; 5]) -> Option<isize> {
    let [a, b, c, d, e] = arguments;
    companion::act(fd, weight, |companion| {
        // SAFETY: a call of the program's, with its arguments.
        unsafe { raw::call(number, [word(companion), a, b, c, d, e]) }
    })
    .map(result)
}

macro_rules! pwrite {
    ($name:ident, $fd:ident, $buf:ident, $len:ident, $offset:ident) => {{
        let arguments = [$buf as usize, $len, $offset as usize, 0, 0];
        if let Some(done) = by_companion($fd, 1, raw::number::PWRITE64, arguments) {
            return done;
        }
        pass_on!(
            $name as Pwrite,
            ($fd, $buf, $len, $offset),
            PWRITE64,
            [word($fd), $buf as usize, $len, $offset as usize, 0, 0]
        )
    }};
}

macro_rules! pwritev {
    ($name:ident, $fd:ident, $list:ident, $count:ident, $offset:ident) => {{
        let arguments = [$list as usize, $count as usize, $offset as usize, 0, 0];
        if let Some(done) = by_companion($fd, 1, raw::number::PWRITEV, arguments) {
            return done;
        }
        pass_on!(
            $name as Pwritev,
            ($fd, $list, $count, $offset),
            PWRITEV,
            [word($fd), $list as usize, $count as usize, $offset as usize, 0, 0]
        )
    }};
}

macro_rules! pwritev2 {
    ($name:ident, $fd:ident, $list:ident, $count:ident, $offset:ident, $flags:ident) => {{
        // -1 is the position of the descriptor.
        if $flags == 0 && $offset != -1 {
            let arguments = [$list as usize, $count as usize, $offset as usize, 0, 0];
            if let Some(done) = by_companion($fd, 1, raw::number::PWRITEV, arguments) {
                return done;
            }
        }
        pass_on!(
            $name as Pwritev2,
            ($fd, $list, $count, $offset, $flags),
            PWRITEV2,
            [word($fd), $list as usize, $count as usize, $offset as usize, 0, $flags as usize]
        )
    }};
}

macro_rules! sync {
    ($name:ident, $number:ident, $fd:ident) => {{
        if let Some(done) = by_companion($fd, SYNC, raw::number::$number, [0; 5]) {
            return done as c_int;
        }
        if process::is_on() && service_fds::is_volatile($fd) {
            return 0;
        }
        match next!($name as Sync) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($fd) },
            None => system(raw::number::$number, [word($fd), 0, 0, 0, 0, 0]) as c_int,
        }
    }};
}

hooks! {
    fn pwrite(fd: c_int, buf: *const c_void, len: usize, offset: i64) -> isize {
        pwrite!(PWRITE, fd, buf, len, offset)
    }

    fn pwrite64(fd: c_int, buf: *const c_void, len: usize, offset: i64) -> isize {
        pwrite!(PWRITE64, fd, buf, len, offset)
    }

    fn __pwrite64(fd: c_int, buf: *const c_void, len: usize, offset: i64) -> isize {
        pwrite!(PWRITE64, fd, buf, len, offset)
    }

    fn pwritev(fd: c_int, list: *const c_void, count: c_int, offset: i64) -> isize {
        pwritev!(PWRITEV, fd, list, count, offset)
    }

    fn pwritev64(fd: c_int, list: *const c_void, count: c_int, offset: i64) -> isize {
        pwritev!(PWRITEV64, fd, list, count, offset)
    }

    fn pwritev2(fd: c_int, list: *const c_void, count: c_int, offset: i64, flags: c_int) -> isize {
        pwritev2!(PWRITEV2, fd, list, count, offset, flags)
    }

    fn pwritev64v2(fd: c_int, list: *const c_void, count: c_int, offset: i64, flags: c_int) -> isize {
        pwritev2!(PWRITEV64V2, fd, list, count, offset, flags)
    }

    fn fsync(fd: c_int) -> c_int {
        sync!(FSYNC, FSYNC, fd)
    }

    fn fdatasync(fd: c_int) -> c_int {
        sync!(FDATASYNC, FDATASYNC, fd)
    }
}
