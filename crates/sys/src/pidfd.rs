//! A process at the other end of a socket, held by a descriptor, and who it is now.

use crate::daemon::last_errno;
use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Of Linux 6.5, the same on all machines that this runs on.
const SO_PEERPIDFD: libc::c_int = 77;
/// pidfd_open(2)'s PIDFD_THREAD, since Linux 6.9: any thread, as those that requests come from.
pub const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(rustix::fs::OFlags::EXCL.bits());

const GET_INFO: Opcode = opcode::read_write::<Info>(0xff, 11);
/// The ids are there.
const CREDS: u64 = 2;

/// `struct pidfd_info`, as it was first (Linux 6.13).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ruid: u32,
    rgid: u32,
    euid: u32,
    egid: u32,
    suid: u32,
    sgid: u32,
    fsuid: u32,
    fsgid: u32,
    exit_code: i32,
}

/// Ids of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Effective user and group.
    pub effective: (u32, u32),
    /// Those by which its accesses to files are judged.
    pub files: (u32, u32),
}

/// The process that has connected to a socket. ENOPROTOOPT before Linux 6.5; ESRCH, or EINVAL: it is gone.
pub fn peer_process(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mut fd: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `fd`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor, of nobody else's.
    if fd >= 0 { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) } else { Err(Errno::BADF) }
}

fn info_of(process: BorrowedFd<'_>) -> Result<Info> {
    let mut info = Info { mask: CREDS, ..Info::default() };
    // SAFETY: the opcode is PIDFD_GET_INFO with the size of this structure, which the kernel reads and fills.
    let request = unsafe { Updater::<GET_INFO, Info>::new(&mut info) };
    // SAFETY: a request of this form.
    unsafe { ioctl(process, request) }?;
    Ok(info)
}

/// The process of a thread. Before Linux 6.13 as /proc says.
#[must_use]
pub fn process_of_thread(id: u32) -> Option<u32> {
    let thread = pidfd_open(Pid::from_raw(id.cast_signed())?, THREAD);
    if let Some(info) = thread.ok().and_then(|thread| info_of(thread.as_fd()).ok()) {
        return Some(info.tgid);
    }
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Who a process is now. ENOTTY before Linux 6.13; ESRCH: it is gone, or not to be seen from here.
pub fn ids_of(process: BorrowedFd<'_>) -> Result<Ids> {
    let info = info_of(process)?;
    if info.mask & CREDS == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(Ids { effective: (info.euid, info.egid), files: (info.fsuid, info.fsgid) })
}

/// User and group by which accesses of a thread to files are judged. None: before Linux 6.13, and if it is gone or not to be seen
/// from here.
#[must_use]
pub fn ids_of_thread(id: u32) -> Option<(u32, u32)> {
    let thread = pidfd_open(Pid::from_raw(id.cast_signed())?, THREAD).ok()?;
    Some(ids_of(thread.as_fd()).ok()?.files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_process_is_identified() {
        let (one, _other) = UnixStream::pair().unwrap();
        let told = peer_process(one.as_fd()).and_then(|process| ids_of(process.as_fd()));
        match told {
            Ok(ids) => {
                let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                assert_eq!(ids, Ids { effective: own, files: own });
            }
            Err(errno) => eprintln!("SKIPPED: this kernel does not tell ({errno})"),
        }
    }

    #[test]
    fn a_thread_has_the_ids_of_its_process() {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let id = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let told = std::thread::spawn(move || ids_of_thread(id())).join().unwrap();
        assert!(told.is_none_or(|ids| ids == own), "{told:?}");
        assert_eq!(ids_of_thread(0), None);
        assert_eq!(told.is_some(), ids_of_thread(std::process::id()).is_some());
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let id = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let told = std::thread::spawn(move || process_of_thread(id())).join().unwrap();
        assert_eq!(told, Some(std::process::id()));
        assert_eq!(process_of_thread(0), None);
    }

    #[test]
    fn a_descriptor_without_a_process_has_no_ids() {
        assert!(ids_of(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
