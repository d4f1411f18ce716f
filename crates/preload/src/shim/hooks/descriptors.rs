//! The names by which a descriptor comes to another process or gets another number, and those of locks.
//!
//! Those that make processes or begin programs are not called but jumped to: `vfork` returns twice to who has called it, and others
//! take any number of arguments.
#![allow(clippy::missing_safety_doc, reason = "as libc's functions of these names")]

use crate::fds::{companion, exclusive_fd, service_fds};
use crate::shim::hook_macros::{call_next, hooks, next, system as system_raw};
use crate::shim::paths::{self, PATH_MAX};
use crate::shim::{hook_macros, process, raw, single_thread};
use core::arch::naked_asm;
use core::ffi::{c_char, c_int};

/// The next function of a name, after whatever has to be done before descriptors are shared.
macro_rules! jump {
    ($($name:ident to $constant:ident,)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of libc.")]
            #[cfg_attr(feature = "object", unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                extern "C" fn before() -> usize {
                    exclusive_fd::before_sharing();
                    if core::ptr::eq(&raw const hook_macros::$constant, &raw const hook_macros::CLONE) {
                        single_thread::mark_shared();
                    }
                    hook_macros::$constant.get().unwrap_or_else(|| raw::abort())
                }
                // All registers that arguments may be in are kept, and the stack is as it was: the function that is jumped to sees what
                // this one has seen.
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax", "push r10",
                    "sub rsp, 8",
                    "call {before}",
                    "add rsp, 8",
                    "mov r11, rax",
                    "pop r10", "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym before,
                );
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    "stp x0, x1, [sp, #-80]!",
                    "stp x2, x3, [sp, #16]",
                    "stp x4, x5, [sp, #32]",
                    "stp x6, x7, [sp, #48]",
                    "stp x8, x30, [sp, #64]",
                    "bl {before}",
                    "mov x16, x0",
                    "ldp x2, x3, [sp, #16]",
                    "ldp x4, x5, [sp, #32]",
                    "ldp x6, x7, [sp, #48]",
                    "ldp x8, x30, [sp, #64]",
                    "ldp x0, x1, [sp], #80",
                    "br x16",
                    before = sym before,
                );
            }
        )*
    };
}

jump! {
    vfork to VFORK,
    clone to CLONE,
    execve to EXECVE,
    execv to EXECV,
    execvp to EXECVP,
    execvpe to EXECVPE,
    execl to EXECL,
    execlp to EXECLP,
    execle to EXECLE,
    fexecve to FEXECVE,
    execveat to EXECVEAT,
    posix_spawn to POSIX_SPAWN,
    posix_spawnp to POSIX_SPAWNP,
    system to SYSTEM,
    popen to POPEN,
}

type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
type Lockf = unsafe extern "C" fn(c_int, c_int, i64) -> c_int;

const F_DUPFD: c_int = 0;
const F_SETFL: c_int = 4;
const F_DUPFD_CLOEXEC: c_int = 1030;
/// F_GETLK to F_SETLKW, those of open files, and leases.
fn locks(command: c_int) -> bool {
    matches!(command, 5..=7 | 12..=14 | 36..=38 | 1024 | 1025)
}

macro_rules! fcntl {
    ($name:ident, $fd:ident, $command:ident, $argument:ident) => {{
        if locks($command) || matches!($command, F_DUPFD | F_DUPFD_CLOEXEC) {
            exclusive_fd::before_use($fd);
        }
        if $command == F_SETFL {
            // Other numbers of the same descriptor get the flags, too.
            companion::end_all();
        }
        call_next!($name or FCNTL as Fcntl, ($fd, $command, $argument))
    }};
}

macro_rules! lockf {
    ($name:ident, $fd:ident, $command:ident, $len:ident) => {{
        exclusive_fd::before_use($fd);
        call_next!($name or LOCKF as Lockf, ($fd, $command, $len))
    }};
}

hooks! {
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        fcntl!(FCNTL, fd, command, argument)
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        fcntl!(FCNTL64, fd, command, argument)
    }

    fn flock(fd: c_int, operation: c_int) -> c_int {
        exclusive_fd::before_use(fd);
        match next!(FLOCK as unsafe extern "C" fn(c_int, c_int) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(fd, operation) },
            None => system_call(raw::number::FLOCK, fd, operation as usize),
        }
    }

    fn lockf(fd: c_int, command: c_int, len: i64) -> c_int {
        lockf!(LOCKF, fd, command, len)
    }

    fn lockf64(fd: c_int, command: c_int, len: i64) -> c_int {
        lockf!(LOCKF64, fd, command, len)
    }

    fn dup(fd: c_int) -> c_int {
        exclusive_fd::before_use(fd);
        match next!(DUP as unsafe extern "C" fn(c_int) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(fd) },
            None => system_call(raw::number::FCNTL, fd, F_DUPFD as usize),
        }
    }

    fn readlink(path: *const c_char, to: *mut c_char, len: usize) -> isize {
        if let Some(done) = link(path, to, len) {
            return done;
        }
        call_next!(READLINK as unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize, (path, to, len))
    }

    fn readlinkat(directory: c_int, path: *const c_char, to: *mut c_char, len: usize) -> isize {
        if let Some(done) = link(path, to, len) {
            return done;
        }
        call_next!(READLINKAT as unsafe extern "C" fn(c_int, *const c_char, *mut c_char, usize) -> isize, (directory, path, to, len))
    }
}

fn system_call(number: usize, fd: c_int, argument: usize) -> c_int {
    system_raw(number, [raw::word(fd), argument, 0, 0, 0, 0]) as c_int
}

/// The path of a descriptor that was handed out, for who asks /proc for it: there it begins at the union's root.
fn link(path: *const c_char, to: *mut c_char, len: usize) -> Option<isize> {
    if !service_fds::any() || !process::is_on() || process::is_borrowed() || path.is_null() {
        return None;
    }
    let mut text = [0; PATH_MAX];
    // SAFETY: the program's path.
    let end = unsafe { paths::take(raw::AT_FDCWD, path as usize, &mut text) }?;
    let text = text.get(..end)?;
    let fd = paths::descriptor_of(text)?;
    let mount = service_fds::mount_of(fd)?;
    exclusive_fd::path_of(fd, &mount, |path| {
        let bytes = path.to_bytes();
        let len = bytes.len().min(len);
        // SAFETY: the program's memory, of that length.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, len) };
        len as isize
    })
}
