//! The socket for programs: whoever connects is given the memory with generations, to read, and may ask for a ring ([`super::program`]).
//!
//! Nothing is waited for, so one who stalls holds up nobody. The socket lies in a directory of the
//! service's user; a program in a container reaches it where somebody has mounted it there.

use super::wire;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_ring::files::{
    GREETING, GREETING_NUMBERS, GREETING_VERSION, MEMORIES_MAX, MOUNT_NUMBERS, MOUNTS_MAX, RING_WANTED,
};
use vellum_union::Generations;

/// Programs that may ask for a ring at the same time, and for how long.
const WAITING_MAX: usize = 32;
const PATIENCE: Duration = Duration::from_millis(500);

/// The sockets of a pool.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For the owner, who mounts.
    pub(super) control: UnixListener,
    /// For programs.
    pub(super) session: UnixListener,
}

/// The directory of the socket for programs, beside the pool's. It is what is mounted into containers: it stays when services, and
/// sockets with them, come and go.
#[must_use]
pub fn directory(socket: &Path) -> PathBuf {
    socket.with_extension("session")
}

/// Where the socket for programs is.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    directory(socket).join("socket")
}

/// Makes the directory of the socket for programs, where it is not there yet.
pub fn make_directory(socket: &Path) -> io::Result<()> {
    let dir = directory(socket);
    match dir.symlink_metadata() {
        Ok(there) if there.is_dir() => return Ok(()),
        // Older versions had the socket itself there.
        Ok(_) => fs::remove_file(&dir)?,
        Err(_) => {}
    }
    if let Some(above) = dir.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    match fs::create_dir(&dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))),
    }
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
    make_directory(socket)?;
    let listener = bind_at(&path(socket), 0o666)?;
    // A client that goes away between a look and the accept must not be waited for.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Greets one client, if there is one; the connection.
pub(super) fn answer(
    listener: &UnixListener,
    all: &[Arc<Generations>],
    mounts: &[[u64; MOUNT_NUMBERS]],
    namespace: u64,
) -> Option<UnixStream> {
    let answered = listener.accept().and_then(|(client, _)| {
        client.set_nonblocking(true)?;
        send(client.as_fd(), all, mounts, namespace)?;
        Ok(client)
    });
    answered.inspect_err(|error| tracing::debug!(%error, "a client of the socket for programs")).ok()
}

/// Clients that have been greeted and may ask for a ring.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<(UnixStream, Instant)>);

impl Waiting {
    /// Takes another in; whoever has waited longest is sent away.
    pub(super) fn extend(&mut self, client: Option<UnixStream>) {
        if self.0.len() >= WAITING_MAX {
            self.0.pop_front();
        }
        self.0.extend(client.map(|client| (client, Instant::now())));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnixStream> {
        self.0.iter().map(|(client, _)| client)
    }

    /// Calls `give` for those who have asked; those who have gone, say something else, or nothing, are sent away.
    pub(super) fn look(&mut self, mut give: impl FnMut(UnixStream)) {
        for (mut client, since) in std::mem::take(&mut self.0) {
            let mut asked = [0; 8];
            match client.read(&mut asked) {
                Ok(8) if u64::from_ne_bytes(asked) == RING_WANTED => give(client),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && since.elapsed() < PATIENCE => {
                    self.0.push_back((client, since));
                }
                _ => {}
            }
        }
    }
}

fn send(
    client: BorrowedFd<'_>,
    all: &[Arc<Generations>],
    mounts: &[[u64; MOUNT_NUMBERS]],
    namespace: u64,
) -> io::Result<()> {
    let mut numbers = [0u64; GREETING_NUMBERS];
    let mut descriptors = Vec::new();
    for generations in all.iter().take(MEMORIES_MAX) {
        // Opened once more, to read only: a descriptor shares its rights with its copies.
        descriptors.push(File::open(format!("/proc/self/fd/{}", generations.descriptor().as_raw_fd()))?);
    }
    let mounts = mounts.get(..mounts.len().min(MOUNTS_MAX)).unwrap_or_default();
    let head = [GREETING, GREETING_VERSION, descriptors.len() as u64, mounts.len() as u64, namespace];
    let ids = all.iter().map(|generations| generations.id()).take(descriptors.len());
    let ids = ids.chain(std::iter::repeat(0)).take(MEMORIES_MAX);
    let all = head.into_iter().chain(ids).chain(mounts.iter().flatten().copied());
    numbers.iter_mut().zip(all).for_each(|(to, from)| *to = from);
    let body: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    wire::send_whole(client, &body, &borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::io::{IoSliceMut, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use vellum_ring::files::GREETING_HEAD;

    fn receive(stream: &UnixStream) -> (Vec<u64>, Vec<OwnedFd>) {
        let mut body = [0; GREETING_NUMBERS * 8];
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
        let there = answer(&listener, &all, &[[7, 8, 9, 10]], 11).unwrap();
        let (numbers, descriptors) = receive(&client);
        assert_eq!(numbers[..7], [GREETING, GREETING_VERSION, 2, 1, 11, all[0].id(), all[1].id()]);
        let (ids, mounts) = numbers[GREETING_HEAD..].split_at(MEMORIES_MAX);
        assert!(ids[2..].iter().chain(&mounts[4..]).all(|number| *number == 0));
        assert_eq!(mounts[..4], [7, 8, 9, 10]);
        drop(there);
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
        answer(&listener, &all, &[], 0);
        let socket = path(&dir.path().join("p.sock"));
        for _ in 0..1000 {
            // Those that go away at once, those that stay and say nothing.
            drop(UnixStream::connect(&socket).unwrap());
            let stalling = UnixStream::connect(&socket).unwrap();
            answer(&listener, &all, &[], 0);
            answer(&listener, &all, &[], 0);
            drop(stalling);
        }
        let client = UnixStream::connect(&socket).unwrap();
        answer(&listener, &all, &[], 0);
        assert_eq!(receive(&client).1.len(), 1);
    }

    #[test]
    fn a_ring_is_for_those_who_ask_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind(&dir.path().join("p.sock")).unwrap();
        let socket = path(&dir.path().join("p.sock"));
        let mut waiting = Waiting::default();
        let mut clients: Vec<_> = (0..4).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        (0..4).for_each(|_| waiting.extend(answer(&listener, &[], &[], 0)));
        clients[0].write_all(&RING_WANTED.to_ne_bytes()).unwrap();
        clients[1].write_all(b"nonsense").unwrap();
        drop(clients.remove(2));
        let mut given = 0;
        waiting.look(|_| given += 1);
        // The last one has not said anything yet.
        assert_eq!((given, waiting.iter().count()), (1, 1));
        (0..2 * WAITING_MAX).for_each(|_| {
            let _client = UnixStream::connect(&socket).unwrap();
            waiting.extend(answer(&listener, &[], &[], 0));
        });
        assert_eq!(waiting.iter().count(), WAITING_MAX);
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
