//! Notifications: what the kernel must be told unasked.
//!
//! The kernel carries a notification out within our write(2). To forget attributes it takes no lock there, so such words go out at once,
//! from any thread, workers included. To drop pages it waits until reads of them have been answered: a worker that waited could be the
//! one that is to answer. So answers that must not arrive before pages have gone ([`crate::files::pages`]) are sent by a thread of their own. It
//! starts with the first of them; most mounts never have one.

use crate::session::inflight::{Inflight, place};
use crate::wire::{self, Notify};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use vellum_vfs::{ActiveOperations, Error, Name, NodeId, Notifier, Result};
use zerocopy::IntoBytes;

/// Most ranges of pages that wait for being dropped.
const QUEUE_MAX: usize = 4096;
/// Most answers that wait for pages to be dropped. A page may be one that the kernel is about to read, by a request in the background
/// that it sends when fewer than [`max_background`](crate::SessionOptions::max_background) others are under way: answers to such
/// are what waits here.
const HELD_MAX: usize = 16;
/// Most nodes that the kernel is asked to forget by one notification.
const PRUNED_MAX: usize = 512;
/// Bytes of an answer to a write.
pub(crate) const WRITTEN: usize = size_of::<wire::OutHeader>() + size_of::<wire::WriteOut>();

/// Pages that are to be dropped, and the answer that waits for it, with where it goes.
struct Note {
    pages: wire::NotifyInvalInode,
    answer: Option<([u8; WRITTEN], Arc<OwnedFd>)>,
}

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    /// Answers among the notes, and the one that the thread is at.
    held: usize,
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

struct Shared {
    device: Arc<OwnedFd>,
    queue: Mutex<Queue>,
    filled: Condvar,
    /// Knows what is under way; none before the session is served.
    workers: OnceLock<Watch>,
    /// What is written down of requests for a successor.
    inflight: Option<Arc<Inflight>>,
}

/// Says what is under way.
pub(crate) type Watch = Box<dyn Fn() -> Box<dyn ActiveOperations> + Send + Sync>;

/// The way from a filesystem back to the kernel. Clones share one queue.
#[derive(Clone)]
pub struct FuseNotifier(Arc<Shared>);

impl FuseNotifier {
    pub(crate) fn new(device: Arc<OwnedFd>, inflight: Option<Arc<Inflight>>) -> Self {
        Self(Arc::new(Shared {
            device,
            inflight,
            queue: Mutex::default(),
            filled: Condvar::new(),
            workers: OnceLock::new(),
        }))
    }

    /// Says how to know what is under way.
    pub(crate) fn set_workers(&self, workers: Watch) {
        let _ = self.0.workers.set(workers);
    }

    /// Waits until what is queued has been sent, and takes nothing more.
    pub(crate) fn close(&self) {
        let mut queue = self.0.queue.lock();
        queue.closed = true;
        let thread = queue.thread.take();
        drop(queue);
        self.0.filled.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the notifier thread has panicked");
        }
    }

    /// Has the kernel send again every request that has been read and not answered, with
    /// [`wire::UNIQUE_RESEND`] in its id: for a successor. Takes no lock in the kernel.
    pub fn resend(&self) -> Result<()> {
        resend(&self.0.device)
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
        let (off, len) = (offset.cast_signed(), len.cast_signed());
        if off < 0 || len <= 0 {
            return false;
        }
        let pages = wire::NotifyInvalInode { ino: node.0, off, len };
        let mut queue = self.0.queue.lock();
        if queue.closed {
            return false;
        }
        let is_held = queue.held < HELD_MAX;
        if queue.notes.len() >= QUEUE_MAX || !self.is_served(&mut queue) {
            tracing::warn!("pages stay in the kernel that are older than what was written");
            return false;
        }
        queue.held += usize::from(is_held);
        // Without the answer it is better late than never.
        queue.notes.push_back(Note { pages, answer: is_held.then(|| (answer, Arc::clone(device))) });
        drop(queue);
        self.0.filled.notify_one();
        is_held
    }

    /// Starts the thread, unless it runs.
    fn is_served(&self, queue: &mut Queue) -> bool {
        if queue.thread.is_none() {
            let shared = Arc::clone(&self.0);
            let started =
                std::thread::Builder::new().name("vellum-notify".into()).spawn(move || shared.serve());
            match started {
                Ok(thread) => queue.thread = Some(thread),
                Err(error) => tracing::warn!(%error, "no thread for notifications"),
            }
        }
        queue.thread.is_some()
    }
}

impl Notifier for FuseNotifier {
    fn attributes_changed(&self, node: NodeId) -> Result<()> {
        let told = self.0.drop_pages(&attributes_of(node));
        told.map_err(|errno| Error::new(errno, "notification"))
    }

    fn data_changed(&self, node: NodeId) -> Result<()> {
        match self.0.drop_pages(&wire::NotifyInvalInode { ino: node.0, off: 0, len: 0 }) {
            // The kernel does not hold it.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::new(errno, "notification")),
        }
    }

    fn active_operations(&self) -> Box<dyn ActiveOperations> {
        self.0.workers.get().map_or_else(|| Box::new(()) as Box<dyn ActiveOperations>, |workers| workers())
    }

    fn holds(&self, node: NodeId) -> bool {
        let nothing = wire::NotifyStore { nodeid: node.0, ..wire::NotifyStore::default() };
        notify(&self.0.device, Notify::Store, nothing.as_bytes()) != Err(Errno::NOENT)
    }

    fn prune(&self, nodes: &[NodeId]) -> Result<()> {
        for some in nodes.chunks(PRUNED_MAX) {
            let head = wire::NotifyPrune { count: some.len() as u32, ..wire::NotifyPrune::default() };
            let mut body = head.as_bytes().to_vec();
            some.iter().for_each(|node| body.extend_from_slice(&node.0.to_ne_bytes()));
            notify(&self.0.device, Notify::Prune, &body).map_err(|errno| {
                // An older kernel does not know the code.
                let errno = if errno == Errno::INVAL { Errno::NOSYS } else { errno };
                Error::new(errno, "notification")
            })?;
        }
        Ok(())
    }

    fn is_pending(&self, dir: NodeId, name: Name<'_>) -> bool {
        self.0.inflight.as_ref().is_some_and(|inflight| inflight.is_pending(place(dir, name)))
    }
}

impl Shared {
    /// The thread's body: until the end of the session.
    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            let Some(note) = queue.notes.pop_front() else {
                if queue.closed {
                    return;
                }
                self.filled.wait(&mut queue);
                continue;
            };
            drop(queue);
            if let Err(error) = self.drop_pages(&note.pages)
                // The kernel does not hold the node.
                && error != Errno::NOENT
            {
                tracing::debug!(%error, "notification refused");
            }
            if let Some((answer, device)) = &note.answer
                // ENOENT: the request was given up by the kernel; then nobody waits for it.
                && let Err(error) = rustix::io::write(device, answer)
            {
                tracing::debug!(%error, "answer refused");
            }
            queue = self.queue.lock();
            queue.held = queue.held.saturating_sub(usize::from(note.answer.is_some()));
        }
    }

    /// To the end of the file for a length of 0.
    fn drop_pages(&self, pages: &wire::NotifyInvalInode) -> Result<(), Errno> {
        notify(&self.device, Notify::InvalInode, pages.as_bytes())
    }
}

/// Attributes alone: that takes no lock, and waits for no data.
const fn attributes_of(node: NodeId) -> wire::NotifyInvalInode {
    wire::NotifyInvalInode { ino: node.0, off: -1, len: 0 }
}

fn notify(device: &OwnedFd, code: Notify, body: &[u8]) -> Result<(), Errno> {
    let len = size_of::<wire::OutHeader>() + body.len();
    // A notification is a reply to nothing: id 0, and its code in the place of the error.
    let out = wire::OutHeader { len: len as u32, error: code as i32, unique: 0 };
    let parts = [IoSlice::new(out.as_bytes()), IoSlice::new(body)];
    loop {
        match rustix::io::writev(device, &parts) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Does what [`Notifier::resend`] does, for a connection that is not served yet.
pub fn resend(device: &OwnedFd) -> Result<()> {
    notify(device, Notify::Resend, &[]).map_err(|error| Error::new(error, "notify: resend"))
}

/// Has the kernel believe nothing any more of a connection that nobody will serve again: neither attributes of the root and of
/// `nodes` nor, from 7.44 on, any name. When the last descriptor of the connection is closed after that, every call that would need
/// one of them fails. Without it the kernel goes on by what it knows: it takes writes into its cache, and says nothing when they
/// cannot be sent.
pub fn disbelieve(device: &OwnedFd, nodes: impl Iterator<Item = NodeId>) {
    for node in std::iter::once(NodeId::ROOT).chain(nodes) {
        if notify(device, Notify::InvalInode, attributes_of(node).as_bytes()) == Err(Errno::NODEV) {
            return;
        }
    }
    if let Err(error) = notify(device, Notify::IncEpoch, &[]) {
        tracing::debug!(%error, "names stay known");
    }
}
