//! Who the process is: the service has been told when the session began, so a session ends when that changes. Where threads may come to
//! differ from each other there is none any more. And the mask of modes, which is applied here.

use super::xattrs;
use crate::session;
use crate::shim::hook_macros::{call_next, hooks, next};
use crate::shim::{process, raw};
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

type One = unsafe extern "C" fn(c_uint) -> c_int;
type Two = unsafe extern "C" fn(c_uint, c_uint) -> c_int;
type Three = unsafe extern "C" fn(c_uint, c_uint, c_uint) -> c_int;

const PR_SET_SECCOMP: c_int = 22;

static MASK: AtomicU32 = AtomicU32::new(0);

/// To be called when the library is loaded.
pub(crate) fn begin() {
    let mask = raw::plain(raw::number::UMASK, [0; 6]) as usize;
    raw::plain(raw::number::UMASK, [mask, 0, 0, 0, 0, 0]);
    MASK.store(mask as u32, Relaxed);
}

/// The mask of modes.
pub(crate) fn mask() -> c_uint {
    MASK.load(Relaxed)
}

fn is_ours() -> bool {
    process::is_on() && !process::is_borrowed()
}

/// All threads have another identity now.
fn changed(done: c_int) -> c_int {
    if is_ours() {
        xattrs::forget();
        session::end();
    }
    done
}

/// One thread is about to have another one.
pub(super) fn differs() {
    if is_ours() {
        xattrs::forget();
        session::end_permanently();
    }
}

/// A system call that the program makes itself, for the calling thread alone.
pub(super) fn before_syscall(number: usize, first: usize) {
    use raw::number::{
        CAPSET, LANDLOCK_RESTRICT_SELF, SECCOMP, SETFSGID, SETFSUID, SETGID, SETGROUPS, SETNS, SETREGID,
        SETRESGID, SETRESUID, SETREUID, SETUID, UMASK,
    };
    match number {
        SETUID | SETGID | SETREUID | SETREGID | SETRESUID | SETRESGID | SETFSUID | SETFSGID | SETGROUPS
        | CAPSET | SETNS => differs(),
        // What the program may do from now on the service does not know.
        SECCOMP | LANDLOCK_RESTRICT_SELF => differs(),
        UMASK => note_mask(first as c_uint),
        _ => {}
    }
}

fn note_mask(mask: c_uint) {
    if is_ours() {
        MASK.store(mask & 0o777, Relaxed);
    }
}

macro_rules! change {
    ($name:ident as $type:ty, $($arg:ident),*) => {
        match next!($name as $type) {
            // SAFETY: passed on as it came.
            Some(next) => changed(unsafe { next($($arg),*) }),
            None => raw::abort(),
        }
    };
}

macro_rules! differ {
    ($name:ident as $type:ty, $($arg:ident),*) => {{
        differs();
        call_next!($name as $type, ($($arg),*))
    }};
}

hooks! {
    fn umask(mask: c_uint) -> c_uint {
        note_mask(mask);
        match next!(UMASK as unsafe extern "C" fn(c_uint) -> c_uint) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(mask) },
            None => raw::plain(raw::number::UMASK, [mask as usize, 0, 0, 0, 0, 0]) as c_uint,
        }
    }

    fn setuid(id: c_uint) -> c_int {
        change!(SETUID as One, id)
    }

    fn setgid(id: c_uint) -> c_int {
        change!(SETGID as One, id)
    }

    fn seteuid(id: c_uint) -> c_int {
        change!(SETEUID as One, id)
    }

    fn setegid(id: c_uint) -> c_int {
        change!(SETEGID as One, id)
    }

    fn setreuid(real: c_uint, effective: c_uint) -> c_int {
        change!(SETREUID as Two, real, effective)
    }

    fn setregid(real: c_uint, effective: c_uint) -> c_int {
        change!(SETREGID as Two, real, effective)
    }

    fn setresuid(real: c_uint, effective: c_uint, saved: c_uint) -> c_int {
        change!(SETRESUID as Three, real, effective, saved)
    }

    fn setresgid(real: c_uint, effective: c_uint, saved: c_uint) -> c_int {
        change!(SETRESGID as Three, real, effective, saved)
    }

    fn setfsuid(id: c_uint) -> c_int {
        differ!(SETFSUID as One, id)
    }

    fn setfsgid(id: c_uint) -> c_int {
        differ!(SETFSGID as One, id)
    }

    fn setgroups(count: usize, groups: *const c_uint) -> c_int {
        change!(SETGROUPS as unsafe extern "C" fn(usize, *const c_uint) -> c_int, count, groups)
    }

    fn initgroups(user: *const c_char, group: c_uint) -> c_int {
        change!(INITGROUPS as unsafe extern "C" fn(*const c_char, c_uint) -> c_int, user, group)
    }

    fn capset(head: *mut c_void, data: *const c_void) -> c_int {
        differ!(CAPSET as unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int, head, data)
    }

    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if option == PR_SET_SECCOMP {
            differs();
        }
        call_next!(PRCTL as unsafe extern "C" fn(c_int, ...) -> c_int, (option, a, b, c, d))
    }

    fn setns(fd: c_int, kind: c_int) -> c_int {
        differ!(SETNS as unsafe extern "C" fn(c_int, c_int) -> c_int, fd, kind)
    }
}
