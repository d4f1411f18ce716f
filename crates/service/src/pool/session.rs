//! The socket for programs: whoever connects is told what mounts there are, and may ask for a memory with generations, to read, or for a
//! ring ([`super::program`]).
//!
//! Nothing is waited for, so one who stalls holds up nobody. The socket lies in a directory of the
//! service's user; a program in a container reaches it where somebody has mounted it there.

use super::underway::{Line, Underway};
use super::wire;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_ring::files::{GREETING, GREETING_NUMBERS, GREETING_VERSION, MOUNT_NUMBERS, MOUNTS_MAX};
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
    refuse_rights(&listener);
    Ok(listener)
}

/// No program sends descriptors, where the kernel knows how to refuse them.
pub(super) fn refuse_rights(listener: &UnixListener) {
    if let Err(error) = vellum_sys::refuse_rights(listener.as_fd()) {
        tracing::debug!(%error, "programs may send descriptors");
    }
}

/// Whether it takes descriptors or memory to hear a client, who waits until there are some.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Greets one client, if there is one; the connection.
pub(super) fn answer(
    listener: &UnixListener,
    underway: &Arc<Underway>,
    mounts: &[[u64; MOUNT_NUMBERS]],
    namespace: u64,
) -> io::Result<Line> {
    let answered = listener.accept().and_then(|(client, _)| {
        client.set_nonblocking(true)?;
        let peer = vellum_sys::peer(client.as_fd())?;
        let line = Line::new(Arc::clone(underway), client, peer.uid);
        wire::send_whole(line.fd()?, &greeting(mounts, namespace), &[])?;
        Ok(line)
    });
    answered.inspect_err(|error| tracing::debug!(%error, "a client of the socket for programs"))
}

fn greeting(mounts: &[[u64; MOUNT_NUMBERS]], namespace: u64) -> Vec<u8> {
    let mounts = mounts.get(..mounts.len().min(MOUNTS_MAX)).unwrap_or_default();
    let head = [GREETING, GREETING_VERSION, mounts.len() as u64, namespace];
    let all = head.into_iter().chain(mounts.iter().flatten().copied()).chain(std::iter::repeat(0));
    all.take(GREETING_NUMBERS).flat_map(u64::to_ne_bytes).collect()
}

/// Gives a program a memory of generations, to read only.
pub(super) fn send_memory(line: &mut Line, memory: &Generations) -> io::Result<()> {
    if !line.may_send_first() {
        return Err(Errno::AGAIN.into());
    }
    // Opened once more: a descriptor shares its rights with its copies.
    let file = File::open(format!("/proc/self/fd/{}", memory.descriptor().as_raw_fd()))?;
    wire::send_whole(line.fd()?, &memory.id().to_ne_bytes(), &[file.as_fd()])
}

/// Clients that have been greeted and may ask for something.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<(Line, Instant)>);

impl Waiting {
    /// Takes another in; whoever has waited longest is sent away.
    pub(super) fn extend(&mut self, client: Option<Line>) {
        if self.0.len() >= WAITING_MAX {
            self.0.pop_front();
        }
        self.0.extend(client.map(|client| (client, Instant::now())));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnixStream> {
        self.0.iter().filter_map(|(client, _)| client.socket())
    }

    /// Calls `give` for those who have asked, with what they want; those who have gone, say something else, or nothing, are sent away.
    /// What they say is looked at, and not taken: descriptors may have come with it, and who takes them has to close them.
    pub(super) fn look(&mut self, mut give: impl FnMut(Line, u64)) {
        for (client, since) in std::mem::take(&mut self.0) {
            let mut asked = [0; 8];
            let Ok(fd) = client.fd() else { continue };
            match recv(fd, &mut asked, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((8, _)) => give(client, u64::from_ne_bytes(asked)),
                Err(Errno::AGAIN) if since.elapsed() < PATIENCE => self.0.push_back((client, since)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    use std::io::{IoSliceMut, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use vellum_ring::files::RING_WANTED;

    fn receive(stream: &UnixStream, len: usize) -> (Vec<u64>, Vec<OwnedFd>) {
        let mut body = vec![0; len * 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let got = recvmsg(stream, &mut [IoSliceMut::new(&mut body)], &mut control, flags).unwrap();
        assert_eq!(got.bytes, body.len());
        let rights = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(some) => some.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let rights = rights.collect();
        (body.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect(), rights)
    }

    /// A listener, where it is, and a client that has been greeted.
    fn greeted(
        dir: &Path,
        mounts: &[[u64; MOUNT_NUMBERS]],
    ) -> (UnixListener, Arc<Underway>, UnixStream, Line) {
        let listener = bind(&dir.join("p.sock")).unwrap();
        let underway = Arc::default();
        let client = UnixStream::connect(path(&dir.join("p.sock"))).unwrap();
        let line = answer(&listener, &underway, mounts, 99).unwrap();
        (listener, underway, client, line)
    }

    #[test]
    fn what_is_given_can_be_read_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let all = [(); 2].map(|()| Generations::create().unwrap());
        let (_listener, _, client, mut line) = greeted(dir.path(), &[[1, 2, 3, 0]; 3]);
        let (numbers, none) = receive(&client, GREETING_NUMBERS);
        assert!(none.is_empty());
        assert_eq!(numbers[..5], [GREETING, GREETING_VERSION, 3, 99, 1]);
        send_memory(&mut line, &all[1]).unwrap();
        let (id, memories) = receive(&client, 1);
        assert_eq!((id[0], memories.len()), (all[1].id(), 1));
        let len = rustix::fs::fstat(&memories[0]).unwrap().st_size;
        assert_eq!(rustix::fs::ftruncate(&memories[0], len as u64), Err(Errno::INVAL));
        assert!(File::from(memories[0].try_clone().unwrap()).write_all(b"x").is_err());
        let by_path = format!("/proc/self/fd/{}", memories[0].as_raw_fd());
        let attr = rustix::fs::stat(&*by_path).unwrap();
        assert_eq!(attr.st_mode & 0o777, 0o600, "others could open it for writing");
        // Its size stays, also for who owns it.
        assert_eq!(rustix::fs::ftruncate(all[0].descriptor(), 4096), Err(Errno::PERM));
    }

    #[test]
    fn nobody_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, underway, _first, _line) = greeted(dir.path(), &[]);
        let socket = path(&dir.path().join("p.sock"));
        assert!(answer(&listener, &underway, &[], 0).is_err());
        for _ in 0..1000 {
            // Those that go away at once, those that stay and say nothing.
            drop(UnixStream::connect(&socket).unwrap());
            let stalling = UnixStream::connect(&socket).unwrap();
            let _ = answer(&listener, &underway, &[], 0);
            let _ = answer(&listener, &underway, &[], 0);
            drop(stalling);
        }
        let client = UnixStream::connect(&socket).unwrap();
        let _line = answer(&listener, &underway, &[], 0).unwrap();
        assert_eq!(receive(&client, GREETING_NUMBERS).0[0], GREETING);
    }

    #[test]
    fn a_ring_is_for_those_who_ask_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, underway, first, line) = greeted(dir.path(), &[]);
        let socket = path(&dir.path().join("p.sock"));
        let mut waiting = Waiting::default();
        waiting.extend(Some(line));
        let mut clients: Vec<_> = (0..3).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        (0..3).for_each(|_| waiting.extend(answer(&listener, &underway, &[], 0).ok()));
        clients.push(first);
        clients[0].write_all(&RING_WANTED.to_ne_bytes()).unwrap();
        clients[1].write_all(b"short").unwrap();
        drop(clients.remove(2));
        let mut given = Vec::new();
        waiting.look(|_, asked| given.push(asked));
        // The last one has not said anything yet.
        assert_eq!((given, waiting.iter().count()), (vec![RING_WANTED], 1));
        (0..2 * WAITING_MAX).for_each(|_| {
            let _client = UnixStream::connect(&socket).unwrap();
            waiting.extend(answer(&listener, &underway, &[], 0).ok());
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
