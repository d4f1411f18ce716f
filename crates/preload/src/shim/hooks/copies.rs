//! Copies from one descriptor to another. A file that was handed out and one of the mount's the kernel takes for files of two filesystems,
//! and refuses to copy between them. A small file is then copied through memory, and stays handed out; for a large one, whose blocks
//! the service may share, a descriptor of the mount takes the place of the one that was handed out.

use crate::fds::{exclusive_fd, service_fd_numbers, service_fds};
use crate::shim::attributes::Statx;
use crate::shim::hook_macros::{errno, hooks, pass_on, result, set_errno};
use crate::shim::process;
use crate::shim::raw::{self, number, word};
use crate::thresholds::copies::SMALL;
use core::ffi::{c_int, c_uint};

type CopyRange = unsafe extern "C" fn(c_int, *mut i64, c_int, *mut i64, usize, c_uint) -> isize;

const EXDEV: c_int = 18;

/// From where, and to where. An offset that is null is the descriptor's own.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) fd: c_int,
    pub(super) at: *mut i64,
}

impl End {
    /// # Safety
    /// The offset must be null, or readable.
    unsafe fn offset(self) -> isize {
        const SEEK_CUR: usize = 1;
        // SAFETY: the caller's.
        match unsafe { self.at.as_ref() } {
            Some(at) => *at as isize,
            None => raw::plain(number::LSEEK, [word(self.fd), 0, SEEK_CUR, 0, 0, 0]),
        }
    }

    /// # Safety
    /// The offset must be null, or writable.
    unsafe fn set(self, offset: isize) {
        const SEEK_SET: usize = 0;
        // SAFETY: the caller's.
        match unsafe { self.at.as_mut() } {
            Some(at) => *at = offset as i64,
            None => drop(raw::plain(number::LSEEK, [word(self.fd), offset as usize, SEEK_SET, 0, 0, 0])),
        }
    }
}

/// A copy by the next function, and where the kernel refuses as it would not without rings, through memory, or by descriptors of the mount.
///
/// # Safety
/// The offsets must be the program's.
pub(super) unsafe fn copy_by(
    from: End,
    to: End,
    len: usize,
    flags: c_uint,
    next: impl Fn() -> isize,
) -> isize {
    let before = errno();
    let fds = [from.fd, to.fd];
    // The kernel need not be asked first where nothing is left that it alone would find wrong: it reads the other offset.
    if flags == 0 && to.at.is_null() && service_fd_numbers::was_handed_out(to.fd) && is_usable() {
        // SAFETY: the caller's.
        if let Some(copied) = unsafe { small(service_fds::of_one_mount(fds), from, to, len) } {
            set_errno(before);
            return copied;
        }
    }
    let done = next();
    let is_refused = |done| done < 0 && errno() == EXDEV;
    if !is_refused(done) || !is_usable() {
        return done;
    }
    let files = service_fds::of_one_mount(fds);
    if files.is_none() {
        return done;
    }
    // SAFETY: the caller's.
    if let Some(copied) = unsafe { small(files, from, to, len) } {
        set_errno(before);
        return copied;
    }
    if fds.map(exclusive_fd::before_use) != [false; 2] {
        set_errno(before);
        let done = next();
        if !is_refused(done) {
            return done;
        }
    }
    // It has no name any more, or the program may not open it again.
    if !are_two(files) {
        return done;
    }
    set_errno(before);
    // SAFETY: the caller's; the kernel has read both offsets, for it refused the copy after that.
    result(unsafe { through_memory(from, to, len) })
}

fn is_usable() -> bool {
    service_fds::any() && process::is_on() && !process::is_borrowed()
}

fn are_two(files: Option<[Statx; 2]>) -> bool {
    files.is_some_and(|[source, target]| source.ino != target.ino)
}

/// Copies from a small file of one mount to another one of it. None: it is not so, or nothing was copied.
///
/// # Safety
/// The offsets must be the program's.
unsafe fn small(files: Option<[Statx; 2]>, from: End, to: End, len: usize) -> Option<isize> {
    if !are_two(files) || files.is_none_or(|[source, _]| source.size > SMALL) {
        return None;
    }
    // SAFETY: the caller's.
    let copied = unsafe { through_memory(from, to, len) };
    (copied >= 0).then_some(copied)
}

/// Copies some: how much, or the error.
///
/// # Safety
/// The offsets must be null, or readable and writable.
unsafe fn through_memory(from: End, to: End, len: usize) -> isize {
    if to.at.is_null() {
        let words = [word(to.fd), word(from.fd), from.at as usize, len, 0, 0];
        // SAFETY: the caller's; the kernel copies, and moves the position or the offset on.
        let done = unsafe { raw::call(number::SENDFILE, words) };
        if done >= 0 {
            return done;
        }
    }
    // SAFETY: the caller's.
    unsafe { by_buffer(from, to, len) }
}

/// Copies some: how much, or the error.
///
/// # Safety
/// The offsets must be null, or readable and writable.
unsafe fn by_buffer(from: End, to: End, len: usize) -> isize {
    let mut buffer = [0u8; 4096];
    // SAFETY: the caller's.
    let (read_at, write_at) = unsafe { (from.offset(), to.offset()) };
    let words = [word(from.fd), buffer.as_mut_ptr() as usize, len.min(buffer.len()), read_at as usize, 0, 0];
    // SAFETY: no more than the buffer has room for.
    let got = unsafe { raw::call(number::PREAD64, words) };
    if got <= 0 {
        return got;
    }
    let words = [word(to.fd), buffer.as_ptr() as usize, got as usize, write_at as usize, 0, 0];
    // SAFETY: what has just been read.
    let put = unsafe { raw::call(number::PWRITE64, words) };
    if put > 0 {
        // SAFETY: the caller's.
        unsafe {
            from.set(read_at + put);
            to.set(write_at + put);
        }
    }
    put
}

hooks! {
    fn copy_file_range(
        from: c_int,
        from_at: *mut i64,
        to: c_int,
        to_at: *mut i64,
        len: usize,
        flags: c_uint
    ) -> isize {
        let next = || {
            pass_on!(
                COPY_FILE_RANGE as CopyRange,
                (from, from_at, to, to_at, len, flags),
                COPY_FILE_RANGE,
                [word(from), from_at as usize, word(to), to_at as usize, len, flags as usize]
            )
        };
        // SAFETY: the program's offsets.
        unsafe { copy_by(End { fd: from, at: from_at }, End { fd: to, at: to_at }, len, flags, next) }
    }
}
