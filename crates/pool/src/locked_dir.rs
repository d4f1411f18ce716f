//! Directories that belong to one process: a lock on the directory itself says whether its owner lives, and ends with it.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Who takes a directory for dead that has just been made removes it sooner than this.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// A directory that is ours until this is dropped.
#[derive(Debug)]
pub struct LockedDir {
    path: PathBuf,
    #[expect(dead_code, reason = "the lock lives as long as the descriptor")]
    lock: OwnedFd,
}

enum LockAttempt {
    Ours(LockedDir),
    /// Its owner lives.
    Others,
    Gone,
}

impl LockedDir {
    /// Makes it, or takes it over from an owner that is dead. None: its owner lives.
    pub fn make(path: &Path) -> io::Result<Option<Self>> {
        let mut made = None;
        loop {
            match rustix::fs::mkdir(path, Mode::RWXU) {
                Err(Errno::EXIST) => {}
                Ok(()) => made = Some(Instant::now()),
                Err(e) => return Err(e.into()),
            }
            match Self::take(path)? {
                LockAttempt::Ours(owned) => return Ok(Some(owned)),
                // Somebody has come upon it before it was locked, and is about to remove it.
                LockAttempt::Others if made.is_some_and(|made| made.elapsed() < PATIENCE) => {
                    thread::sleep(PAUSE)
                }
                LockAttempt::Others => return Ok(None),
                // Somebody has taken it for dead between the two steps.
                LockAttempt::Gone => {}
            }
        }
    }

    /// Takes over one that is there. None: its owner lives, or it is gone.
    pub fn adopt(path: &Path) -> io::Result<Option<Self>> {
        match Self::take(path)? {
            LockAttempt::Ours(owned) => Ok(Some(owned)),
            LockAttempt::Others | LockAttempt::Gone => Ok(None),
        }
    }

    /// Whether its owner lives. Nobody else is kept from taking it over meanwhile by more than a moment, and nobody who asks the same.
    pub fn has_owner(path: &Path) -> io::Result<bool> {
        let Some(dir) = Self::open(path)? else { return Ok(false) };
        match flock(&dir, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            locked => locked.map(|()| false).map_err(Into::into),
        }
    }

    /// None: it is gone.
    fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            opened => Ok(Some(opened?)),
        }
    }

    fn take(path: &Path) -> io::Result<LockAttempt> {
        let Some(lock) = Self::open(path)? else { return Ok(LockAttempt::Gone) };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(LockAttempt::Others),
            locked => locked?,
        }
        // It may have been removed while we waited for nothing but our turn.
        let ours = rustix::fs::fstat(&lock)?;
        match rustix::fs::lstat(path) {
            Ok(now) if (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino) => {
                Ok(LockAttempt::Ours(Self { path: path.to_owned(), lock }))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(LockAttempt::Gone),
            Err(e) => Err(e.into()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert!(LockedDir::adopt(&path).unwrap().is_none());
        let first = LockedDir::make(&path).unwrap().unwrap();
        assert!(LockedDir::make(&path).unwrap().is_none());
        assert!(LockedDir::adopt(&path).unwrap().is_none());
        drop(first);
        fs::write(path.join("left"), "").unwrap();
        let second = LockedDir::adopt(&path).unwrap().unwrap();
        fs::remove_dir_all(second.path()).unwrap();
        // While the old one is still locked, a new one of this name is another directory.
        assert!(LockedDir::make(&path).unwrap().is_some());
    }

    /// Others remove what they take for left over, also what is being made just now.
    #[test]
    fn a_new_directory_survives_a_concurrent_sweep() {
        let dir = tempfile::tempdir().unwrap();
        const ROUNDS: u32 = 200;
        let (now, path) = (AtomicU32::new(0), |round: u32| dir.path().join(round.to_string()));
        thread::scope(|scope| {
            scope.spawn(|| {
                while now.load(Relaxed) < ROUNDS {
                    if let Ok(Some(left)) = LockedDir::adopt(&path(now.load(Relaxed))) {
                        fs::remove_dir_all(left.path()).unwrap();
                    }
                }
            });
            for round in 0..ROUNDS {
                let made = LockedDir::make(&path(round)).unwrap().map(|owned| owned.path().is_dir());
                now.store(if made == Some(true) { round + 1 } else { ROUNDS }, Relaxed);
                assert_eq!(made, Some(true), "round {round}");
            }
        });
    }
}
