//! Processes that share one table of descriptors: what one has open, the other has, and it stays open when either dies.

use crate::daemon::{Fork, last_errno};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Duplicates the process as [`crate::fork`] does, but both go on with *the same* table of descriptors. EBUSY when it has several
/// threads. Nothing is opened for that, for somebody else may be looking at the table.
///
/// The C library does not hear of it: in the child, everything that it keeps per thread is right in threads that are started from
/// then on, and the first thread should do nothing but start one and wait for it.
pub fn fork_with_descriptors() -> Result<Fork, Errno> {
    if !is_single_threaded() {
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

/// Whether this is the only thread of its process.
fn is_single_threaded() -> bool {
    // SAFETY: a process of one thread has nothing to leave, and of others the kernel says EINVAL.
    unsafe { libc::unshare(libc::CLONE_THREAD) == 0 }
}

/// Ends this process as if it were killed, with an exit status: nothing that a library would do at the end is done. Such things take
/// for granted that the library's threads have ended.
pub fn end_process(status: i32) -> ! {
    // SAFETY: takes a number; nothing goes on afterwards.
    unsafe { libc::_exit(status) }
}

/// Closes all descriptors of this process but `own` and the standard ones, whoever opened them: for a process that uses none of the
/// others from then on, and shares its table with nobody.
pub fn close_all_but(own: &BTreeSet<RawFd>) {
    let mut first: libc::c_uint = 3;
    let kept = own.iter().filter_map(|fd| libc::c_uint::try_from(*fd).ok()).filter(|fd| *fd > 2);
    for last in kept.map(Some).chain([None]) {
        let (until, next) = last.map_or((libc::c_uint::MAX, first), |kept| (kept - 1, kept + 1));
        if first <= until {
            // SAFETY: close_range takes plain numbers; who uses one of them all the same gets EBADF.
            unsafe { libc::syscall(libc::SYS_close_range, first, until, 0) };
        }
        first = next;
    }
}

/// Descriptors that were open before this process opened any: a predecessor's.
#[derive(Debug)]
pub struct InheritedFds(BTreeSet<RawFd>);

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

/// Has the kernel send this process a signal when something comes through a pipe, whoever writes to it: who may signal nobody can wake
/// it so.
pub fn signal_on_data(pipe: impl AsFd, signal: i32) -> Result<(), Errno> {
    let fd = pipe.as_fd().as_raw_fd();
    // SAFETY: getpid cannot fail and takes nothing.
    let this = unsafe { libc::getpid() };
    for (command, value) in [(F_SETSIG, signal), (libc::F_SETOWN, this)] {
        // SAFETY: both commands take plain numbers; `pipe` is open for the whole call.
        if unsafe { libc::fcntl(fd, command, value) } != 0 {
            return Err(last_errno());
        }
    }
    let flags = rustix::fs::fcntl_getfl(&pipe)?;
    rustix::fs::fcntl_setfl(&pipe, flags | OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned()))
}

/// fcntl(2)'s F_SETSIG, which the libc crate lacks.
const F_SETSIG: libc::c_int = 10;

/// There is one table, so only one may give descriptors out of it.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl InheritedFds {
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

    /// Gives one back that was taken: it stays open until somebody takes it again, or the rest.
    pub fn give_back(&mut self, descriptor: OwnedFd) {
        self.0.insert(descriptor.into_raw_fd());
    }

    /// Takes all memory files of a name.
    pub fn take_memories(&mut self, name: &CStr) -> Vec<OwnedFd> {
        let wanted = [b"/memfd:", name.to_bytes(), b" (deleted)"].concat();
        let link = |number: &RawFd| rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new());
        let is_wanted = |number: &RawFd| link(number).is_ok_and(|link| link.to_bytes() == wanted);
        let numbers: Vec<RawFd> = self.numbers().filter(is_wanted).collect();
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Takes what nobody has taken: what the predecessor was in the middle of.
    pub fn take_rest(mut self) -> Vec<OwnedFd> {
        std::iter::from_fn(|| self.0.first().copied().and_then(|number| self.take(number))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_some_are_closed() {
        // In a process of its own, for the other tests have theirs.
        let script = "exec 5</dev/null 6</dev/null 9</dev/null; exec \"$0\" --exact clone_files::tests::closes --ignored";
        let this = std::env::current_exe().unwrap();
        // What it prints is no result of these tests.
        let output = std::process::Command::new("bash").args(["-c", script]).arg(this).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    #[ignore = "closes what others have open: run by another test"]
    fn closes() {
        assert!(open_descriptors().is_superset(&BTreeSet::from([5, 6, 9])));
        close_all_but(&BTreeSet::from([0, 6]));
        let left: Vec<_> = open_descriptors().into_iter().filter(|fd| *fd > 2).collect();
        assert_eq!(left, [6]);
    }

    #[test]
    fn a_descriptor_given_back_stays_open_and_is_taken_again() {
        let (file, other) = rustix::pipe::pipe().unwrap();
        let number = file.into_raw_fd();
        let mut inherited = InheritedFds(BTreeSet::from([number]));
        let taken = inherited.take(number).unwrap();
        assert!(inherited.take(number).is_none());
        inherited.give_back(taken);
        assert!(inherited.numbers().eq([number]));
        rustix::io::write(&other, b"x").unwrap();
        assert_eq!(inherited.take_rest().len(), 1);
    }

    #[test]
    fn a_process_with_threads_is_not_duplicated() {
        let other = std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(50)));
        assert_eq!(fork_with_descriptors(), Err(Errno::BUSY));
        other.join().unwrap();
    }
}
