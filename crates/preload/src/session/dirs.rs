//! Directories of the program's that the service knows by a number, and those that it does not serve.

use crate::shim::attributes::{
    self, AT_STATX_DONT_SYNC, S_IFDIR, STATX_INO, STATX_MNT_ID, STATX_TYPE, Statx,
};
use crate::shim::paths::{self, PATH_MAX};
use crate::shim::raw;
use crate::thresholds::dirs::{FOREIGN, KNOWN as DIRS, MISSES, TEXT};
use core::ffi::CStr;
use vellum_ring::files::{TOKEN, TOKEN_BYTES};

/// Which directory it is, seen through which mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirLocation {
    pub(crate) device: u64,
    pub(crate) ino: u64,
    pub(crate) mount: u64,
}

impl DirLocation {
    fn new(statx: &Statx) -> Option<Self> {
        let is_known = statx.kind() == S_IFDIR && statx.mask & STATX_MNT_ID != 0;
        is_known.then_some(Self { device: statx.device(), ino: statx.ino, mount: statx.mnt_id })
    }
}

pub(crate) fn look(directory: i32, path: &CStr) -> Option<DirLocation> {
    let mask = STATX_TYPE | STATX_INO | STATX_MNT_ID;
    DirLocation::new(&attributes::at(directory, path, AT_STATX_DONT_SYNC, mask).ok()?)
}

/// What came of showing the kernel that the program may write to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProofOutcome {
    /// The service has this from the kernel.
    Token([u8; TOKEN_BYTES]),
    /// The kernel is to be asked, this time.
    NotNow,
    /// And later, too.
    Never,
}

/// Shows that the program may write to a directory. This changes nothing there.
pub(crate) fn prove_access(directory: i32, path: &CStr, place: &DirLocation) -> ProofOutcome {
    const O_PATH_DIRECTORY_CLOEXEC: usize =
        0o12_000_000 | if cfg!(target_arch = "aarch64") { 0o40_000 } else { 0o200_000 };
    let words = [raw::word(directory), path.as_ptr() as usize, O_PATH_DIRECTORY_CLOEXEC, 0, 0, 0];
    let Ok(fd) = i32::try_from(raw::plain(raw::number::OPENAT, words)) else { return ProofOutcome::NotNow };
    if fd < 0 {
        return ProofOutcome::NotNow;
    }
    let shown = show_opened(fd, place);
    raw::close(fd);
    shown
}

fn show_opened(fd: i32, place: &DirLocation) -> ProofOutcome {
    // The path may have come to lead elsewhere.
    if attributes::stat_fd(fd).ok().and_then(|statx| DirLocation::new(&statx)) != Some(*place) {
        return ProofOutcome::NotNow;
    }
    show_descriptor(fd)
}

/// Shows that the program may write to the file or directory of a descriptor.
pub(crate) fn show_descriptor(fd: i32) -> ProofOutcome {
    const REFUSED: [isize; 4] = [-1, -13, -30, -95];
    const GRND_NONBLOCK: usize = 1;
    let mut token = [0u8; TOKEN_BYTES];
    let words = [token.as_mut_ptr() as usize, TOKEN_BYTES, GRND_NONBLOCK, 0, 0, 0];
    // SAFETY: the kernel fills so many bytes.
    if unsafe { raw::call(raw::number::GETRANDOM, words) } != TOKEN_BYTES as isize {
        return ProofOutcome::NotNow;
    }
    match set_token(fd, &token) {
        0 => ProofOutcome::Token(token),
        // EPERM, EACCES, EROFS, EOPNOTSUPP
        error if REFUSED.contains(&error) => ProofOutcome::Never,
        _ => ProofOutcome::NotNow,
    }
}

/// A descriptor that only names the directory has no attributes to set, but a path through it has.
fn set_token(fd: i32, token: &[u8; TOKEN_BYTES]) -> isize {
    #[cfg(test)]
    if let Some(done) = crate::tests::set_token(fd, token) {
        return done;
    }
    let path = paths::of_descriptor(fd);
    let value = token.as_ptr() as usize;
    let words = [path.as_ptr() as usize, TOKEN.as_ptr() as usize, value, TOKEN_BYTES, 0, 0];
    raw::plain(raw::number::SETXATTR, words)
}

#[derive(Clone, Copy)]
struct DirEntry {
    place: DirLocation,
    /// None: the service does not serve it.
    number: Option<u64>,
    /// It has been asked for since a place was last looked for.
    used: bool,
}

/// What is known, in a session.
pub(crate) struct Dirs {
    known: [Option<DirEntry>; DIRS],
    next: usize,
    /// These stay from one session to the next.
    foreign: [Option<u64>; FOREIGN],
    next_foreign: usize,
    /// The directory of the last call that went well, as the program has put it.
    text: [u8; TEXT],
    len: Option<usize>,
    from: i32,
    misses: u32,
}

impl Dirs {
    pub(crate) const fn new() -> Self {
        Self {
            known: [None; DIRS],
            next: 0,
            foreign: [None; FOREIGN],
            next_foreign: 0,
            text: [0; TEXT],
            len: None,
            from: 0,
            misses: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.known.iter_mut().for_each(|known| *known = None);
        self.len = None;
    }

    /// Devices may be others from now on.
    pub(crate) fn forget_foreign(&mut self) {
        self.foreign = [None; FOREIGN];
    }

    /// The number of a directory; `Some(None)`: it is not served.
    pub(crate) fn find(&mut self, place: &DirLocation) -> Option<Option<u64>> {
        let known = self.known.iter_mut().flatten().find(|known| known.place == *place)?;
        known.used = true;
        Some(known.number)
    }

    pub(crate) fn keep(&mut self, place: DirLocation, number: Option<u64>) {
        self.drop_stale(&place);
        // Whoever has been asked for is passed over once.
        for _ in 0..=DIRS {
            let Some(slot) = self.known.get_mut(self.next % DIRS) else { return };
            self.next = self.next.wrapping_add(1);
            match slot {
                Some(known) if known.used => known.used = false,
                _ => {
                    *slot = Some(DirEntry { place, number, used: false });
                    return;
                }
            }
        }
    }

    pub(crate) fn drop_stale(&mut self, place: &DirLocation) {
        for slot in &mut self.known {
            if slot.is_some_and(|known| known.place == *place) {
                *slot = None;
            }
        }
    }

    pub(crate) fn is_foreign(&self, device: u64) -> bool {
        self.foreign.contains(&Some(device))
    }

    pub(crate) fn keep_foreign(&mut self, device: u64) {
        if let Some(slot) = self.foreign.get_mut(self.next_foreign % FOREIGN) {
            *slot = Some(device);
        }
        self.next_foreign = self.next_foreign.wrapping_add(1);
    }

    /// Whether the program has put it the same way the last time that a call went well: a guess, which costs nothing.
    pub(crate) fn is_last(&self, from: i32, text: &[u8]) -> bool {
        self.len.is_some_and(|len| {
            len == text.len() && self.from == from && self.text.get(..len).is_some_and(|last| last == text)
        })
    }

    /// A call in this directory went well.
    pub(crate) fn note_success(&mut self, from: i32, text: &[u8]) {
        self.misses = 0;
        if self.is_last(from, text) {
            return;
        }
        let room = self.text.get_mut(..text.len().min(PATH_MAX));
        self.len = room.map(|room| {
            room.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
            text.len()
        });
        self.from = from;
    }

    /// A call in it was the kernel's after all.
    pub(crate) fn note_miss(&mut self) {
        self.misses += 1;
        if self.misses >= MISSES {
            self.misses = 0;
            self.len = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(ino: u64) -> DirLocation {
        DirLocation { device: 1, ino, mount: 2 }
    }

    #[test]
    fn the_oldest_directories_are_forgotten_first() {
        let mut dirs = Dirs::new();
        (0..DIRS as u64 + 2).for_each(|ino| dirs.keep(place(ino), Some(ino)));
        assert_eq!((dirs.find(&place(1)), dirs.find(&place(2))), (None, Some(Some(2))));
        dirs.keep(place(5), None);
        assert_eq!(dirs.find(&place(5)), Some(None));
        assert_eq!(dirs.find(&DirLocation { mount: 3, ..place(5) }), None);
        dirs.drop_stale(&place(5));
        assert_eq!(dirs.find(&place(5)), None);
        dirs.keep_foreign(9);
        dirs.clear();
        assert!(dirs.find(&place(20)).is_none() && dirs.is_foreign(9) && !dirs.is_foreign(8));
    }

    #[test]
    fn a_requested_directory_is_not_evicted() {
        let mut dirs = Dirs::new();
        for ino in 0..4 * DIRS as u64 {
            dirs.keep(place(ino), Some(ino));
            assert_eq!((dirs.find(&place(0)), dirs.find(&place(1000))), (Some(Some(0)), None));
        }
        // All of them are.
        (0..4 * DIRS as u64).for_each(|ino| {
            let _ = dirs.find(&place(ino));
        });
        dirs.keep(place(1000), Some(1000));
        assert_eq!(dirs.find(&place(1000)), Some(Some(1000)));
    }

    #[test]
    fn a_useless_guess_is_dropped() {
        let mut dirs = Dirs::new();
        assert!(!dirs.is_last(-100, b""));
        dirs.note_success(-100, b"/a/b");
        assert!(dirs.is_last(-100, b"/a/b") && !dirs.is_last(3, b"/a/b") && !dirs.is_last(-100, b"/a"));
        (1..MISSES).for_each(|_| dirs.note_miss());
        assert!(dirs.is_last(-100, b"/a/b"));
        dirs.note_miss();
        assert!(!dirs.is_last(-100, b"/a/b"));
        dirs.note_success(-100, &[b'x'; TEXT + 1]);
        assert!(!dirs.is_last(-100, &[b'x'; TEXT + 1]));
    }

    #[test]
    fn an_ordinary_directory_takes_no_token() {
        let here = look(raw::AT_FDCWD, c"/proc").unwrap();
        assert_eq!(prove_access(raw::AT_FDCWD, c"/proc", &here), ProofOutcome::Never);
        assert_eq!(prove_access(raw::AT_FDCWD, c"/", &here), ProofOutcome::NotNow);
        assert!(look(raw::AT_FDCWD, c"/proc/self/exe").is_none());
    }
}
