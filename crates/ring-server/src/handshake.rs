//! The socket for programs: whoever connects is told what mounts there are, and may ask for a memory to read, or for a ring
//! ([`crate::program`]).
//!
//! Nothing is waited for, so one who stalls holds up nobody.

use crate::inflight_fds::{InflightFds, Line};
use crate::mount::Readable;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_ring::files::{GREETING, GREETING_NUMBERS, GREETING_VERSION, MOUNT_NUMBERS, MOUNTS_MAX};

/// Programs that may ask for a ring at the same time, and for how long.
const WAITING_MAX: usize = 32;
const PATIENCE: Duration = Duration::from_millis(500);

/// Greets one client, if there is one; the connection.
pub(crate) fn answer(
    listener: &UnixListener,
    inflight: &Arc<InflightFds>,
    mounts: &[[u64; MOUNT_NUMBERS]],
    namespace: u64,
) -> io::Result<Line> {
    let answered = listener.accept().and_then(|(client, _)| {
        client.set_nonblocking(true)?;
        let peer = vellum_sys::peer(client.as_fd())?;
        let line = Line::new(Arc::clone(inflight), client, peer.uid);
        line.send(&greeting(mounts, namespace), &[])?;
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

/// Gives a program a memory, to read only.
pub(crate) fn send_memory(line: &mut Line, memory: &Readable) -> io::Result<()> {
    // Opened once more: a descriptor shares its rights with its copies.
    let file = File::open(format!("/proc/self/fd/{}", memory.memory.as_fd().as_raw_fd()))?;
    line.send_first(memory.id, file.as_fd())
}

/// Clients that have been greeted and may ask for something.
#[derive(Debug, Default)]
pub struct PendingClients(VecDeque<(Line, Instant)>);

impl PendingClients {
    /// Takes another in; whoever has waited longest is sent away.
    pub(crate) fn extend(&mut self, client: Option<Line>) {
        if self.0.len() >= WAITING_MAX {
            self.0.pop_front();
        }
        self.0.extend(client.map(|client| (client, Instant::now())));
    }

    /// Their connections, which can be read from when they have asked, or are gone.
    pub fn iter(&self) -> impl Iterator<Item = &UnixStream> {
        self.0.iter().filter_map(|(client, _)| client.socket())
    }

    /// Calls `give` for those who have asked, with what they want; those who have gone, say something else, or nothing, are sent away.
    /// What they say is looked at, and not taken: descriptors may have come with it, and who takes them has to close them.
    pub(crate) fn look(&mut self, mut give: impl FnMut(Line, u64)) {
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
pub(crate) mod tests {
    use super::*;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    use std::io::{IoSliceMut, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use vellum_ring::files::RING_WANTED;
    use vellum_sys::SharedRegion;

    /// So many numbers that were sent, with the descriptors that came along.
    pub(crate) fn receive(stream: &UnixStream, len: usize) -> (Vec<u64>, Vec<OwnedFd>) {
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
    ) -> (UnixListener, Arc<InflightFds>, UnixStream, Line) {
        let listener = UnixListener::bind(dir.join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let inflight = Arc::default();
        let client = UnixStream::connect(dir.join("socket")).unwrap();
        let line = answer(&listener, &inflight, mounts, 99).unwrap();
        (listener, inflight, client, line)
    }

    #[test]
    fn handed_out_memory_is_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let words = Arc::new(SharedRegion::create(c"vellum-test", 8).unwrap());
        let memory = Readable { id: 7, memory: words.clone() };
        let (_listener, _, client, mut line) = greeted(dir.path(), &[[1, 2, 3, 0]; 3]);
        let (numbers, none) = receive(&client, GREETING_NUMBERS);
        assert!(none.is_empty());
        assert_eq!(numbers[..5], [GREETING, GREETING_VERSION, 3, 99, 1]);
        send_memory(&mut line, &memory).unwrap();
        let (id, memories) = receive(&client, 1);
        assert_eq!((id[0], memories.len()), (7, 1));
        let len = rustix::fs::fstat(&memories[0]).unwrap().st_size;
        assert_eq!(rustix::fs::ftruncate(&memories[0], len as u64), Err(Errno::INVAL));
        assert!(File::from(memories[0].try_clone().unwrap()).write_all(b"x").is_err());
        let by_path = format!("/proc/self/fd/{}", memories[0].as_raw_fd());
        let attr = rustix::fs::stat(&*by_path).unwrap();
        assert_eq!(attr.st_mode & 0o777, 0o600, "others could open it for writing");
        // Its size stays, also for who owns it.
        assert_eq!(rustix::fs::ftruncate(&*words, 4096), Err(Errno::PERM));
    }

    #[test]
    fn the_handshake_never_blocks_on_a_client() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, inflight, _first, _line) = greeted(dir.path(), &[]);
        let socket = dir.path().join("socket");
        assert!(answer(&listener, &inflight, &[], 0).is_err());
        for _ in 0..1000 {
            // Those that go away at once, those that stay and say nothing.
            drop(UnixStream::connect(&socket).unwrap());
            let stalling = UnixStream::connect(&socket).unwrap();
            let _ = answer(&listener, &inflight, &[], 0);
            let _ = answer(&listener, &inflight, &[], 0);
            drop(stalling);
        }
        let client = UnixStream::connect(&socket).unwrap();
        let _line = answer(&listener, &inflight, &[], 0).unwrap();
        assert_eq!(receive(&client, GREETING_NUMBERS).0[0], GREETING);
    }

    #[test]
    fn rings_are_created_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, inflight, first, line) = greeted(dir.path(), &[]);
        let socket = dir.path().join("socket");
        let mut waiting = PendingClients::default();
        waiting.extend(Some(line));
        let mut clients: Vec<_> = (0..3).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        (0..3).for_each(|_| waiting.extend(answer(&listener, &inflight, &[], 0).ok()));
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
            waiting.extend(answer(&listener, &inflight, &[], 0).ok());
        });
        assert_eq!(waiting.iter().count(), WAITING_MAX);
    }
}
