//! Whether somebody writes to a file, by asking for a lease.

use crate::daemon::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Whether anybody, in whatever process, has the file open to be written; the descriptor itself must be open to be read only. The kernel
/// gives a lease for reading only where nobody has (fcntl(2), F_SETLEASE); it is given back at once.
///
/// EACCES: the file is another user's, without CAP_LEASE; EINVAL: the filesystem has no leases.
pub fn has_writers(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    match lease_to_read(fd) {
        Err(Errno::AGAIN) => Ok(true),
        other => other.and_then(|()| release_lease(fd)).map(|()| false),
    }
}

/// Takes a lease for reading: who opens the file to write waits until it is given back, or is told EAGAIN (`O_NONBLOCK`). EAGAIN: somebody
/// has it open to write.
pub fn lease_to_read(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_lease(fd, libc::F_RDLCK)
}

/// Gives a lease back.
pub fn release_lease(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_lease(fd, libc::F_UNLCK)
}

/// Opens a file with `O_NONBLOCK`, again and again for at most `max` while somebody has a lease on it: one that [`has_writers`] takes is
/// held for microseconds. EAGAIN: he keeps it.
pub fn open_beside_leases<T>(max: Duration, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    const LOOK: Duration = Duration::from_micros(50);
    let mut begin = None;
    loop {
        match open() {
            Err(Errno::AGAIN) if begin.get_or_insert_with(Instant::now).elapsed() < max => {
                std::thread::sleep(LOOK);
            }
            result => return result,
        }
    }
}

fn set_lease(fd: BorrowedFd<'_>, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Lets the process live when somebody opens a file in the moment in which [`has_writers`] has its lease: the kernel says so by SIGIO.
pub fn ignore_leases() {
    // SAFETY: no handler is given.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    #[test]
    fn open_writers_are_detected() {
        ignore_leases();
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = File::open(file.path()).unwrap();
        assert_eq!(has_writers(reader.as_fd()), Ok(true));
        let path = file.into_temp_path();
        assert_eq!(has_writers(reader.as_fd()), Ok(false));
        assert_eq!(has_writers(reader.as_fd()), Ok(false));
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(has_writers(reader.as_fd()), Ok(true));
        drop(writer);
        assert_eq!(has_writers(reader.as_fd()), Ok(false));
    }
}
