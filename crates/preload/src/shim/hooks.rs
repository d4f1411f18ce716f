//! The names that a program calls: reads that may be served, everything by which a descriptor becomes another file, and the handlers
//! of the signals that say of faults. All of them end at the next library's function of that name.
#![allow(clippy::missing_safety_doc, reason = "as libc's functions of these names")]

use self::copies::End;
use crate::fds::close::{CloseGuard, closing, closing_range};
use crate::fds::{companion, exclusive_fd, reads, session_fds};
use crate::shim::hook_macros::{self, call_next, errno, hooks, next, pass_on, set_errno, system};
use crate::shim::signals::{self, Action};
use crate::shim::{environment, process, raw, single_thread};
use crate::{session, stats};
use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

pub mod attributes;
pub mod copies;
pub mod descriptors;
pub mod identity;
pub mod open_create;
pub mod stat;
pub mod writes;
pub mod xattrs;

const EBADF: c_int = 9;
const EBUSY: c_int = 16;

type Pread = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
type Preadv = unsafe extern "C" fn(c_int, *const c_void, c_int, i64) -> isize;
type Preadv2 = unsafe extern "C" fn(c_int, *const c_void, c_int, i64, c_int) -> isize;

/// One buffer: from the mapping, or by the next function.
macro_rules! pread {
    ($name:ident, $fd:ident, $buf:ident, $len:ident, $offset:ident) => {{
        // SAFETY: the buffer is the program's own.
        if let Some(done) = unsafe { reads::read($fd, $buf as usize, $len, $offset) } {
            return done as isize;
        }
        pass_on!(
            $name as Pread,
            ($fd, $buf, $len, $offset),
            PREAD64,
            [$fd as usize, $buf as usize, $len, $offset as usize, 0, 0]
        )
    }};
}

macro_rules! preadv {
    ($name:ident, $fd:ident, $list:ident, $count:ident, $offset:ident) => {{
        // SAFETY: the list and the buffers are the program's own.
        if let Some(done) = unsafe { reads::read_parts($fd, $list as usize, $count, $offset) } {
            return done as isize;
        }
        pass_on!(
            $name as Preadv,
            ($fd, $list, $count, $offset),
            PREADV,
            [$fd as usize, $list as usize, $count as usize, $offset as usize, 0, 0]
        )
    }};
}

macro_rules! preadv2 {
    ($name:ident, $fd:ident, $list:ident, $count:ident, $offset:ident, $flags:ident) => {{
        if $flags == 0 {
            // SAFETY: the list and the buffers are the program's own.
            if let Some(done) = unsafe { reads::read_parts($fd, $list as usize, $count, $offset) } {
                return done as isize;
            }
        }
        pass_on!(
            $name as Preadv2,
            ($fd, $list, $count, $offset, $flags),
            PREADV2,
            [$fd as usize, $list as usize, $count as usize, $offset as usize, 0, $flags as usize]
        )
    }};
}

hooks! {
    fn pread(fd: c_int, buf: *mut c_void, len: usize, offset: i64) -> isize {
        pread!(PREAD, fd, buf, len, offset)
    }

    fn pread64(fd: c_int, buf: *mut c_void, len: usize, offset: i64) -> isize {
        pread!(PREAD64, fd, buf, len, offset)
    }

    fn __pread64(fd: c_int, buf: *mut c_void, len: usize, offset: i64) -> isize {
        pread!(PREAD64, fd, buf, len, offset)
    }

    fn __pread_chk(fd: c_int, buf: *mut c_void, len: usize, offset: i64, room: usize) -> isize {
        if len > room {
            raw::abort();
        }
        pread!(PREAD, fd, buf, len, offset)
    }

    fn __pread64_chk(fd: c_int, buf: *mut c_void, len: usize, offset: i64, room: usize) -> isize {
        if len > room {
            raw::abort();
        }
        pread!(PREAD64, fd, buf, len, offset)
    }

    fn preadv(fd: c_int, list: *const c_void, count: c_int, offset: i64) -> isize {
        preadv!(PREADV, fd, list, count, offset)
    }

    fn preadv64(fd: c_int, list: *const c_void, count: c_int, offset: i64) -> isize {
        preadv!(PREADV64, fd, list, count, offset)
    }

    fn preadv2(fd: c_int, list: *const c_void, count: c_int, offset: i64, flags: c_int) -> isize {
        preadv2!(PREADV2, fd, list, count, offset, flags)
    }

    fn preadv64v2(fd: c_int, list: *const c_void, count: c_int, offset: i64, flags: c_int) -> isize {
        preadv2!(PREADV64V2, fd, list, count, offset, flags)
    }

    fn close(fd: c_int) -> c_int {
        if fd == 2 {
            stats::report();
        }
        if is_hidden(fd) {
            return refuse(EBADF);
        }
        let _closing = closing(fd);
        match next!(CLOSE as unsafe extern "C" fn(c_int) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(fd) },
            None => system(raw::number::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) as c_int,
        }
    }

    fn __close(fd: c_int) -> c_int {
        // SAFETY: another name of it.
        unsafe { close(fd) }
    }

    fn dup2(from: c_int, to: c_int) -> c_int {
        if is_taken(to) {
            return refuse(EBUSY);
        }
        exclusive_fd::before_use(from);
        // Of itself it stays the file that it is.
        let _closing = (from != to).then(|| closing(to));
        match next!(DUP2 as unsafe extern "C" fn(c_int, c_int) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(from, to) },
            None => system(raw::number::DUP3, [from as usize, to as usize, 0, 0, 0, 0]) as c_int,
        }
    }

    fn __dup2(from: c_int, to: c_int) -> c_int {
        // SAFETY: another name of it.
        unsafe { dup2(from, to) }
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if is_taken(to) {
            return refuse(EBUSY);
        }
        exclusive_fd::before_use(from);
        let _closing = (from != to).then(|| closing(to));
        match next!(DUP3 as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(from, to, flags) },
            None => system(raw::number::DUP3, [from as usize, to as usize, flags as usize, 0, 0, 0]) as c_int,
        }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
        let _closing = before_close_range(first, last, flags);
        if let Some(done) = close_around(first, last, flags) {
            return done;
        }
        match next!(CLOSE_RANGE as unsafe extern "C" fn(c_uint, c_uint, c_uint) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(first, last, flags) },
            None => {
                let words = [first as usize, last as usize, flags as usize, 0, 0, 0];
                system(raw::number::CLOSE_RANGE, words) as c_int
            }
        }
    }

    fn closefrom(first: c_int) -> () {
        let first = first.max(0);
        if first <= 2 {
            stats::report();
        }
        let _closing = closing_range(first as c_uint, c_uint::MAX);
        let is_around = session_fds::without_own(first as c_uint, c_uint::MAX).is_some();
        if is_around && close_around(first as c_uint, c_uint::MAX, 0) == Some(0) {
            return;
        }
        if let Some(next) = next!(CLOSEFROM as unsafe extern "C" fn(c_int)).filter(|_| !is_around) {
            // SAFETY: passed on as it came.
            return unsafe { next(first) };
        }
        let words = [first as usize, c_uint::MAX as usize, 0, 0, 0, 0];
        // SAFETY: plain numbers.
        if unsafe { raw::call(raw::number::CLOSE_RANGE, words) } != 0 {
            (first..65_536).filter(|fd| !is_hidden(*fd)).for_each(|fd| {
                let _ = raw::close(fd);
            });
        }
    }

    fn fclose(stream: *mut c_void) -> c_int {
        // SAFETY: the program's stream.
        let fd = unsafe { fd_of(stream) };
        if fd == 2 {
            stats::report();
        }
        let _closing = closing(fd);
        call_next!(FCLOSE as unsafe extern "C" fn(*mut c_void) -> c_int, (stream))
    }

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void {
        // SAFETY: the program's stream.
        let _closing = closing(unsafe { fd_of(stream) });
        call_next!(FREOPEN as Reopen, (path, mode, stream))
    }

    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void {
        // SAFETY: the program's stream.
        let _closing = closing(unsafe { fd_of(stream) });
        // Where one libc has two names for it, another has one.
        call_next!(FREOPEN64 or FREOPEN as Reopen, (path, mode, stream))
    }

    fn daemon(stay: c_int, keep: c_int) -> c_int {
        exclusive_fd::before_sharing();
        let _closing = closing_range(0, 2);
        match next!(DAEMON as unsafe extern "C" fn(c_int, c_int) -> c_int) {
            Some(next) => {
                // SAFETY: passed on as it came.
                let done = unsafe { next(stay, keep) };
                // It is the child that comes back.
                forked(0);
                done
            }
            None => raw::abort(),
        }
    }

    fn fork() -> c_int {
        exclusive_fd::before_sharing();
        match next!(FORK as Fork) {
            // SAFETY: passed on as it came.
            Some(next) => forked(unsafe { next() }),
            None => raw::abort(),
        }
    }

    #[allow(non_snake_case, reason = "its name")]
    fn _Fork() -> c_int {
        exclusive_fd::before_sharing();
        match next!(BARE_FORK as Fork).or_else(|| next!(FORK as Fork)) {
            // SAFETY: passed on as it came.
            Some(next) => forked(unsafe { next() }),
            None => raw::abort(),
        }
    }

    fn forkpty(master: *mut c_int, name: *mut c_char, terminal: *const c_void, size: *const c_void) -> c_int {
        type Forkpty = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int;
        exclusive_fd::before_sharing();
        let Some(next) = next!(FORKPTY as Forkpty) else { raw::abort() };
        // SAFETY: passed on as it came.
        let child = forked(unsafe { next(master, name, terminal, size) });
        if child == 0 {
            // They are the terminal by now, and this thread is the only one.
            drop(closing_range(0, 2));
        }
        child
    }

    fn login_tty(fd: c_int) -> c_int {
        let _closing = closing_range(0, 2);
        let _itself = closing(fd);
        call_next!(LOGIN_TTY as unsafe extern "C" fn(c_int) -> c_int, (fd))
    }

    fn unshare(flags: c_int) -> c_int {
        before_unshare(flags as usize);
        match next!(UNSHARE as unsafe extern "C" fn(c_int) -> c_int) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(flags) },
            None => system(raw::number::UNSHARE, [flags as usize, 0, 0, 0, 0, 0]) as c_int,
        }
    }

    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
        before_ring();
        call_next!(IO_URING_SETUP as unsafe extern "C" fn(c_uint, *mut c_void) -> c_int, (entries, parameters))
    }

    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        before_ring();
        call_next!(IO_URING_QUEUE_INIT as unsafe extern "C" fn(c_uint, *mut c_void, c_uint) -> c_int, (entries, ring, flags))
    }

    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        type Init = unsafe extern "C" fn(c_uint, *mut c_void, *mut c_void) -> c_int;
        before_ring();
        call_next!(IO_URING_QUEUE_INIT_PARAMS as Init, (entries, ring, parameters))
    }

    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let _one;
        let _range;
        identity::before_syscall(number as usize, a);
        match number as usize {
            raw::number::CLOSE if is_hidden(a as c_int) => return refuse(EBADF).into(),
            raw::number::DUP3 if is_taken(b as c_int) => return refuse(EBUSY).into(),
            number if Some(number) == raw::number::DUP2 && is_taken(b as c_int) => {
                return refuse(EBUSY).into();
            }
            raw::number::CLOSE => _one = closing(a as c_int),
            raw::number::DUP3 if a != b => _one = closing(b as c_int),
            number if Some(number) == raw::number::DUP2 && a != b => _one = closing(b as c_int),
            raw::number::CLOSE_RANGE => {
                _range = before_close_range(a as c_uint, b as c_uint, c as c_uint);
                if let Some(done) = close_around(a as c_uint, b as c_uint, c as c_uint) {
                    return done.into();
                }
            }
            raw::number::CLONE | raw::number::CLONE3 => single_thread::mark_shared(),
            raw::number::UNSHARE => before_unshare(a),
            raw::number::IO_URING_SETUP => before_ring(),
            _ => {}
        }
        let next = || match next!(SYSCALL as Syscall) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(number, a, b, c, d, e, f) },
            None => system(number as usize, [a, b, c, d, e, f]) as c_long,
        };
        match number as usize {
            raw::number::COPY_FILE_RANGE => {
                let [from, to] = [(a, b), (c, d)].map(|(fd, at)| End { fd: fd as c_int, at: at as *mut i64 });
                // SAFETY: the program's offsets.
                (unsafe { copies::copy_by(from, to, e, f as c_uint, || next() as isize) }) as c_long
            }
            _ => next(),
        }
    }

    fn sigaction(signal: c_int, new: *const c_void, old: *mut c_void) -> c_int {
        match signals::next_sigaction() {
            // SAFETY: the program's actions.
            Some(next) => unsafe { signals::set_action(next, signal, new.cast::<Action>(), old.cast()) },
            None => raw::abort(),
        }
    }

    fn __sigaction(signal: c_int, new: *const c_void, old: *mut c_void) -> c_int {
        // SAFETY: another name of it.
        unsafe { sigaction(signal, new, old) }
    }

    fn signal(number: c_int, handler: usize) -> usize {
        if let Some(before) = signals::next_sigaction().and_then(|set| signals::set_simple(set, number, handler)) {
            return before;
        }
        call_next!(SIGNAL as unsafe extern "C" fn(c_int, usize) -> usize, (number, handler))
    }

    fn sigprocmask(how: c_int, set: *const u64, old: *mut u64) -> c_int {
        // SAFETY: the program's set, if there is one.
        unsafe { before_mask(how, set) };
        call_next!(SIGPROCMASK as Mask, (how, set, old))
    }

    fn pthread_sigmask(how: c_int, set: *const u64, old: *mut u64) -> c_int {
        // SAFETY: the program's set, if there is one.
        unsafe { before_mask(how, set) };
        match next!(PTHREAD_SIGMASK as Mask) {
            // SAFETY: passed on as it came.
            Some(next) => unsafe { next(how, set, old) },
            // An old libc has it in another library, which this program has not loaded: it changes its only thread.
            None => match next!(SIGPROCMASK as Mask) {
                // SAFETY: the program's call, passed on as it came.
                Some(next) => unsafe { next(how, set, old) },
                None => raw::abort(),
            },
        }
    }
}

type Fork = unsafe extern "C" fn() -> c_int;
type Reopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void) -> *mut c_void;
type Mask = unsafe extern "C" fn(c_int, *const u64, *mut u64) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// The descriptor of a stream; -1: it has none.
///
/// # Safety
/// It must be a stream.
unsafe fn fd_of(stream: *mut c_void) -> c_int {
    let before = errno();
    let fd = match next!(FILENO as unsafe extern "C" fn(*mut c_void) -> c_int) {
        // SAFETY: the caller's.
        Some(fileno) if !stream.is_null() => unsafe { fileno(stream) },
        _ => -1,
    };
    set_errno(before);
    fd
}

/// A fork has come back.
fn forked(child: c_int) -> c_int {
    if child == 0 {
        process::forked();
        session::forked();
        stats::forked();
    }
    child
}

fn before_close_range(first: c_uint, last: c_uint, flags: c_uint) -> Option<CloseGuard> {
    const CLOSE_RANGE_UNSHARE: c_uint = 2;
    const CLOSE_RANGE_CLOEXEC: c_uint = 4;
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        before_unshare(CLONE_FILES);
    }
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        return None;
    }
    if (first..=last).contains(&2) {
        stats::report();
    }
    Some(closing_range(first, last))
}

/// A number that the program knows nothing of.
fn is_hidden(fd: c_int) -> bool {
    (session_fds::is_own(fd) || companion::is_one(fd)) && process::is_on()
}

/// A number that the program wants for another file, and that cannot be had just now.
fn is_taken(fd: c_int) -> bool {
    let gives_back = |fd| {
        if companion::is_one(fd) { companion::release_number(fd) } else { session::release_number(fd) }
    };
    is_hidden(fd) && !process::is_borrowed() && !gives_back(fd)
}

fn refuse(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// Closes a range that sessions' sockets are in, without them.
fn close_around(first: c_uint, last: c_uint, flags: c_uint) -> Option<c_int> {
    let mut parts = session_fds::without_own(first, last).filter(|_| process::is_on())?;
    let failed = parts.any(|(first, last)| {
        system(raw::number::CLOSE_RANGE, [first as usize, last as usize, flags as usize, 0, 0, 0]) < 0
    });
    Some(if failed { -1 } else { 0 })
}

const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_NEWUSER: usize = 0x1000_0000;

/// Threads with descriptors of their own: a number says no more which file it is.
fn before_unshare(flags: usize) {
    if flags & (CLONE_FS | CLONE_FILES | CLONE_NEWUSER) != 0 {
        identity::differs();
    }
    if flags & CLONE_FILES != 0 && process::is_on() && !process::is_borrowed() {
        companion::end_all();
        process::end();
    }
}

/// A program with a ring may close descriptors through it, unseen.
fn before_ring() {
    if process::is_on() && !process::is_borrowed() {
        session::end_permanently();
        companion::end_all();
        process::end();
    }
}

/// # Safety
/// The set is null or a set.
unsafe fn before_mask(how: c_int, set: *const u64) {
    const SIG_UNBLOCK: c_int = 1;
    // SAFETY: the caller's.
    if let Some(set) = unsafe { set.as_ref() }
        && how != SIG_UNBLOCK
    {
        signals::note_mask(*set);
    }
}

extern "C" fn begin() {
    hook_macros::find();
    single_thread::find();
    signals::note_mask(raw::blocked_signals());
    if environment::has_elevated_rights() {
        return;
    }
    stats::begin();
    process::begin();
    if process::is_on() {
        identity::begin();
        match environment::variable(b"VELLUM_RING").map(core::ffi::CStr::to_bytes) {
            Some(b"off") => session::end_permanently(),
            Some(b"on") => session::begin_at_once(),
            _ => {}
        }
    }
}

extern "C" fn end() {
    stats::report();
}

#[cfg_attr(feature = "object", unsafe(link_section = ".init_array"), used)]
#[allow(dead_code, reason = "only the shared object has it")]
static BEGIN: extern "C" fn() = begin;

#[cfg_attr(feature = "object", unsafe(link_section = ".fini_array"), used)]
#[allow(dead_code, reason = "only the shared object has it")]
static END: extern "C" fn() = end;
