//! Names of extended attributes. Programs that copy files ask for them several times in a row, each of which is a request: `cp -a` four
//! times. That a file has none is remembered of the last one, as long as the kernel's time of its last change is the same.

use crate::session::calls::{O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW};
use crate::session::{self, root_mount};
use crate::shim::attributes::{self, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, S_IFDIR};
use crate::shim::attributes::{STATX_CTIME, STATX_INO, STATX_TYPE, Statx};
use crate::shim::hook_macros::{hooks, pass_on, system};
use crate::shim::process;
use crate::shim::raw::{self, number, word};
use crate::thresholds::xattrs::SETTLED;
use core::ffi::{c_char, c_int};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

type FlistXattr = unsafe extern "C" fn(c_int, *mut c_char, usize) -> isize;
type LlistXattr = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;

/// What stands for the last file that had none, and for when it was changed. 0: nothing. One word, since threads write it beside each other.
static EMPTY: AtomicU64 = AtomicU64::new(0);

/// The process may see others from now on: some show to the privileged alone.
pub(crate) fn forget() {
    EMPTY.store(0, Relaxed);
}

/// A word for a file and the time of its last change: as good as one of its own, for it has 64 bits of a good mixer.
fn signature(file: &Statx) -> u64 {
    let words = [file.device(), file.ino, file.ctime.seconds as u64, u64::from(file.ctime.nanoseconds)];
    let mixed = words.into_iter().fold(0, |sum: u64, word| {
        let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    });
    mixed | 1
}

/// A file of the root directory's mount, where FUSE serves that: its word, if a later change will show in it. Times are as coarse as the
/// clock of a filesystem, so one that was changed a moment ago may be changed again within the same time.
///
/// # Safety
/// The path must be a string, or one of the program's, for the kernel to read.
unsafe fn look(directory: c_int, path: usize, flags: c_int) -> Option<(u64, Statx)> {
    if !root_mount::may_be_fuse() {
        return None;
    }
    // The kernel asks the service if it does not know the time.
    // SAFETY: the caller's.
    let file =
        unsafe { attributes::ask(directory, path, flags, STATX_TYPE | STATX_INO | STATX_CTIME) }.ok()?;
    root_mount::is_of(file.device()).then(|| (signature(&file), file))
}

/// How many bytes of names a file has: none if that is remembered, else what the kernel says.
fn ask_once(file: Option<(u64, Statx)>, ask: impl FnOnce() -> isize) -> isize {
    if file.is_some_and(|(sign, _)| EMPTY.load(Relaxed) == sign) {
        return 0;
    }
    let done = ask();
    if let Some((sign, file)) = file
        && done == 0
        && file.ctime.seconds.saturating_add(SETTLED) < raw::seconds()
        && session::is_one_user()
        && !process::is_borrowed()
    {
        EMPTY.store(sign, Relaxed);
    }
    done
}

/// The names of a directory. It is asked by a descriptor, since a path may lead elsewhere from one moment to the next. None: it is no
/// directory of the root directory's mount, or the program may not open it.
///
/// # Safety
/// The path must be the program's, for the kernel to read, and the memory for the names its own.
unsafe fn of_directory(path: usize, names: usize, size: usize) -> Option<isize> {
    const FLAGS: i32 = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    // SAFETY: the caller's.
    let file = unsafe { look(raw::AT_FDCWD, path, AT_SYMLINK_NOFOLLOW) };
    let (found, _) = file.filter(|(_, file)| file.kind() == S_IFDIR)?;
    if EMPTY.load(Relaxed) == found {
        return Some(0);
    }
    let words = [word(raw::AT_FDCWD), path, FLAGS as usize, 0, 0, 0];
    // SAFETY: the caller's.
    let fd = c_int::try_from(unsafe { raw::call(number::OPENAT, words) }).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the path is an empty string.
    let file = unsafe { look(fd, c"".as_ptr() as usize, AT_EMPTY_PATH) };
    // SAFETY: the memory is the program's, and as large as it says.
    let ask = || system(number::FLISTXATTR, [word(fd), names, size, 0, 0, 0]);
    let answer = ask_once(file, ask);
    raw::close(fd);
    Some(answer)
}

hooks! {
    fn flistxattr(fd: c_int, names: *mut c_char, size: usize) -> isize {
        // SAFETY: the path is an empty string.
        let file = unsafe { look(fd, c"".as_ptr() as usize, AT_EMPTY_PATH) };
        let words = [word(fd), names as usize, size, 0, 0, 0];
        ask_once(file, || pass_on!(FLISTXATTR as FlistXattr, (fd, names, size), FLISTXATTR, words))
    }

    fn llistxattr(path: *const c_char, names: *mut c_char, size: usize) -> isize {
        // SAFETY: the program's path.
        if let Some(answer) = unsafe { of_directory(path as usize, names as usize, size) } {
            return answer;
        }
        let words = [path as usize, names as usize, size, 0, 0, 0];
        pass_on!(LLISTXATTR as LlistXattr, (path, names, size), LLISTXATTR, words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_differ_between_files_and_changes() {
        let file = Statx { ino: 5, dev: [0, 40], ..Statx::default() };
        let mut others = [file; 4];
        others[0].ino = 6;
        others[1].dev = [0, 41];
        others[2].ctime.seconds = 1;
        others[3].ctime.nanoseconds = 1;
        others.iter().for_each(|other| assert_ne!(signature(other), signature(&file)));
        assert_eq!(signature(&file), signature(&file));
        assert_ne!(signature(&Statx::default()), 0);
    }
}
