//! Notifications: what the kernel must be told unasked.
//!
//! The kernel carries a notification out within our write(2): it takes the directory's lock for names, and waits
//! for pages that are being read or written for data. A worker that wrote one while the kernel holds that
//! lock *for the very request the worker is answering* would wait for itself. So whatever takes such locks goes
//! through a queue to a thread of its own, and the calls here may be made from any thread, workers included; they
//! never block. An answer that must not arrive before such a note has been carried out goes the same way ([`crate::pages`]). Nobody who holds a lock that an operation needs may wait for the queue ([`FuseNotifier::drain`]).
//!
//! The queue is bounded ([`QUEUE_MAX`]). When it is full, names are not forgotten: one INC_EPOCH (7.44) takes the
//! place of all that did not fit, after which the kernel looks every name up again. Data has no such collective
//! form: [`Notifier::inval_inode`] then fails with EAGAIN, and the caller must keep the node and try later; so do
//! names on older kernels.

use crate::wire::{self, Notify};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Answering, Answers, Error, Name, NodeId, Notifier, Result};
use zerocopy::{Immutable, IntoBytes};

/// Most notifications that wait for being sent.
pub const QUEUE_MAX: usize = 4096;
/// Most nodes of one [`FuseNotifier::prune`].
pub const PRUNE_MAX: usize = 512;
/// Most answers that wait for pages to be dropped. A page may be one that the kernel is about to read, by a request in the background
/// that it sends when fewer than [`max_background`](crate::SessionOptions::max_background) others are under way: answers to such
/// are what waits here.
const HELD_MAX: usize = 16;
/// Bytes of an answer to a write.
pub(crate) const WRITTEN: usize = size_of::<wire::OutHeader>() + size_of::<wire::WriteOut>();
/// The minor version that brought INC_EPOCH.
const MINOR_EPOCH: u32 = 44;

enum Note {
    Inode {
        node: NodeId,
        offset: i64,
        len: i64,
    },
    /// The same, and then the answer to who wrote there.
    Written {
        node: NodeId,
        offset: i64,
        len: i64,
        answer: [u8; WRITTEN],
        device: Arc<OwnedFd>,
    },
    Entry {
        parent: NodeId,
        name: Box<[u8]>,
    },
    Delete {
        parent: NodeId,
        child: NodeId,
        name: Box<[u8]>,
    },
    Prune {
        nodes: Vec<u64>,
    },
    Epoch,
}

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    /// Names did not fit: an INC_EPOCH is due.
    epoch_due: bool,
    /// Answers among the notes, and the one that the thread is at.
    held: usize,
    /// The thread is sending.
    busy: bool,
    closed: bool,
}

struct Shared {
    device: Arc<OwnedFd>,
    minor: u32,
    queue: Mutex<Queue>,
    filled: Condvar,
    drained: Condvar,
    /// Who answers; none before the session is served.
    workers: OnceLock<Box<dyn Answers>>,
}

/// The way from a filesystem back to the kernel. Clones share one queue.
#[derive(Clone)]
pub struct FuseNotifier(Arc<Shared>);

impl FuseNotifier {
    pub(crate) fn new(device: Arc<OwnedFd>, minor: u32) -> Self {
        Self(Arc::new(Shared {
            device,
            minor,
            queue: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
            workers: OnceLock::new(),
        }))
    }

    /// Says who answers.
    pub(crate) fn served_by(&self, workers: Box<dyn Answers>) {
        let _ = self.0.workers.set(workers);
    }

    /// Sends what is queued until [`FuseNotifier::close`]: the notifier thread's body.
    pub(crate) fn serve(&self) {
        let shared = &*self.0;
        let mut queue = shared.queue.lock();
        loop {
            let note = match queue.notes.pop_front() {
                Some(note) => note,
                None if std::mem::take(&mut queue.epoch_due) => Note::Epoch,
                None if queue.closed => break,
                None => {
                    shared.drained.notify_all();
                    shared.filled.wait(&mut queue);
                    continue;
                }
            };
            queue.busy = true;
            drop(queue);
            if let Err(error) = shared.send(&note)
                // ENOENT: the kernel does not hold it. ENOTDIR, EBUSY: it holds it, in use.
                && error != Errno::NOENT
            {
                tracing::debug!(%error, "notification refused");
            }
            let mut answered = 0;
            if let Note::Written { answer, device, .. } = &note {
                // ENOENT: the request was given up by the kernel; then nobody waits for it.
                if let Err(error) = rustix::io::write(device, answer) {
                    tracing::debug!(%error, "answer refused");
                }
                answered = 1;
            }
            queue = shared.queue.lock();
            queue.busy = false;
            queue.held = queue.held.saturating_sub(answered);
        }
        shared.drained.notify_all();
    }

    /// Lets the thread end once the queue is empty.
    pub(crate) fn close(&self) {
        self.0.queue.lock().closed = true;
        self.0.filled.notify_all();
    }

    /// Waits until everything that was queued has been carried out. Never call it from an operation.
    pub fn drain(&self) {
        let mut queue = self.0.queue.lock();
        while !queue.closed && (queue.busy || queue.epoch_due || !queue.notes.is_empty()) {
            self.0.drained.wait(&mut queue);
        }
    }

    /// `name` in `parent`, which led to `child`, has been removed; watchers are told. Queued.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: Name<'_>) -> Result<()> {
        self.queue(Note::Delete { parent, child, name: name.bytes().into() })
    }

    /// Nodes (at most [`PRUNE_MAX`]) that the kernel may forget now if nobody uses them. Queued; kernels before
    /// 6.18 ignore it.
    pub fn prune(&self, nodes: &[NodeId]) -> Result<()> {
        let nodes = nodes.iter().take(PRUNE_MAX).map(|node| node.0).collect();
        self.queue(Note::Prune { nodes })
    }

    /// Has the kernel look every name up again. Takes no lock, so that it is sent at once. EINVAL before 7.44.
    pub fn inc_epoch(&self) -> Result<()> {
        self.0.send(&Note::Epoch).map_err(|error| Error::new(error, "notify: epoch"))
    }

    /// Has the kernel send again every request that has been read and not answered, with
    /// [`wire::UNIQUE_RESEND`] in its id: for a successor. Takes no lock, so that it is sent at once.
    pub fn resend(&self) -> Result<()> {
        self.0.write(Notify::Resend, &[], &[]).map_err(|error| Error::new(error, "notify: resend"))
    }

    /// Data were written past pages that the kernel may have: these are dropped first, then who wrote is answered, through `device`.
    /// False: it could not be arranged, and the caller answers.
    pub(crate) fn answer_after(
        &self,
        node: NodeId,
        (offset, len): (u64, u64),
        answer: [u8; WRITTEN],
        device: &Arc<OwnedFd>,
    ) -> bool {
        let (offset, len) = (offset.cast_signed(), len.cast_signed());
        if offset < 0 || len <= 0 {
            return false;
        }
        let mut queue = self.0.queue.lock();
        if queue.closed {
            return false;
        }
        if queue.held >= HELD_MAX {
            // Better late than never.
            drop(queue);
            if let Err(error) = self.queue(Note::Inode { node, offset, len }) {
                tracing::warn!(%error, "pages stay in the kernel that are older than what was written");
            }
            return false;
        }
        queue.held += 1;
        queue.notes.push_back(Note::Written { node, offset, len, answer, device: Arc::clone(device) });
        drop(queue);
        self.0.filled.notify_one();
        true
    }

    fn at_once(&self, note: &Note) -> Result<()> {
        match self.0.send(note) {
            // The kernel does not hold it.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::new(errno, "notification")),
        }
    }

    fn queue(&self, note: Note) -> Result<()> {
        let mut queue = self.0.queue.lock();
        if queue.closed {
            return Ok(());
        }
        if queue.notes.len() >= QUEUE_MAX {
            if matches!(note, Note::Entry { .. }) && self.0.minor >= MINOR_EPOCH {
                queue.epoch_due = true;
                return Ok(());
            }
            return Err(Error::new(Errno::AGAIN, "notification queue is full"));
        }
        queue.notes.push_back(note);
        drop(queue);
        self.0.filled.notify_one();
        Ok(())
    }
}

impl Notifier for FuseNotifier {
    fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> Result<()> {
        // The kernel drops data for `offset` >= 0, to the end of the file for `len` <= 0.
        if len == 0 || offset < 0 {
            // Attributes alone take no lock in the kernel, so the word goes out at once: an answer that is sent after it
            // finds the old attributes gone.
            let told = self.0.send(&Note::Inode { node, offset: -1, len: 0 });
            return told.map_err(|errno| Error::new(errno, "notification"));
        }
        self.queue(Note::Inode { node, offset, len })
    }

    fn inval_entry(&self, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.queue(Note::Entry { parent, name: name.bytes().into() })
    }

    fn expire_data(&self, node: NodeId) -> Result<()> {
        self.at_once(&Note::Inode { node, offset: 0, len: 0 })
    }
}

impl Answers for FuseNotifier {
    fn answering(&self) -> Answering {
        self.0.workers.get().map(|workers| workers.answering()).unwrap_or_default()
    }

    fn has_answered(&self, these: &Answering) -> bool {
        these.0.is_empty() || self.0.workers.get().is_none_or(|workers| workers.has_answered(these))
    }
}

impl Shared {
    fn send(&self, note: &Note) -> Result<(), Errno> {
        match note {
            Note::Inode { node, offset, len } | Note::Written { node, offset, len, .. } => self.struct_only(
                Notify::InvalInode,
                &wire::NotifyInvalInode { ino: node.0, off: *offset, len: *len },
            ),
            Note::Entry { parent, name } => {
                let head = wire::NotifyInvalEntry { parent: parent.0, namelen: name.len() as u32, flags: 0 };
                self.with_name(Notify::InvalEntry, &head, name)
            }
            Note::Delete { parent, child, name } => {
                let head = wire::NotifyDelete {
                    parent: parent.0,
                    child: child.0,
                    namelen: name.len() as u32,
                    padding: 0,
                };
                self.with_name(Notify::Delete, &head, name)
            }
            Note::Prune { nodes } => {
                let head = wire::NotifyPrune { count: nodes.len() as u32, padding: 0, spare: 0 };
                self.write(Notify::Prune, head.as_bytes(), nodes.as_bytes())
            }
            Note::Epoch => self.write(Notify::IncEpoch, &[], &[]),
        }
    }

    fn struct_only<T: IntoBytes + Immutable>(&self, code: Notify, head: &T) -> Result<(), Errno> {
        self.write(code, head.as_bytes(), &[])
    }

    fn with_name<T: IntoBytes + Immutable>(&self, code: Notify, head: &T, name: &[u8]) -> Result<(), Errno> {
        let name: Vec<u8> = name.iter().copied().chain([0]).collect();
        self.write(code, head.as_bytes(), &name)
    }

    fn write(&self, code: Notify, head: &[u8], tail: &[u8]) -> Result<(), Errno> {
        notify(&self.device, code, head, tail)
    }
}

fn notify(device: &OwnedFd, code: Notify, head: &[u8], tail: &[u8]) -> Result<(), Errno> {
    let len = size_of::<wire::OutHeader>() + head.len() + tail.len();
    // A notification is a reply to nothing: id 0, and its code in the place of the error.
    let out = wire::OutHeader { len: len as u32, error: code as i32, unique: 0 };
    let parts = [IoSlice::new(out.as_bytes()), IoSlice::new(head), IoSlice::new(tail)];
    loop {
        match rustix::io::writev(device, &parts) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Has the kernel believe nothing any more of a connection that nobody will serve again: neither attributes of the root and of
/// `nodes` nor, from 7.44 on, any name. When the last descriptor of the connection is closed after that, every call that would need
/// one of them fails. Without it the kernel goes on by what it knows: it takes writes into its cache, and says nothing when they
/// cannot be sent.
pub fn disbelieve(device: &OwnedFd, nodes: impl Iterator<Item = NodeId>) {
    for node in std::iter::once(NodeId::ROOT).chain(nodes) {
        // Attributes alone: that takes no lock, and waits for no data that nobody would take.
        let head = wire::NotifyInvalInode { ino: node.0, off: -1, len: 0 };
        if notify(device, Notify::InvalInode, head.as_bytes(), &[]) == Err(Errno::NODEV) {
            return;
        }
    }
    if let Err(error) = notify(device, Notify::IncEpoch, &[], &[]) {
        tracing::debug!(%error, "names stay known");
    }
}
