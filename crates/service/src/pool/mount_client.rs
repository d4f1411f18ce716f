//! Who mounts: makes the mount with its own rights in its own namespaces, and has the pool's service serve it.

use super::handout_mounts;
use super::wire::{self, MountRequest, Reply, Request, Status};
use super::{FORMAT, format};
use crate::config::Config;
use crate::failure::Failure;
use crate::layers::{self, OpenLayers};
use crate::mounts::mountpoint;
use crate::mounts::session_setup::mount_at;
use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vellum_sys::wait_for;

/// How often a mount is tried when the service dies over it.
const ATTEMPTS: u32 = 4;
/// How long a service may take to start, to end, or to make room for its successor.
const START_MAX: Duration = Duration::from_secs(10);
/// How long a service may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// Longest path that fits into a socket's address, in bytes.
const ADDRESS_MAX: usize = 107;

/// A pool as who mounts sees it.
pub struct Pool<'a> {
    pub socket: &'a Path,
    /// Starts its service; returns when that listens, or somebody else's does.
    pub start: &'a dyn Fn() -> Result<(), Failure>,
    /// Makes the pool ready for layers in these directories.
    pub prepare: &'a dyn Fn(&[&Path]) -> Result<(), Failure>,
}

/// What has become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The pool's service serves the mount.
    Served,
    /// The service cannot serve this mount; it can be served by a process of its own.
    Unfit(String),
}

/// Number of this process's user namespace.
pub(super) fn user_namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/user").ok().map(|namespace| namespace.ino())
}

impl Pool<'_> {
    /// Mounts, and returns when the mount is being served.
    pub fn join(&self, config: &Config) -> Result<JoinOutcome, Failure> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut service = self.reach()?;
            let status = match status(&mut service) {
                Ok(status) => status,
                // It was just ending.
                Err(e) => {
                    last = Some(e);
                    continue;
                }
            };
            if status.format != FORMAT {
                let version = status.version;
                return Ok(JoinOutcome::Unfit(format!("the pool's service is of version {version}")));
            }
            if status.user_namespace != user_namespace() {
                return Ok(JoinOutcome::Unfit("the pool's service is in another user namespace".into()));
            }
            match self.mount(&mut service, config)? {
                Ok(()) => return Ok(JoinOutcome::Served),
                Err(e) => last = Some(e),
            }
        }
        let why = last.map(|e| e.to_string()).unwrap_or_default();
        Err(Failure::system(format!("the pool's service does not answer: {why}; see its log")))
    }

    /// A connection to the service, which is started if need be.
    fn reach(&self) -> Result<UnixStream, Failure> {
        let end = Instant::now() + START_MAX;
        let mut started = false;
        loop {
            match connect(self.socket) {
                Ok(service) => return Ok(service),
                Err(_) if !started => {
                    (self.start)()?;
                    started = true;
                }
                Err(e) if Instant::now() > end => {
                    let socket = self.socket.display();
                    return Err(
                        Failure::system(format!("{socket}: the pool's service cannot be reached")).because(e)
                    );
                }
                Err(_) => {
                    std::thread::sleep(LOOK);
                    // The one that was ending has ended by now.
                    started = false;
                }
            }
        }
    }

    /// One attempt. An inner error: the service has died meanwhile, and nothing is left of the mount.
    fn mount(&self, service: &mut UnixStream, config: &Config) -> Result<io::Result<()>, Failure> {
        let mountpoint = mountpoint::resolve(&config.mountpoint)?;
        let mut has_open = |device| matches!(ask(service, &Request::Has(device)), Ok(Reply::Done));
        let layers = layers::open_beside(config, &mountpoint, &mut has_open)?;
        (self.prepare)(&layers.resolve(config, &mountpoint).directories())?;
        let mounted = mount_at(config, &mountpoint)?;
        let give_up = || {
            if let Err(stays) = vellum_fuse::unmount(&mountpoint, true) {
                tracing::debug!("{stays}");
            }
        };
        match send_mount(service, config, &mountpoint, &mounted.device, layers) {
            Ok(Reply::Failed(failure)) => {
                give_up();
                Err(failure)
            }
            Ok(_) => Ok(Ok(())),
            Err(e) => {
                give_up();
                Ok(Err(e))
            }
        }
    }
}

fn send_mount(
    service: &mut UnixStream,
    config: &Config,
    mountpoint: &Path,
    device: &OwnedFd,
    mut layers: OpenLayers,
) -> io::Result<Reply> {
    let handouts = layers
        .upper
        .as_ref()
        .and_then(|(upper, _)| handout_mounts::mount_of(upper.root.as_ref()?, &config.flags));
    let request = MountRequest::new(config, mountpoint, &layers, handouts.is_some());
    let locks: Vec<OwnedFd> = std::mem::take(&mut layers.locks).into_iter().map(Into::into).collect();
    let all =
        [device].into_iter().chain(layers.roots()).chain(&locks).chain(&handouts).chain(&layers.store_socket);
    let descriptors: Vec<BorrowedFd<'_>> = all.map(AsFd::as_fd).collect();
    wire::send(service, &Request::Mount(Box::new(request)), &descriptors)?;
    Ok(wire::receive(service)?.0)
}

/// Connects to a socket, however long its path is.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= ADDRESS_MAX {
        return connect_by(socket);
    }
    let (dir, name) = (socket.parent(), socket.file_name());
    let (Some(dir), Some(name)) = (dir, name) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    connect_by(&Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

fn connect_by(path: &Path) -> io::Result<UnixStream> {
    let service = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Before it connects: a service that is stopped takes nobody in.
    for direction in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&service, direction, Some(ANSWER_MAX))?;
    }
    rustix::net::connect(&service, &SocketAddrUnix::new(path)?)?;
    Ok(service.into())
}

fn ask(service: &mut UnixStream, request: &Request) -> io::Result<Reply> {
    wire::send(service, request, &[])?;
    Ok(wire::receive(service)?.0)
}

fn status(service: &mut UnixStream) -> io::Result<Status> {
    match ask(service, &Request::Status)? {
        Reply::Status(status) => Ok(status),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Talks to the service at a socket, anew with its successor when it dies meanwhile. None: there is none.
fn converse<T>(
    socket: &Path,
    mut talk: impl FnMut(&mut UnixStream) -> io::Result<T>,
) -> io::Result<Option<T>> {
    let end = Instant::now() + START_MAX;
    loop {
        let Ok(mut service) = connect(socket) else { return Ok(None) };
        match talk(&mut service) {
            Ok(said) => return Ok(Some(said)),
            Err(e) if is_death(&e) && Instant::now() < end => std::thread::sleep(LOOK),
            Err(e) => return Err(e),
        }
    }
}

/// Whether a connection has failed because who was at its other end is no more.
fn is_death(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// What the service at a socket says of itself; None: there is none.
#[must_use]
pub fn look(socket: &Path) -> Option<Status> {
    converse(socket, status).ok().flatten()
}

/// Has the service at a socket replaced by a new one, of the program as it is on disk; returns what that says of itself. None: there
/// is no service.
pub fn restart(socket: &Path) -> Result<Option<Status>, Failure> {
    let asked = converse(socket, |service| {
        let before = status(service)?;
        // Before anything has ended: a program that cannot go on would lose every mount.
        if let Err(refused) = format::agree(Path::new(&before.program), before.format) {
            return Ok(Err(refused));
        }
        Ok(match ask(service, &Request::Restart)? {
            Reply::Failed(failure) => Err(failure.context("the pool's service")),
            _ => Ok(before),
        })
    });
    let asked = asked.map_err(|e| Failure::system("the pool's service").because(e))?;
    let Some(before) = asked.transpose()? else { return Ok(None) };
    let next = wait_for(START_MAX, LOOK, || look(socket).filter(|now| now.service != before.service));
    next.map(Some).ok_or_else(|| Failure::system("the pool's service has not been replaced; see its log"))
}

/// Has the service at a socket end, if it serves nothing, and waits until it has. False: it serves something.
pub fn stop(socket: &Path) -> Result<bool, Failure> {
    let stopped = wait_for(START_MAX, LOOK, || {
        let Ok(mut service) = connect(socket) else { return Some(true) };
        matches!(ask(&mut service, &Request::Stop), Ok(Reply::Failed(_))).then_some(false)
    });
    stopped.ok_or_else(|| Failure::system("the pool's service does not end; see its log"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    /// Services one after the other: each answers so many requests and dies over the next one.
    fn services(dir: &Path, lives: &'static [usize]) -> std::path::PathBuf {
        let (socket, program) = (dir.join("socket"), dir.join("program"));
        std::fs::write(&program, format!("#!/bin/sh\necho {FORMAT}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let bound = socket.clone();
        std::thread::spawn(move || {
            for (service, requests) in (1..).zip(lives) {
                let (mut client, _) = listener.accept().unwrap();
                for _ in 0..*requests {
                    let reply = match wire::receive::<Request>(&mut client).unwrap().0 {
                        Request::Status => Reply::Status(Status {
                            service,
                            supervisor: 1,
                            version: String::new(),
                            format: FORMAT,
                            user_namespace: None,
                            restarts: 0,
                            program: program.display().to_string(),
                            mounts: 1,
                        }),
                        _ => Reply::Done,
                    };
                    wire::send(&mut client, &reply, &[]).unwrap();
                }
                let _ = wire::receive::<Request>(&mut client);
            }
            let _ = std::fs::remove_file(bound);
        });
        socket
    }

    #[test]
    fn a_death_during_a_query_has_a_successor() {
        let dir = tempfile::tempdir().unwrap();
        let socket = services(dir.path(), &[0, 0, 1]);
        assert_eq!(look(&socket).unwrap().service, 3);
    }

    #[test]
    fn a_death_before_the_replacement_keeps_the_pool() {
        let dir = tempfile::tempdir().unwrap();
        let socket = services(dir.path(), &[0, 1, 2, 1]);
        assert_eq!(restart(&socket).unwrap().unwrap().service, 4, "asked after two deaths");
    }

    #[test]
    fn a_refusal_is_not_taken_for_a_death() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let clients = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let refusal = Reply::Failed(Failure::input("another user's pool"));
            wire::send(&mut client, &refusal, &[]).unwrap();
        });
        assert_eq!(look(&path), None);
        clients.join().unwrap();
    }

    #[test]
    fn the_end_of_the_pool_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let socket = services(dir.path(), &[0]);
        assert_eq!(restart(&socket).unwrap(), None);
        assert_eq!(look(&socket), None);
    }
}
