//! One writer per upper layer, and one user per work directory.

use crate::failure::Failure;
use crate::mounts::mount_copies::MountCopy;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use vellum_sys::{LockKind, Real, Sys};

/// How long a dying predecessor is waited for. Between an unmount and the end of the process that served it are
/// some milliseconds, more on a busy machine.
pub const PREDECESSOR_WAIT: Duration = Duration::from_secs(2);

/// Time between two attempts at first; it doubles up to [`ATTEMPT_GAP_MAX`].
const ATTEMPT_GAP: Duration = Duration::from_micros(500);

/// Longest time between two attempts.
const ATTEMPT_GAP_MAX: Duration = Duration::from_millis(10);

/// The right to a directory; ends when dropped, or with the process.
///
/// It is a lock on the directory itself, so that it leaves no file behind and holds whatever else two mounts have in
/// common. While somebody waits for it, he has a shared lock of another kind on the directory, by which the holder sees that.
#[derive(Debug)]
pub struct DirLock(OwnedFd);

impl From<OwnedFd> for DirLock {
    /// A right that another process has taken and handed over.
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<DirLock> for OwnedFd {
    fn from(lock: DirLock) -> Self {
        lock.0
    }
}

impl DirLock {
    /// Takes the lock of the directory that `option` names, waiting up to `wait` for another to let go of it.
    /// `taken`: what to say, and what to do about it, when that is in vain.
    pub fn take(option: &str, path: &Path, wait: Duration, taken: &str) -> Result<Self, Failure> {
        let shown = path.display();
        let dir =
            open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
                Failure::input(format!("{option} {shown}: cannot open it"))
                    .because(e)
                    .remedy("make it readable")
            })?;
        let end = Instant::now() + wait;
        let mut gap = ATTEMPT_GAP;
        let mut waiting = false;
        loop {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    if waiting {
                        // It is only a hint.
                        let _ = Real.ofd_lock(dir.as_fd(), LockKind::Unlock);
                    }
                    return Ok(Self(dir));
                }
                Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                    waiting = waiting || Real.ofd_lock(dir.as_fd(), LockKind::Shared).is_ok();
                    std::thread::sleep(gap);
                }
                Err(Errno::WOULDBLOCK) => {
                    let why = MountCopy::of_locked(&dir).map_or_else(
                        || taken.to_owned(),
                        |elsewhere| format!("a mount that was taken away still writes to it: {elsewhere}"),
                    );
                    return Err(Failure::system(format!("{option} {shown}: {why}")));
                }
                Err(Errno::INTR) => continue,
                Err(e) => {
                    // Some network filesystems lock no directories; a mount without protection beats none.
                    tracing::warn!("{option} {shown}: cannot be locked against a second mount: {e}");
                    return Ok(Self(dir));
                }
            }
            gap = (gap * 2).min(ATTEMPT_GAP_MAX);
        }
    }

    /// Gives the right away, whoever else has a descriptor of it.
    pub(crate) fn release(&self) {
        if let Err(error) = flock(&self.0, FlockOperation::Unlock) {
            tracing::debug!(%error, "a directory stays locked until this process ends");
        }
    }

    /// Whether somebody waits for it.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        vellum_sys::is_ofd_shared(self.0.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(path: &Path, wait: Duration) -> Result<DirLock, Failure> {
        DirLock::take("upperdir", path, wait, "taken; wait")
    }

    #[test]
    fn a_second_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = take(dir.path(), Duration::ZERO).unwrap();
        let refused = take(dir.path(), Duration::from_millis(20)).unwrap_err();
        assert_eq!(refused.exit_status(), 1);
        assert!(refused.to_string().contains("taken; wait"), "{refused}");
        drop(first);
        // A child that another test has just forked has it until it is another program.
        take(dir.path(), Duration::from_secs(5)).unwrap();
    }

    #[test]
    fn a_dying_predecessor_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = take(dir.path(), Duration::ZERO).unwrap();
        let dying = std::thread::spawn(move || {
            let begin = Instant::now();
            while !first.has_waiters() {
                assert!(begin.elapsed() < Duration::from_secs(10), "nobody is seen to wait");
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(first);
        });
        let second = take(dir.path(), PREDECESSOR_WAIT).unwrap();
        dying.join().unwrap();
        assert!(!second.has_waiters(), "who has it waits for it");
        take(dir.path(), Duration::ZERO).unwrap_err();
        assert!(!second.has_waiters(), "who has given up waits for it");
    }

    #[test]
    fn a_file_instead_of_a_directory_is_bad_input() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(take(file.path(), Duration::ZERO).unwrap_err().exit_status(), 2);
    }
}
