//! Names of extended attributes. Programs that copy files ask for them several times in a row, each of which is a request: `cp -a` four
//! times. That a file has none is remembered of the last one, as long as the kernel's time of its last change is the same.

use crate::session::{self, root_mount};
use crate::shim::attributes::{self, AT_EMPTY_PATH, STATX_CTIME, STATX_INO, STATX_TYPE, Statx};
use crate::shim::hook_macros::{hooks, pass_on};
use crate::shim::process;
use crate::shim::raw::{self, word};
use crate::thresholds::xattrs::SETTLED;
use core::ffi::{c_char, c_int};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

type FlistXattr = unsafe extern "C" fn(c_int, *mut c_char, usize) -> isize;

/// What stands for the last file that had none, and for when it was changed. 0: nothing. One word, since threads write it beside each other.
static EMPTY: AtomicU64 = AtomicU64::new(0);

/// The process may see others from now on: some show to the privileged alone.
pub(crate) fn forget() {
    EMPTY.store(0, Relaxed);
}

/// A word for a file and the time of its last change: as good as one of its own, for it has 64 bits of a good mixer.
fn sign(file: &Statx) -> u64 {
    let words = [file.device(), file.ino, file.ctime.seconds as u64, u64::from(file.ctime.nanoseconds)];
    let mixed = words.into_iter().fold(0, |sum: u64, word| {
        let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    });
    mixed | 1
}

/// A file of the root directory's mount, where FUSE serves that: its word, if a later change will show in it. Times are as coarse as the
/// clock of a filesystem, so one that was changed a moment ago may be changed again within the same time.
fn look(fd: c_int) -> Option<(u64, Statx)> {
    if !root_mount::may_be_of() {
        return None;
    }
    // The kernel asks the service if it does not know the time.
    let file = attributes::at(fd, c"", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_CTIME).ok()?;
    root_mount::is_of(file.device()).then(|| (sign(&file), file))
}

hooks! {
    fn flistxattr(fd: c_int, names: *mut c_char, size: usize) -> isize {
        let file = look(fd);
        if file.is_some_and(|(sign, _)| EMPTY.load(Relaxed) == sign) {
            return 0;
        }
        let words = [word(fd), names as usize, size, 0, 0, 0];
        let done = pass_on!(FLISTXATTR as FlistXattr, (fd, names, size), FLISTXATTR, words);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_files_and_changes_apart() {
        let file = Statx { ino: 5, dev: [0, 40], ..Statx::default() };
        let mut others = [file; 4];
        others[0].ino = 6;
        others[1].dev = [0, 41];
        others[2].ctime.seconds = 1;
        others[3].ctime.nanoseconds = 1;
        others.iter().for_each(|other| assert_ne!(sign(other), sign(&file)));
        assert_eq!(sign(&file), sign(&file));
        assert_ne!(sign(&Statx::default()), 0);
    }
}
