//! What a program shows before it is given files: that no Landlock domain that knows of files holds it.
//!
//! The service opens, makes and removes files for a program, and a domain of the program's does not see that. So the program moves a file
//! from one directory to another. In every domain that knows of files, whatever else it allows, that takes a rule for these directories
//! or one above them (`LANDLOCK_ACCESS_FS_REFER`; the first version of Landlock has no such rule). Here there can be none: the
//! directories are made for this program alone, in memory, and lie in no tree, so that nothing is above them.
//!
//! A domain that knows of nothing but ports or signals does not hold anybody from files, and from this neither.

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, openat, statat};
use rustix::io::{Errno, Result};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use vellum_ring::files::{PROOF_FROM, PROOF_TO};
use vellum_sys::remove_tree_at;

/// Files and directories of all programs together. Three are for one, until it has shown what it is to show.
const FILES: u32 = 16_384;
/// Entries that are looked at where one program's are removed: each several times, however deep they lie.
const LOOKS: u64 = 4 * FILES as u64;
/// The directory of [`PROOF_TO`].
const INTO: &str = "into";

/// A filesystem in memory in which all programs show that no domain holds them.
#[derive(Debug)]
pub struct Room {
    root: OwnedFd,
    next: AtomicU64,
    /// Directories that could not be removed: somebody was making files there.
    left: Mutex<Vec<CString>>,
}

impl Room {
    /// A new one. None: this process may not make any, and programs are given no files.
    #[must_use]
    pub fn create() -> Option<Arc<Self>> {
        let made = vellum_sys::mount::in_memory(FILES);
        let root = made.inspect_err(|error| tracing::info!(%error, "programs are given no files")).ok()?;
        Some(Arc::new(Self { root, next: AtomicU64::new(0), left: Mutex::default() }))
    }

    /// Removes a directory with what a program has put there, and those that are left from before.
    fn remove(&self, name: CString) {
        let mut waiting = std::mem::take(&mut *self.left.lock());
        waiting.push(name);
        while let Some(name) = waiting.pop() {
            // Somebody may be making more of them.
            if remove_tree_at(&self.root, &name, LOOKS).is_err() {
                waiting.push(name);
                break;
            }
        }
        self.left.lock().append(&mut waiting);
    }
}

/// Two directories and a file, for one program.
#[derive(Debug)]
struct ProofDirs {
    room: Arc<Room>,
    name: CString,
    into: OwnedFd,
    /// Number of the file.
    file: u64,
}

impl ProofDirs {
    /// A new one, and the directory for the program.
    fn create(room: &Arc<Room>) -> Result<(Self, OwnedFd)> {
        let room = Arc::clone(room);
        let name = room.next.fetch_add(1, Relaxed).to_string();
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        // Names in it cannot be listed by anybody but root, and can be made by all.
        let mode = Mode::from_raw_mode(0o733);
        mkdirat(&room.root, &name, mode)?;
        let made = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let outer = openat(&room.root, &name, flags, Mode::empty())?;
            // Whoever has it cannot go up from it, where the kernel makes such mounts.
            let outer = vellum_sys::mount::detached_directory(&outer).unwrap_or(outer);
            mkdirat(&outer, INTO, mode)?;
            let into = openat(&outer, INTO, flags, Mode::empty())?;
            let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = fstat(openat(&outer, PROOF_FROM, create, Mode::empty())?)?.st_ino;
            Ok((outer, into, file))
        };
        match made() {
            Ok((outer, into, file)) => Ok((Self { room, name, into, file }, outer)),
            Err(error) => {
                room.remove(name);
                Err(error)
            }
        }
    }

    /// Whether the file is in the other directory: the same file, and the same directory, whatever they are called now.
    fn is_moved(&self) -> bool {
        let name = PROOF_TO.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        statat(&self.into, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| found.st_ino == self.file)
    }
}

impl Drop for ProofDirs {
    fn drop(&mut self) {
        self.room.remove(std::mem::take(&mut self.name));
    }
}

/// What is known of a program.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    yard: Option<ProofDirs>,
    given: bool,
}

impl Proof {
    /// A directory for the program to show it in.
    pub(crate) fn ask(&mut self, room: &Arc<Room>) -> Result<OwnedFd> {
        let (yard, outer) = ProofDirs::create(room)?;
        self.yard = Some(yard);
        Ok(outer)
    }

    /// Whether it has been shown.
    pub(crate) fn poll_proof(&mut self) -> bool {
        if let Some(yard) = self.yard.take_if(|yard| yard.is_moved()) {
            self.given = true;
            drop(yard);
        }
        self.given
    }
}

#[cfg(test)]
impl Room {
    /// None: this process may not make one, as the test says.
    pub(crate) fn for_test() -> Option<Arc<Self>> {
        let room = Self::create();
        if room.is_none() {
            println!("SKIPPED: needs root, to mount a filesystem in memory");
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{linkat, renameat};

    fn files(room: &Room) -> u64 {
        let found = rustix::fs::fstatvfs(&room.root).unwrap();
        found.f_files - found.f_ffree
    }

    #[test]
    fn only_the_same_file_and_directory_are_a_proof() {
        let Some(room) = Room::for_test() else { return };
        let none = files(&room);
        let mut proof = Proof::default();
        assert!(!proof.poll_proof());
        let outer = proof.ask(&room).unwrap();
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let make = |dir: &OwnedFd, name: &str| drop(openat(dir, name, create, Mode::empty()).unwrap());
        // Another file there.
        make(&outer, "into/file");
        assert!(!proof.poll_proof());
        // Another directory of that name, with the file in it from the beginning.
        renameat(&outer, "into", &outer, "was").unwrap();
        mkdirat(&outer, "into", Mode::RWXU).unwrap();
        renameat(&outer, "file", &outer, "into/file").unwrap();
        assert!(!proof.poll_proof());
        // It is asked for again: the first one goes, with everything that was put there.
        for name in ["into/deep", "into/deep/er", "was/deep"] {
            mkdirat(&outer, name, Mode::RWXU).unwrap();
        }
        make(&outer, "into/deep/er/file");
        drop(outer);
        let outer = proof.ask(&room).unwrap();
        assert_eq!(files(&room), none + 3);
        linkat(&outer, "file", &outer, "other", AtFlags::empty()).unwrap();
        assert!(!proof.poll_proof());
        renameat(&outer, "file", &outer, "into/file").unwrap();
        assert!(proof.poll_proof() && proof.poll_proof());
        drop(outer);
        assert_eq!(files(&room), none);
    }

    #[test]
    fn a_programs_proof_directories_are_removed_with_it() {
        let Some(room) = Room::for_test() else { return };
        let none = files(&room);
        let mut proof = Proof::default();
        let outer = proof.ask(&room).unwrap();
        // As deep as it likes.
        let mut at = outer;
        while mkdirat(&at, "d", Mode::RWXU).is_ok() {
            at = openat(&at, "d", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        drop(at);
        drop(proof);
        let mut next = Proof::default();
        while next.ask(&room).is_err() {
            room.remove(c"none".into());
        }
        drop(next);
        room.remove(c"none".into());
        assert_eq!(files(&room), none);
    }
}
