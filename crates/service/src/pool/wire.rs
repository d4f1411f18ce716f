//! What is said over a pool's socket: a length, so many descriptors, and JSON.
//!
//! Both ends belong to one user, or one is root; still every length is checked, and nothing is waited for without end.

use crate::config::Config;
use crate::failure::Failure;
use crate::layers::OpenLayers;
use crate::layers::source::LayerSource;
use crate::store_server::DeviceId;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use vellum_sys::{SENT_AT_ONCE, send_with};

/// Longest message in bytes: paths of all layers, in JSON.
const BODY_MAX: usize = 16 << 20;
/// Most descriptors of a message: a device, an upper and its work directory, all lowers, and locks.
const DESCRIPTORS_MAX: usize = crate::config::LAYERS_MAX + 16;
/// The byte that descriptors travel with.
const MARK: u8 = b'+';

/// What a client asks of the service.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Who are you?
    Status,
    /// Have you the store on this device open to be written?
    Has(DeviceId),
    /// Serve this mount.
    Mount(Box<MountRequest>),
    /// Let a successor go on, of the program as it is on disk now.
    Restart,
    /// End, if nothing is mounted.
    Stop,
}

/// A mount that has been made, and its layers. The descriptors come in the order: the device, the roots of layers that have one, as
/// [`OpenLayers::all`] has them, the locks, the upper's own mount and its store socket if
/// there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MountRequest {
    /// What was asked for, with the mount point and the layers as they were found.
    pub(super) config: Config,
    pub(super) locks: usize,
    /// `st_dev` of the mount.
    pub(super) device: u64,
    /// There is a mount of the upper of its own, for files that are handed out.
    pub(super) handouts: bool,
    /// The socket of the upper's store comes last.
    pub(super) door: bool,
}

impl MountRequest {
    /// What has been mounted, of what was asked for.
    pub(super) fn new(config: &Config, mountpoint: &Path, layers: &OpenLayers, handouts: bool) -> Self {
        Self {
            config: layers.resolve(config, mountpoint),
            locks: layers.locks.len(),
            device: super::handout_mounts::device_of(mountpoint),
            handouts,
            door: layers.store_socket.is_some(),
        }
    }

    /// How many of the roots that go with it are of layers that are written to, and how many of others.
    pub(super) fn roots(&self) -> (usize, usize) {
        let written = self.config.writable_layers().into_iter().flat_map(|(upper, work)| [upper, work]);
        let has_root = |source: &&LayerSource| source.has_root();
        (written.filter(has_root).count(), self.config.read_only_layers().filter(has_root).count())
    }

    /// How many descriptors go with it.
    pub(super) fn descriptors(&self) -> usize {
        let (written, only_read) = self.roots();
        1 + written + only_read + self.locks + usize::from(self.handouts) + usize::from(self.door)
    }
}

/// What the first service of a mount of its own is given, without a socket.
pub(super) struct FirstMount {
    pub(super) request: MountRequest,
    /// In the order of a [`MountRequest`].
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What a service says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The process that serves.
    pub service: u32,
    pub supervisor: u32,
    /// Version of the program.
    pub version: String,
    /// Version of what it would leave to a successor.
    pub format: u32,
    /// Its user namespace: what a client may do is judged there.
    pub user_namespace: Option<u64>,
    /// How often a service of this supervisor has been replaced.
    pub restarts: u64,
    /// The program that a successor would be.
    pub program: String,
    /// How many mounts it serves.
    pub mounts: usize,
}

/// The service's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Status(Status),
    Done,
    Failed(Failure),
}

impl Reply {
    pub(super) fn from_result(outcome: Result<(), Failure>) -> Self {
        match outcome {
            Ok(()) => Self::Done,
            Err(failure) => Self::Failed(failure),
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Sends a message and descriptors, which stay open here.
pub(super) fn send<T: Serialize>(
    to: &mut UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    if body.len() > BODY_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(invalid("a message that is too long"));
    }
    let mut head = [0; 8];
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&(descriptors.len() as u32).to_le_bytes());
    to.write_all(&head)?;
    for batch in descriptors.chunks(SENT_AT_ONCE) {
        send_with(to.as_fd(), &[MARK], batch, SendFlags::empty())?;
    }
    to.write_all(&body)
}

/// Receives a message and its descriptors.
pub(super) fn receive<T: DeserializeOwned>(from: &mut UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut head = [0; 8];
    from.read_exact(&mut head)?;
    let [a, b, c, d, e, f, g, h] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let count = u32::from_le_bytes([e, f, g, h]) as usize;
    if len > BODY_MAX || count > DESCRIPTORS_MAX {
        return Err(invalid("a message that is too long"));
    }
    let mut descriptors = Vec::with_capacity(count);
    while descriptors.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut mark = [0];
        let received =
            recvmsg(&*from, &mut [IoSliceMut::new(&mut mark)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = descriptors.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        if mark != [MARK] || descriptors.len() == before || descriptors.len() > count {
            return Err(invalid("descriptors that do not fit"));
        }
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body)?;
    Ok((serde_json::from_slice(&body)?, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_with_all_their_descriptors() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let files: Vec<std::fs::File> = (0..300).map(|_| tempfile::tempfile().unwrap()).collect();
        let sender = std::thread::spawn(move || {
            let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            send(&mut one, &Request::Stop, &descriptors).unwrap();
            send(&mut one, &Request::Status, &[]).unwrap();
            one
        });
        let (message, descriptors) = receive::<Request>(&mut other).unwrap();
        assert!(matches!(message, Request::Stop));
        assert_eq!(descriptors.len(), 300);
        assert!(
            matches!(receive::<Request>(&mut other).unwrap(), (Request::Status, none) if none.is_empty())
        );
        drop(sender.join().unwrap());
        assert!(receive::<Request>(&mut other).is_err());
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bytes in [&[0xff; 8][..], &[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'x'], &[0, 0, 0, 0, 1, 0, 0, 0, b'+']]
        {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            one.write_all(bytes).unwrap();
            drop(one);
            assert!(receive::<Request>(&mut other).is_err(), "{bytes:?}");
        }
    }
}
