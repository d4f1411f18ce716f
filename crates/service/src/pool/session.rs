//! The socket for programs: whoever connects is given the memory with generations, to read, and sent away.
//!
//! Nothing is read from a client and nothing is waited for, so one who stalls holds up nobody. The socket lies in a directory of the
//! service's user; a program in a container reaches it where somebody has mounted it there.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_union::Generations;

/// How every answer begins. The preload library knows it, as it knows all of the form.
const MAGIC: u64 = 0x7665_6c6c_7365_7373;
/// Version of the form: magic, version, number of memories (64 bits each), their ids, in the order of their descriptors; the rest is 0.
const VERSION: u64 = 1;
/// Most memories of an answer, those of the newest mounts. The kernel lets 253 descriptors travel together.
const MEMORIES_MAX: usize = 128;
/// Numbers of an answer.
const NUMBERS: usize = 3 + MEMORIES_MAX;

/// The sockets of a pool.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For the owner, who mounts.
    pub(super) control: UnixListener,
    /// For programs.
    pub(super) session: UnixListener,
}

/// Where the socket for programs is, beside the pool's.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    socket.with_extension("session")
}

/// Makes a socket that `mode` lets use, in the place of what an earlier service may have left. It is bound by another name first:
/// whoever finds it can talk to it, and nobody else can at any time.
pub(super) fn bind_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push("-new");
    let fresh = PathBuf::from(fresh);
    for left in [path, &fresh] {
        match fs::remove_file(left) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Makes the socket for programs.
pub(super) fn bind(socket: &Path) -> io::Result<UnixListener> {
    let listener = bind_at(&path(socket), 0o666)?;
    // A client that goes away between a look and the accept must not be waited for.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers one client, if there is one.
pub(super) fn answer(listener: &UnixListener, all: &[Arc<Generations>]) {
    let answered = match listener.accept() {
        Ok((client, _)) => client.set_nonblocking(true).and_then(|()| send(client.as_fd(), all)),
        Err(e) => Err(e),
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "a client of the socket for programs");
    }
}

fn send(client: BorrowedFd<'_>, all: &[Arc<Generations>]) -> io::Result<()> {
    let mut numbers = [0u64; NUMBERS];
    let mut descriptors = Vec::new();
    for generations in all.iter().take(MEMORIES_MAX) {
        // Opened once more, to read only: a descriptor shares its rights with its copies.
        descriptors.push(File::open(format!("/proc/self/fd/{}", generations.descriptor().as_raw_fd()))?);
    }
    let head = [MAGIC, VERSION, descriptors.len() as u64];
    let ids = all.iter().map(|generations| generations.id()).take(descriptors.len());
    numbers.iter_mut().zip(head.into_iter().chain(ids)).for_each(|(to, from)| *to = from);
    let body: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MEMORIES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // All of it or nothing: it is less than any socket's buffer.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(client, &[IoSlice::new(&body)], &mut control, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::io::{IoSliceMut, Read};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn receive(stream: &UnixStream) -> (Vec<u64>, Vec<OwnedFd>) {
        let mut body = [0; NUMBERS * 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MEMORIES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(stream, &mut [IoSliceMut::new(&mut body)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .unwrap();
        assert_eq!(got.bytes, body.len());
        let rights = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(some) => some.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let rights = rights.collect();
        (body.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect(), rights)
    }

    #[test]
    fn what_is_given_can_be_read_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind(&dir.path().join("p.sock")).unwrap();
        let all = [Arc::new(Generations::create().unwrap()), Arc::new(Generations::create().unwrap())];
        let mut client = UnixStream::connect(path(&dir.path().join("p.sock"))).unwrap();
        answer(&listener, &all);
        let (numbers, descriptors) = receive(&client);
        assert_eq!(numbers[..5], [MAGIC, VERSION, 2, all[0].id(), all[1].id()]);
        assert!(numbers[5..].iter().all(|number| *number == 0));
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the connection stays");
        assert_eq!(descriptors.len(), 2);
        for descriptor in &descriptors {
            assert_eq!(rustix::fs::ftruncate(descriptor, 0), Err(Errno::INVAL));
            assert_eq!(rustix::io::write(descriptor, &[1]), Err(Errno::BADF));
            // Mapping it for writing is refused to whom may not write it, which only the mode of the descriptor says.
            let flags = rustix::fs::fcntl_getfl(descriptor).unwrap();
            assert_eq!(flags & rustix::fs::OFlags::RWMODE, rustix::fs::OFlags::RDONLY);
            let attr = rustix::fs::fstat(descriptor).unwrap();
            assert_eq!(attr.st_mode & 0o777, 0o600, "others could open it for writing");
        }
        // Its size stays, also for who owns it.
        assert_eq!(rustix::fs::ftruncate(all[0].descriptor(), 4096), Err(Errno::PERM));
    }

    #[test]
    fn nobody_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind(&dir.path().join("p.sock")).unwrap();
        let all = [Arc::new(Generations::create().unwrap())];
        answer(&listener, &all);
        let socket = path(&dir.path().join("p.sock"));
        for _ in 0..1000 {
            // Those that go away at once, those that stay and say nothing.
            drop(UnixStream::connect(&socket).unwrap());
            let stalling = UnixStream::connect(&socket).unwrap();
            answer(&listener, &all);
            answer(&listener, &all);
            drop(stalling);
        }
        let client = UnixStream::connect(&socket).unwrap();
        answer(&listener, &all);
        assert_eq!(receive(&client).1.len(), 1);
    }

    #[test]
    fn a_new_socket_takes_the_place_of_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("p.sock");
        drop(bind(&socket).unwrap());
        let listener = bind(&socket).unwrap();
        let _client = UnixStream::connect(path(&socket)).unwrap();
        assert!(listener.accept().is_ok());
        assert_eq!(fs::metadata(path(&socket)).unwrap().permissions().mode() & 0o777, 0o666);
    }
}
