//! A command's end of a store socket.

use super::socket_path;
use super::wire::{self, Op, PART_MAX};
use parking_lot::Mutex;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

/// The store of another process, as one of its commands sees it. When the last of its copies is dropped, an image that has no name is gone.
#[derive(Clone, Debug)]
pub struct StoreClient(Arc<Mutex<Inside>>);

#[derive(Debug)]
struct Inside {
    stream: UnixStream,
    /// It was not possible to go on; nothing is asked any more.
    is_lost: bool,
}

/// What has become of a knock.
#[derive(Debug)]
pub enum ConnectOutcome {
    /// The store can be used.
    In(StoreClient),
    /// There is no socket, or nobody listens.
    Nobody,
    /// Somebody is, and says no.
    No(io::Error),
}

/// What is said where the service has gone.
const GONE: &str = "the service of the mount that has the store open has ended";

impl StoreClient {
    /// Goes to the service that has the store on a device open. `changes`: to change its checkpoints, which one at a time can.
    #[must_use]
    pub fn connect(device: &Path, changes: bool) -> ConnectOutcome {
        socket_path::find(device).map_or(ConnectOutcome::Nobody, |socket| Self::connect_at(&socket, changes))
    }

    /// As [`Self::connect`], at a socket that was found.
    pub(super) fn connect_at(socket: &Path, changes: bool) -> ConnectOutcome {
        let Ok(stream) = UnixStream::connect(socket) else { return ConnectOutcome::Nobody };
        let client = Self(Arc::new(Mutex::new(Inside { stream, is_lost: false })));
        match client.ask(Op::Hello, b"", (0, changes.into()), &mut []) {
            Ok(_) => ConnectOutcome::In(client),
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => ConnectOutcome::Nobody,
            Err(e) => ConnectOutcome::No(e),
        }
    }

    fn ask(
        &self,
        op: Op,
        name: &[u8],
        (len, offset): (usize, u64),
        into: &mut [u8],
    ) -> io::Result<(u64, usize)> {
        self.0.lock().ask(op, name, (len, offset), &[], into)
    }

    /// All images: their names and sizes.
    pub fn list(&self) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let (mut all, mut after) = (Vec::new(), Vec::new());
        let mut page = vec![0; PART_MAX];
        loop {
            let (_, len) = self.ask(Op::List, &after, (0, 0), &mut page)?;
            let some = wire::listed(page.get(..len).unwrap_or_default())?;
            let Some((last, _)) = some.last() else { return Ok(all) };
            if *last <= after {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a list that goes round"));
            }
            after.clone_from(last);
            all.extend(some);
        }
    }

    /// The size of an image in bytes. NotFound: there is none of this name.
    pub fn entry(&self, name: &[u8]) -> io::Result<u64> {
        Ok(self.ask(Op::Entry, name, (0, 0), &mut [])?.0)
    }

    /// Reads from `offset` of an image on, [`PART_MAX`] bytes at the most, and says how much there was.
    pub fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(PART_MAX);
        Ok(self.ask(Op::Read, name, (len, offset), into.get_mut(..len).unwrap_or_default())?.1)
    }

    /// Removes an image.
    pub fn remove(&self, name: &[u8]) -> io::Result<()> {
        self.ask(Op::Remove, name, (0, 0), &mut []).map(drop)
    }

    /// Makes everything durable, and empties the zones of what was removed.
    pub fn sync(&self) -> io::Result<()> {
        self.ask(Op::Settle, b"", (0, 0), &mut []).map(drop)
    }

    /// Has the device make durable what was written.
    pub fn flush(&self) -> io::Result<()> {
        self.ask(Op::Flush, b"", (0, 0), &mut []).map(drop)
    }

    /// Begins an image, of which there is one at a time.
    pub fn begin(&self) -> io::Result<()> {
        self.ask(Op::Begin, b"", (0, 0), &mut []).map(drop)
    }

    /// Appends to the image.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut inside = self.0.lock();
        bytes
            .chunks(PART_MAX)
            .try_for_each(|part| inside.ask(Op::Write, b"", (part.len(), 0), part, &mut []).map(drop))
    }

    /// Gives the image its name. One that has this name is gone.
    pub fn commit(&self, name: &[u8]) -> io::Result<()> {
        self.ask(Op::Commit, name, (0, 0), &mut []).map(drop)
    }

    /// Has a directory of the store's files served by a FUSE connection that is mounted, to be read, until it is unmounted.
    pub fn show(&self, path: &[u8], connection: BorrowedFd<'_>) -> io::Result<()> {
        let with = |stream: &mut UnixStream| {
            vellum_sys::send_with(stream.as_fd(), b"+", &[connection], SendFlags::empty())?;
            Ok(())
        };
        self.0.lock().ask_with(Op::Show, path, (0, 0), with, &mut []).map(drop)
    }

    /// Leaves the image, of which nothing stays.
    pub fn abandon(&self) -> io::Result<()> {
        self.ask(Op::GiveUp, b"", (0, 0), &mut []).map(drop)
    }
}

impl Inside {
    /// Asks, sends `part`, and waits for the answer.
    fn ask(
        &mut self,
        op: Op,
        name: &[u8],
        (len, offset): (usize, u64),
        part: &[u8],
        into: &mut [u8],
    ) -> io::Result<(u64, usize)> {
        self.ask_with(op, name, (len, offset), |stream| io::Write::write_all(stream, part), into)
    }

    /// Asks, sends what belongs to it, and waits for the answer.
    fn ask_with(
        &mut self,
        op: Op,
        name: &[u8],
        (len, offset): (usize, u64),
        with: impl FnOnce(&mut UnixStream) -> io::Result<()>,
        into: &mut [u8],
    ) -> io::Result<(u64, usize)> {
        let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, GONE);
        if self.is_lost {
            return Err(gone());
        }
        // Who is sent away is told so, and may find that out by writing.
        let sent = wire::ask(&mut self.stream, op, name, len, offset).and_then(|()| with(&mut self.stream));
        let heard = wire::receive_answer(&mut self.stream, into);
        match (sent, heard) {
            (_, Err(e)) if is_end(&e) => {
                self.is_lost = true;
                Err(gone())
            }
            (Err(_), Ok(_)) => {
                self.is_lost = true;
                Err(gone())
            }
            (_, heard) => heard,
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
    )
}
