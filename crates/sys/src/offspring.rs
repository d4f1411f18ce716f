//! Processes that share one table of descriptors: what one has open, the other has, and it stays open when either dies.

use crate::daemon::{Fork, last_errno, thread_count};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Duplicates the process as [`crate::fork`] does, but both go on with *the same* table of descriptors. EBUSY when it has several
/// threads.
///
/// The C library does not hear of it: in the child, everything that it keeps per thread is right in threads that are started from
/// then on, and the first thread should do nothing but start one and wait for it.
pub fn fork_with_descriptors() -> Result<Fork, Errno> {
    if thread_count() != Some(1) {
        return Err(Errno::BUSY);
    }
    let flags = libc::c_long::from(libc::CLONE_FILES | libc::SIGCHLD);
    let null = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: without CLONE_VM and with no stack of its own the child goes on with a copy of this memory, as after fork. The
    // process has one thread, so every lock and every piece of memory is as consistent in the child as it is here.
    match unsafe { libc::syscall(libc::SYS_clone, flags, null, null, null, null) } {
        0 => {
            // What is in the table is the child's to take over, now that its parent does not use it.
            TAKEN.store(false, Ordering::Relaxed);
            Ok(Fork::Child)
        }
        raw => i32::try_from(raw)
            .ok()
            .and_then(Pid::from_raw)
            .filter(|_| raw > 0)
            .map(Fork::Parent)
            .ok_or_else(last_errno),
    }
}

/// Descriptors that were open before this process opened any: a predecessor's.
#[derive(Debug)]
pub struct Inherited(BTreeSet<RawFd>);

/// The numbers of all descriptors that this process has open.
#[must_use]
pub fn open_descriptors() -> BTreeSet<RawFd> {
    listed().unwrap_or_default()
}

/// The table as /proc shows it, without the descriptor that is open to look.
fn listed() -> Option<BTreeSet<RawFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()).ok()?;
    let number = own.as_raw_fd();
    let mut found = BTreeSet::new();
    for entry in Dir::read_from(&own).ok()? {
        let entry = entry.ok()?;
        let fd = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        found.extend(fd.filter(|fd| *fd != number));
    }
    // `read_from` opens the directory once more.
    found.retain(|fd| rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).is_ok());
    Some(found)
}

/// Lets every descriptor stay open when this process starts another program in its place.
pub fn keep_over_exec() -> Result<(), Errno> {
    for fd in listed().ok_or(Errno::NOENT)? {
        // SAFETY: F_SETFD takes plain numbers; of a descriptor that has been closed in the meantime it says EBADF.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 && last_errno() != Errno::BADF {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// There is one table, so only one may give descriptors out of it.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl Inherited {
    /// All descriptors of the process but `own` and the standard ones. To be called once, before anything else is opened; None the
    /// second time, and when /proc cannot be read.
    #[must_use]
    pub fn all_but(own: &BTreeSet<RawFd>) -> Option<Self> {
        if TAKEN.swap(true, Ordering::Relaxed) {
            return None;
        }
        let found = listed()?;
        Some(Self(found.into_iter().filter(|fd| *fd > 2 && !own.contains(fd)).collect()))
    }
    /// The numbers that have not been taken.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0.iter().copied()
    }

    /// Takes one; None if there is no such descriptor, or it has been taken.
    pub fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        if !self.0.remove(&number) {
            return None;
        }
        // SAFETY: the number was open before this process opened anything, so nothing else owns it; and it has just left the set,
        // so nothing else will.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Closes what nobody has taken: what the predecessor was in the middle of.
    pub fn close_rest(mut self) {
        while let Some(number) = self.0.first().copied() {
            drop(self.take(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_duplicated() {
        let other = std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(50)));
        assert_eq!(fork_with_descriptors(), Err(Errno::BUSY));
        other.join().unwrap();
    }
}
