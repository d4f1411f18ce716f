//! Sockets of one's own machine: who is at the other end, and descriptors that are sent.

use crate::daemon::last_errno;
use rustix::io::{Errno, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Most descriptors that are sent at once; the kernel takes 253.
pub const SENT_AT_ONCE: usize = 128;

/// Of Linux 6.16, the same on all machines that this runs on.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Who was at the other end when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user, in the caller's user namespace.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// The process; None: it cannot be seen from here.
    pub process: Option<i32>,
}

fn option(socket: BorrowedFd<'_>, option: libc::c_int) -> Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: the kernel writes at most `len` bytes to `value`.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, to, &raw mut len) };
    if done == 0 { Ok(value) } else { Err(last_errno()) }
}

/// Who has connected.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut found).cast());
    // SAFETY: the kernel writes at most `len` bytes to the structure.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    let peer = Peer { uid: found.uid, gid: found.gid, process: (found.pid > 0).then_some(found.pid) };
    if done == 0 { Ok(peer) } else { Err(last_errno()) }
}

/// Waits for what comes next at a socket of this number, which whoever has started this program may have left, and leaves it there: how many bytes
/// that is. ENOTSOCK, EBADF: there is none.
pub fn peek_message(number: RawFd, to: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes no more than there is room for.
    let got = unsafe { libc::recv(number, to.as_mut_ptr().cast(), to.len(), libc::MSG_PEEK) };
    usize::try_from(got).map_err(|_| last_errno())
}

/// Nobody can send descriptors to a socket any more, nor to those that come of connections to it. ENOPROTOOPT before Linux 6.16.
pub fn refuse_rights(socket: BorrowedFd<'_>) -> Result<()> {
    let no: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, from) = (socket.as_raw_fd(), (&raw const no).cast());
    // SAFETY: the kernel reads so many bytes.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, from, len) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Whether nobody has been able to send descriptors to a socket since there is a connection.
#[must_use]
pub fn refuses_rights(socket: BorrowedFd<'_>) -> bool {
    option(socket, SO_PASSRIGHTS) == Ok(0)
}

/// Sends bytes together with descriptors, at most [`SENT_AT_ONCE`]; how many bytes went. EINVAL: there are more.
pub fn send_with(
    socket: BorrowedFd<'_>,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(body)], &mut control, flags | SendFlags::NOSIGNAL)
}

/// Whether something that was sent has not been taken yet: as long as descriptors are under way, that is so.
pub fn has_unread(socket: BorrowedFd<'_>) -> Result<bool> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one number; the request is SIOCOUTQ, which has this number too.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { Ok(bytes != 0) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn send_descriptor(socket: &UnixStream) -> Result<usize> {
        send_with(socket.as_fd(), b"12345678", &[socket.as_fd()], SendFlags::empty())
    }

    #[test]
    fn unread_messages_are_detected() {
        let (one, mut other) = UnixStream::pair().unwrap();
        assert_eq!(has_unread(one.as_fd()), Ok(false));
        send_descriptor(&one).unwrap();
        assert_eq!(has_unread(one.as_fd()), Ok(true));
        other.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(has_unread(one.as_fd()), Ok(true), "it can still be read");
        other.read_exact(&mut [0; 8]).unwrap();
        assert_eq!(has_unread(one.as_fd()), Ok(false));
        let (one, other) = UnixStream::pair().unwrap();
        send_descriptor(&one).unwrap();
        drop(other);
        assert_eq!(has_unread(one.as_fd()), Ok(false), "nobody can take it any more");
    }

    #[test]
    fn a_socket_can_refuse_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let before = UnixStream::connect(dir.path().join("s")).unwrap();
        match refuse_rights(listener.as_fd()) {
            Err(Errno::NOPROTOOPT) => {
                return println!("SKIPPED: the kernel lets all sockets take descriptors");
            }
            done => done.unwrap(),
        }
        let after = UnixStream::connect(dir.path().join("s")).unwrap();
        let [first, second] = [(); 2].map(|()| listener.accept().unwrap().0);
        assert!(!refuses_rights(first.as_fd()) && refuses_rights(second.as_fd()));
        assert!(send_descriptor(&before).is_ok());
        assert_eq!(send_descriptor(&after), Err(Errno::PERM));
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        let found = peer(one.as_fd()).unwrap();
        let expected = (rustix::process::geteuid().as_raw(), Some(std::process::id().cast_signed()));
        assert_eq!((found.uid, found.process), expected);
    }
}
