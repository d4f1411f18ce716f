//! Worker threads: read a request, answer it, again.

use crate::buffer::Buffer;
use crate::dispatch::{Answer, Dispatcher, Promise};
use crate::request::{self, Operation};
use crate::session::Core;
use crate::stats::Counters;
use crate::transport::{Device, Received, Transport};
use crate::wire::{self, InitFlags};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vellum_vfs::Filesystem;
use zerocopy::IntoBytes;

const OUT_HEADER: usize = size_of::<wire::OutHeader>();
/// What may lie in front of the data of a WRITE.
const WRITE_HEAD: usize = size_of::<wire::InHeader>() + size_of::<wire::WriteIn>();
/// Room in a request beside the data of a WRITE (bytes): headers, two names, extensions.
const REQUEST_SPARE: usize = 4096;
/// Errors from receiving, one after the other, after which a worker gives up.
const RECEIVE_ERRORS_MAX: u32 = 100;

/// The threads of a session.
pub(crate) struct Pool<F: ?Sized> {
    fs: Arc<F>,
    core: Arc<Core>,
    max: usize,
    /// Workers that wait for a request.
    idle: AtomicUsize,
    alive: Mutex<usize>,
    ended: Condvar,
}

impl<F: Filesystem + ?Sized> Pool<F> {
    pub(crate) fn new(fs: Arc<F>, core: Arc<Core>, max: usize) -> Self {
        Self { fs, core, max, idle: AtomicUsize::new(0), alive: Mutex::new(0), ended: Condvar::new() }
    }

    /// Starts the first worker; it starts others when there is work for them.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        self.add_worker()
    }

    /// Waits until the last worker has ended.
    pub(crate) fn wait(&self) {
        let mut alive = self.alive.lock();
        while *alive > 0 {
            self.ended.wait(&mut alive);
        }
    }

    fn add_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let mut alive = self.alive.lock();
        if *alive >= self.max {
            return Ok(());
        }
        let pool = Arc::clone(self);
        std::thread::Builder::new().name(format!("vellum-{}", *alive)).spawn(move || {
            let device = pool.core.worker_device();
            Worker::new(&pool, device).serve();
            *pool.alive.lock() -= 1;
            pool.ended.notify_all();
        })?;
        *alive += 1;
        Ok(())
    }
}

struct Worker<'a, F: ?Sized> {
    pool: &'a Arc<Pool<F>>,
    device: Arc<OwnedFd>,
    transport: Device,
    counters: Arc<Counters>,
    inbox: Buffer,
    outbox: Buffer,
}

impl<'a, F: Filesystem + ?Sized> Worker<'a, F> {
    fn new(pool: &'a Arc<Pool<F>>, device: Arc<OwnedFd>) -> Self {
        let data = (pool.core.negotiated.max_write as usize).max(wire::XATTR_MAX);
        Self {
            pool,
            transport: Device(Arc::clone(&device)),
            device,
            counters: pool.core.counters.add_worker(),
            inbox: Buffer::new(data + REQUEST_SPARE, WRITE_HEAD),
            outbox: Buffer::new(data + OUT_HEADER, OUT_HEADER),
        }
    }

    fn serve(&mut self) {
        let mut errors = 0;
        loop {
            self.pool.idle.fetch_add(1, Ordering::Relaxed);
            let received = self.transport.receive(self.inbox.bytes_mut());
            let others = self.pool.idle.fetch_sub(1, Ordering::Relaxed) - 1;
            match received {
                Ok(Received::Request(len)) => {
                    errors = 0;
                    if others == 0 {
                        let _ = self.pool.add_worker();
                    }
                    if self.answer(len) {
                        return;
                    }
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) => return,
                Err(error) => {
                    errors += 1;
                    tracing::error!(%error, "reading from the device");
                    if errors >= RECEIVE_ERRORS_MAX {
                        return;
                    }
                }
            }
        }
    }

    /// Answers the request in the inbox; true: the kernel has said goodbye.
    fn answer(&mut self, len: usize) -> bool {
        let core = &self.pool.core;
        let bytes = self.inbox.bytes().get(..len).unwrap_or_default();
        let setxattr_ext = core.negotiated.flags.contains(InitFlags::SETXATTR_EXT);
        let request = match request::parse(bytes, setxattr_ext) {
            Ok(request) => request,
            Err(bad) => {
                if bad.errno == Errno::IO {
                    tracing::error!(opcode = ?bad.opcode, len, "malformed request");
                }
                if let Some(unique) = bad.unique {
                    let _ = send(&mut self.transport, self.outbox.bytes_mut(), unique, -bad.errno.raw_os_error(), 0);
                }
                return false;
            }
        };
        self.counters.count(request.opcode);
        let unique = request.header.unique;
        if let Operation::Interrupt { .. } = request.operation {
            core.refuse_interrupt(unique);
            return false;
        }
        let dispatcher = Dispatcher {
            fs: &*self.pool.fs,
            negotiated: &core.negotiated,
            features: core.negotiated.features(),
            backing: &core.backing,
            device: &self.device,
        };
        let mut promise = Promise::default();
        let body = self.outbox.bytes_mut().get_mut(OUT_HEADER..).unwrap_or_default();
        // A panic loses one answer, never the mount.
        let answer = catch_unwind(AssertUnwindSafe(|| dispatcher.answer(&request, body, &mut promise)))
            .unwrap_or_else(|_| {
                tracing::error!(opcode = request.opcode.name(), node = request.header.nodeid, "panic");
                promise = Promise::default();
                if matches!(request.operation, Operation::Forget { .. } | Operation::BatchForget { .. }) {
                    Answer::Silence
                } else {
                    Answer::Status(Errno::IO)
                }
            });
        let (error, body_len) = match answer {
            Answer::Silence => return false,
            Answer::Status(errno) => (-errno.raw_os_error(), 0),
            Answer::Body(len) => (0, len),
        };
        let sent = send(&mut self.transport, self.outbox.bytes_mut(), unique, error, body_len);
        if let Err(error) = sent {
            // ENOENT: the request was given up by the kernel. Whatever else: it did not arrive either.
            if error != Errno::NOENT && error != Errno::NODEV {
                tracing::warn!(%error, opcode = request.opcode.name(), "reply refused by the kernel");
            }
            let body = self.outbox.bytes().get(OUT_HEADER..).unwrap_or_default();
            let undo = catch_unwind(AssertUnwindSafe(|| dispatcher.take_back(&promise, body)));
            if undo.is_err() {
                tracing::error!("panic while taking an answer back");
            }
        }
        matches!(request.operation, Operation::Destroy)
    }
}

/// Puts the header in front of the body that lies in `outbox` already, and sends both.
fn send(
    transport: &mut impl Transport,
    outbox: &mut [u8],
    unique: u64,
    error: i32,
    body_len: usize,
) -> Result<(), Errno> {
    let len = OUT_HEADER + body_len;
    let header = wire::OutHeader { len: len as u32, error, unique };
    header.write_to_prefix(outbox).map_err(|_| Errno::IO)?;
    transport.reply(outbox.get(..len).ok_or(Errno::IO)?)
}
