//! The service's end of a store socket: serves commands, each in a thread of its own.
//!
//! What is written for a command goes to zones of its own without the store's lock, and never faster than the command sends it; it holds itself
//! back. So mounts wait for it no longer than for any other writer of the device.

use super::access_lock::{AccessGuard, AccessLock, CROWDED};
use super::wire::{self, Op, Outcome, PART_MAX, PREFIX, QUESTION_LEN, Question};
use crate::pool::is_device;
use crate::raw_view::RawView;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_branch::{ZonedBranch, ZonedTree};
use vellum_sys::mount::receive_descriptor;
use vellum_zoned::store::{Class, Error, Store, Writer};

/// How often there is a look whether the store is still open.
const LOOK: Duration = Duration::from_millis(500);
/// How long nobody is let in after that has failed.
const SHORT: Duration = Duration::from_millis(100);

/// Commands that are in a store of this process, and when that changes.
static INSIDE: Mutex<usize> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

/// A command that is counted until this is dropped.
struct CommandGuard;

impl CommandGuard {
    fn new() -> Self {
        *INSIDE.lock() += 1;
        Self
    }
}

impl Drop for CommandGuard {
    fn drop(&mut self) {
        *INSIDE.lock() -= 1;
        LEFT.notify_all();
    }
}

/// Whether a command uses a store of this process.
pub(crate) fn is_used() -> bool {
    *INSIDE.lock() > 0
}

/// Waits until no command uses a store of this process.
pub(crate) fn wait_until_unused() {
    let mut inside = INSIDE.lock();
    while *inside > 0 {
        LEFT.wait(&mut inside);
    }
}

/// Serves the socket of a tree's store, until the tree is closed. `owner`: whose the device is.
pub(crate) fn open(listener: OwnedFd, tree: &Arc<ZonedTree>, owner: u32) -> io::Result<()> {
    let (listener, tree) = (UnixListener::from(listener), Arc::downgrade(tree));
    // A command that goes away between a look and the accept must not be waited for.
    listener.set_nonblocking(true)?;
    let listening = move || listen(&listener, &tree, owner);
    std::thread::Builder::new().name("store-server".into()).spawn(listening).map(drop)
}

fn listen(listener: &UnixListener, tree: &Weak<ZonedTree>, owner: u32) {
    let desk = Arc::<AccessLock>::default();
    let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    while tree.strong_count() > 0 {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait)) {
            Ok(0) => continue,
            Ok(_) => {}
            Err(_) => std::thread::sleep(SHORT),
        }
        match listener.accept() {
            Ok((client, _)) => {
                // In this order: who waits for the last command to leave waits for the store to be closed, too.
                let counted = CommandGuard::new();
                let Some(tree) = tree.upgrade() else { return };
                if let Err(error) = admit(counted, tree, client, &desk, owner) {
                    tracing::debug!(%error, "a command at a store socket");
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // No descriptors: who waits is there all the time.
            Err(_) => std::thread::sleep(SHORT),
        }
    }
}

fn admit(
    counted: CommandGuard,
    tree: Arc<ZonedTree>,
    mut client: UnixStream,
    desk: &Arc<AccessLock>,
    owner: u32,
) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let peer = vellum_sys::peer(client.as_fd())?;
    if peer.uid != 0 && peer.uid != owner {
        tracing::warn!(uid = peer.uid, pid = peer.process.unwrap_or_default(), "a stranger is sent away");
        return Ok(());
    }
    let Some(seat) = desk.seat() else {
        return wire::answer(&mut client, Outcome::Busy, 0, CROWDED.as_bytes());
    };
    let hearing = move || {
        // Dropped in the order: the image that was not finished, the seat, the store, the count.
        let _counted = counted;
        let mut visit = Visit { writer: None, seat, store: tree.store().clone(), tree };
        if let Err(error) = visit.serve_questions(&mut client)
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            tracing::debug!(%error, "a command at a store socket");
        }
        visit.leave();
        drop(visit);
    };
    std::thread::Builder::new().name("store-client".into()).spawn(hearing).map(drop)
}

/// A command that is in.
struct Visit {
    /// The image that it writes.
    writer: Option<Writer>,
    seat: AccessGuard,
    store: Store,
    tree: Arc<ZonedTree>,
}

/// Why a question is answered with no.
struct Denial(Outcome, String);

impl From<Error> for Denial {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound => Self(Outcome::NotFound, String::new()),
            Error::NoSpace => Self(Outcome::NoSpace, String::new()),
            Error::TooManyWriters => Self(Outcome::Busy, error.to_string()),
            error => Self(Outcome::Failed, error.to_string()),
        }
    }
}

impl From<io::Error> for Denial {
    fn from(error: io::Error) -> Self {
        Self(Outcome::Failed, error.to_string())
    }
}

impl From<&'static str> for Denial {
    fn from(busy: &'static str) -> Self {
        Self(Outcome::Busy, busy.to_owned())
    }
}

impl Visit {
    /// Answers questions until there are no more. An error: there is no sense in going on.
    fn serve_questions(&mut self, client: &mut UnixStream) -> io::Result<()> {
        let (mut head, mut name, mut part) = ([0; QUESTION_LEN], Vec::new(), Vec::new());
        loop {
            client.read_exact(&mut head)?;
            let question = match Question::parse(&head) {
                Ok(question) => question,
                Err(error) => {
                    wire::answer(client, Outcome::Failed, 0, wire::encode_refusal(&error.to_string()))?;
                    return Err(error);
                }
            };
            name.resize(question.name, 0);
            client.read_exact(&mut name)?;
            part.clear();
            part.resize(question.len, 0);
            if question.op == Op::Write {
                client.read_exact(&mut part)?;
            }
            let done = if question.op == Op::Show {
                // It comes with a byte of its own, whatever the answer.
                let connection = receive_descriptor(&*client)?;
                self.show(&name, connection).map(|()| (0, 0))
            } else {
                self.act(&question, &name, &mut part)
            };
            match done {
                Ok((value, len)) => {
                    wire::answer(client, Outcome::Done, value, part.get(..len).unwrap_or_default())?;
                }
                Err(Denial(outcome, why)) => wire::answer(client, outcome, 0, wire::encode_refusal(&why))?,
            }
        }
    }

    /// Does what is asked for; a number and how much of `part` is the answer.
    fn act(&mut self, question: &Question, name: &[u8], part: &mut Vec<u8>) -> Result<(u64, usize), Denial> {
        let nothing = (0, 0);
        if (question.op == Op::Hello) == self.seat.has_begun() {
            return Err(Denial(Outcome::Failed, "not the time for that".to_owned()));
        }
        let changes = matches!(
            question.op,
            Op::Remove | Op::Settle | Op::Flush | Op::Begin | Op::Write | Op::Commit | Op::GiveUp
        );
        if changes && !self.seat.changes() {
            return Err(Denial(Outcome::Failed, "only who has come to change something may".to_owned()));
        }
        match question.op {
            Op::Hello => self.seat.begin(question.offset == 1)?,
            Op::List => {
                self.list(name, part);
                return Ok((0, part.len()));
            }
            Op::Entry => return Ok((self.image(name)?, 0)),
            Op::Read => {
                self.image(name)?;
                return Ok((0, self.store.read(name, question.offset, part)?));
            }
            Op::Remove => {
                self.image(name)?;
                self.seat.exclusively(|| self.store.remove(name))??;
            }
            Op::Settle => self.sync()?,
            Op::Flush => self.store.flush_device()?,
            Op::Begin => {
                self.abandon()?;
                self.writer = Some(self.store.writer(Class::Checkpoint)?);
            }
            Op::Write => {
                let Some(writer) = &mut self.writer else {
                    return Err(Denial(Outcome::Failed, "no image was begun".to_owned()));
                };
                writer.write(part)?;
            }
            Op::Commit => {
                wire::check_name(name)?;
                match self.store.entry(name) {
                    Ok(entry) if entry.class != Class::Checkpoint => {
                        return Err(Denial(Outcome::Failed, "something else has this name".to_owned()));
                    }
                    _ => {}
                }
                let writer = self.writer.take();
                let writer =
                    writer.ok_or_else(|| Denial(Outcome::Failed, "no image was begun".to_owned()))?;
                self.seat.exclusively(move || writer.commit(name))??;
            }
            Op::GiveUp => self.abandon()?,
            Op::Show => return Err(Denial(Outcome::Failed, "no connection".to_owned())),
        }
        Ok(nothing)
    }

    /// Serves a directory of the tree to whoever has mounted `connection`, until that is unmounted. The store stays open as long.
    fn show(&self, name: &[u8], connection: OwnedFd) -> Result<(), Denial> {
        let failed = |why: String| Denial(Outcome::Failed, why);
        if !self.seat.has_begun() {
            return Err(failed("not the time for that".to_owned()));
        }
        if !is_device(&connection) {
            return Err(failed("no connection of FUSE".to_owned()));
        }
        let shown = String::from_utf8_lossy(name).into_owned();
        let path = CString::new(name).map_err(|_| failed("no path".to_owned()))?;
        let branch = ZonedBranch::open(&self.tree, &path, shown).map_err(|e| failed(e.to_string()))?;
        let session = RawView::new(branch)
            .session(connection)
            .map_err(|e| failed(format!("the connection cannot be served: {e}")))?;
        let counted = CommandGuard::new();
        let serving = move || {
            if let Err(error) = session.run() {
                tracing::debug!(%error, "a tree that was shown at a store socket");
            }
            drop(counted);
        };
        std::thread::Builder::new().name("store-show".into()).spawn(serving)?;
        Ok(())
    }

    /// The size of an image. NOT_FOUND: there is none of this name.
    fn image(&self, name: &[u8]) -> Result<u64, Denial> {
        wire::check_name(name)?;
        match self.store.entry(name)? {
            entry if entry.class == Class::Checkpoint => Ok(entry.size),
            _ => Err(Error::NotFound.into()),
        }
    }

    /// The images whose names come after `after`, as many as fit into an answer.
    fn list(&self, after: &[u8], into: &mut Vec<u8>) {
        into.clear();
        for entry in self.store.list() {
            let is_one = entry.class == Class::Checkpoint && entry.name.len() > PREFIX.len();
            if !is_one || !entry.name.starts_with(PREFIX.as_bytes()) || entry.name.as_slice() <= after {
                continue;
            }
            if into.len() + entry.name.len() + 16 > PART_MAX {
                break;
            }
            wire::list_one(into, &entry.name, entry.size);
        }
    }

    fn sync(&self) -> Result<(), Error> {
        self.store.sync()?;
        // That the zones of what is gone are empty is to be found by whoever looks next.
        self.store.flush_device()
    }

    /// Leaves nothing of an image that is not finished.
    fn abandon(&mut self) -> Result<(), Error> {
        match self.writer.take() {
            Some(writer) => {
                drop(writer);
                self.sync()
            }
            None => Ok(()),
        }
    }

    fn leave(&mut self) {
        if let Err(error) = self.abandon() {
            tracing::debug!(%error, "what a command has left is emptied when the store is opened next");
        }
    }
}
