//! The functions whose place is taken, how they are called, and how this library's own are defined.

use crate::shim::raw;
use crate::shim::symbols::Next;
use core::ffi::c_int;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// The address of the next function of a name, as a function.
macro_rules! next {
    ($name:ident as $type:ty) => {{
        // SAFETY: that is the type of all functions of this name.
        crate::shim::hook_macros::$name.get().map(|at| unsafe { core::mem::transmute::<usize, $type>(at) })
    }};
}

/// Calls the next function of a name, or where there is none makes the system call.
macro_rules! pass_on {
    ($name:ident as $type:ty, ($($argument:ident),*), $number:ident, $words:expr) => {
        match crate::shim::hook_macros::next!($name as $type) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($($argument),*) },
            None => crate::shim::hook_macros::system(crate::shim::raw::number::$number, $words),
        }
    };
}

/// Calls the next function of a name, or of the other one: a libc without it has no program that could have called ours.
macro_rules! call_next {
    ($name:ident $(or $other:ident)? as $type:ty, ($($argument:ident),*)) => {{
        use crate::shim::hook_macros::next;
        match next!($name as $type)$(.or_else(|| next!($other as $type)))? {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next($($argument),*) },
            None => crate::shim::raw::abort(),
        }
    }};
}

/// Defines the functions of libc.
macro_rules! hooks {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of libc.")]
            $(#[$meta])*
            #[cfg_attr(feature = "object", unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result $body
        )*
    };
}

pub(crate) use {call_next, hooks, next, pass_on};

macro_rules! names {
    ($($constant:ident = $name:literal,)*) => {
        $(pub(crate) static $constant: Next = Next::new($name);)*

        /// Finds them all now: a signal handler that needs one must not have to look for it.
        pub(crate) fn find() {
            $($constant.get();)*
        }
    };
}

names! {
    SIGACTION = c"sigaction",
    CLOSE = c"close",
    DUP2 = c"dup2",
    DUP3 = c"dup3",
    CLOSE_RANGE = c"close_range",
    CLOSEFROM = c"closefrom",
    FCLOSE = c"fclose",
    FREOPEN = c"freopen",
    FREOPEN64 = c"freopen64",
    DAEMON = c"daemon",
    LOGIN_TTY = c"login_tty",
    UNSHARE = c"unshare",
    SYSCALL = c"syscall",
    SIGNAL = c"signal",
    SIGPROCMASK = c"sigprocmask",
    PTHREAD_SIGMASK = c"pthread_sigmask",
    FILENO = c"fileno",
    PREAD = c"pread",
    PREAD64 = c"pread64",
    PREADV = c"preadv",
    PREADV64 = c"preadv64",
    PREADV2 = c"preadv2",
    PREADV64V2 = c"preadv64v2",
    PWRITE = c"pwrite",
    PWRITE64 = c"pwrite64",
    PWRITEV = c"pwritev",
    PWRITEV64 = c"pwritev64",
    PWRITEV2 = c"pwritev2",
    PWRITEV64V2 = c"pwritev64v2",
    FSYNC = c"fsync",
    FDATASYNC = c"fdatasync",
    FORK = c"fork",
    BARE_FORK = c"_Fork",
    FORKPTY = c"forkpty",
    IO_URING_SETUP = c"io_uring_setup",
    IO_URING_QUEUE_INIT = c"io_uring_queue_init",
    IO_URING_QUEUE_INIT_PARAMS = c"io_uring_queue_init_params",
    OPEN = c"open",
    OPEN64 = c"open64",
    OPENAT = c"openat",
    OPENAT64 = c"openat64",
    CREAT = c"creat",
    CREAT64 = c"creat64",
    OPEN_2 = c"__open_2",
    OPEN64_2 = c"__open64_2",
    OPENAT_2 = c"__openat_2",
    OPENAT64_2 = c"__openat64_2",
    MKDIR = c"mkdir",
    MKDIRAT = c"mkdirat",
    SYMLINK = c"symlink",
    SYMLINKAT = c"symlinkat",
    CHMOD = c"chmod",
    FCHMODAT = c"fchmodat",
    CHOWN = c"chown",
    LCHOWN = c"lchown",
    FCHOWNAT = c"fchownat",
    UTIMENSAT = c"utimensat",
    FSTAT = c"fstat",
    FSTAT64 = c"fstat64",
    FLISTXATTR = c"flistxattr",
    LLISTXATTR = c"llistxattr",
    STAT = c"stat",
    STAT64 = c"stat64",
    LSTAT = c"lstat",
    LSTAT64 = c"lstat64",
    FSTATAT = c"fstatat",
    FSTATAT64 = c"fstatat64",
    FXSTAT = c"__fxstat",
    FXSTAT64 = c"__fxstat64",
    FXSTATAT = c"__fxstatat",
    FXSTATAT64 = c"__fxstatat64",
    STATX = c"statx",
    UMASK = c"umask",
    SETUID = c"setuid",
    SETGID = c"setgid",
    SETEUID = c"seteuid",
    SETEGID = c"setegid",
    SETREUID = c"setreuid",
    SETREGID = c"setregid",
    SETRESUID = c"setresuid",
    SETRESGID = c"setresgid",
    SETFSUID = c"setfsuid",
    SETFSGID = c"setfsgid",
    SETGROUPS = c"setgroups",
    INITGROUPS = c"initgroups",
    CAPSET = c"capset",
    SETNS = c"setns",
    PRCTL = c"prctl",
    VFORK = c"vfork",
    CLONE = c"clone",
    EXECVE = c"execve",
    EXECV = c"execv",
    EXECVP = c"execvp",
    EXECVPE = c"execvpe",
    EXECL = c"execl",
    EXECLP = c"execlp",
    EXECLE = c"execle",
    FEXECVE = c"fexecve",
    EXECVEAT = c"execveat",
    POSIX_SPAWN = c"posix_spawn",
    POSIX_SPAWNP = c"posix_spawnp",
    SYSTEM = c"system",
    POPEN = c"popen",
    FCNTL = c"fcntl",
    FCNTL64 = c"fcntl64",
    FLOCK = c"flock",
    LOCKF = c"lockf",
    LOCKF64 = c"lockf64",
    DUP = c"dup",
    READLINK = c"readlink",
    READLINKAT = c"readlinkat",
    COPY_FILE_RANGE = c"copy_file_range",
}

/// A system call's result as libc would return it.
pub(crate) fn result(result: isize) -> isize {
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

pub(crate) fn set_errno(error: c_int) {
    // SAFETY: every libc has this function, and the place is the thread's own.
    unsafe { *__errno_location() = error };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: every libc has this function, and the place is the thread's own.
    unsafe { *__errno_location() }
}

pub(crate) fn system(number: usize, words: [usize; 6]) -> isize {
    // SAFETY: a call of the program's, with its arguments.
    result(unsafe { raw::call(number, words) })
}
