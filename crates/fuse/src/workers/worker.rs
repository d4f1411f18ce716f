//! Worker threads: read a request, answer it, again.

use crate::answer::dispatch::{Answer, Dispatcher, Promise};
use crate::files::pages;
use crate::request::{self, Operation};
use crate::session::Core;
use crate::session::inflight::{Inflight, Mark, Replay};
use crate::session::init::{WORKERS_MAX, Workers};
use crate::session::stats::Counters;
use crate::transport::{Device, ReceiveOutcome, Transport};
use crate::wire::{self, InitFlags, Opcode};
use crate::workers::buffer::Buffer;
use crate::workers::pool::{Need, Pool, Requests, client, is_slow};
use crate::workers::slot::Slot;
use crate::workers::spin::Spinner;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vellum_sys::cpu_latency::{CpuLatency, Pulse};
use vellum_vfs::{ActiveOperations, Filesystem, Progress};
use zerocopy::IntoBytes;

const OUT_HEADER: usize = size_of::<wire::OutHeader>();
/// What may lie in front of the data of a WRITE.
const WRITE_HEAD: usize = size_of::<wire::InHeader>() + size_of::<wire::WriteIn>();
/// Room in a request beside the data of a WRITE (bytes): headers, two names, extensions.
const REQUEST_SPARE: usize = 4096;
/// Errors from receiving, one after the other, after which a worker gives up.
const RECEIVE_ERRORS_MAX: u32 = 100;

/// How long a request may have been waiting to count as "there already", as seen by a read that sleeps.
const AT_ONCE: Duration = Duration::from_micros(3);

/// How long a worker waits for a request before it thinks of ending.
const REST: Duration = Duration::from_secs(2);

/// How long a worker looks for the next request at most while processors are kept awake: about what waking it takes then.
const SPIN_AWAKE: Duration = Duration::from_micros(10);

/// What the workers of a session share.
pub(crate) struct Crew<F: ?Sized> {
    pub(crate) fs: Arc<F>,
    pub(crate) core: Arc<Core>,
    pub(crate) pool: Pool,
    spin: Duration,
    /// Through which processors are kept awake; None: they are left alone.
    latency: Option<Arc<CpuLatency>>,
    /// Where what is being carried out is written down for a successor.
    inflight: Option<Arc<Inflight>>,
}

impl<F: Filesystem + ?Sized> Crew<F> {
    pub(crate) fn new(
        fs: Arc<F>,
        core: Arc<Core>,
        workers: Workers,
        latency: Option<Arc<CpuLatency>>,
        inflight: Option<Arc<Inflight>>,
    ) -> Self {
        Self {
            fs,
            core,
            pool: Pool::new(workers.max.clamp(1, WORKERS_MAX), workers.most.min(WORKERS_MAX)),
            spin: workers.spin,
            latency,
            inflight,
        }
    }

    /// Serves until the connection has ended; the calling thread watches over the workers.
    pub(crate) fn run(self: &Arc<Self>) -> std::io::Result<()>
    where
        F: 'static,
    {
        let crew = Arc::downgrade(self);
        self.core.notifier.set_workers(Box::new(move || {
            let now = crew.upgrade().map(|crew| crew.pool.active_requests()).unwrap_or_default();
            Box::new(ActiveRequests(Weak::clone(&crew), now))
        }));
        self.hire()?;
        let mut pulse = Pulse::new(self.latency.clone());
        self.pool.watch(
            || self.hire_or_log(),
            |requests, ticks| pulse.beat(requests, ticks),
            || self.core.wait_for_request(),
        );
        Ok(())
    }

    /// Starts one more worker.
    fn hire(self: &Arc<Self>) -> std::io::Result<()> {
        let slot = self.pool.hire();
        let crew = Arc::clone(self);
        let for_thread = Arc::clone(&slot);
        let started = std::thread::Builder::new().name(format!("vellum-{}", slot.number)).spawn(move || {
            let slot = for_thread;
            slot.take();
            match Worker::new(&crew, &slot) {
                Ok(mut worker) => {
                    if worker.serve() {
                        crew.pool.close();
                    }
                }
                // The others go on.
                Err(error) => tracing::error!(%error, "a worker cannot wait for requests"),
            }
            crew.pool.dismiss(&slot);
        });
        if started.is_err() {
            self.pool.dismiss(&slot);
        }
        started.map(drop)
    }

    fn hire_or_log(self: &Arc<Self>) {
        if let Err(error) = self.hire() {
            tracing::warn!(%error, "no further worker");
        }
    }

    /// Whether processors are being kept awake: there is little to be gained by spinning then.
    fn is_awake(&self) -> bool {
        self.latency.as_ref().is_some_and(|latency| latency.is_held())
    }

    fn provide(self: &Arc<Self>, need: Need) {
        if need == Need::Worker {
            self.hire_or_log();
        }
    }
}

/// Requests that workers had in hand.
struct ActiveRequests<F: ?Sized>(Weak<Crew<F>>, Requests);

impl<F: Filesystem + ?Sized> ActiveOperations for ActiveRequests<F> {
    fn is_finished(&self) -> bool {
        self.0.upgrade().is_none_or(|crew| crew.pool.has_answered(&self.1))
    }
}

struct Worker<'a, F: ?Sized> {
    crew: &'a Arc<Crew<F>>,
    slot: &'a Slot,
    device: Arc<OwnedFd>,
    transport: Device,
    counters: Arc<Counters>,
    spinner: Spinner,
    /// The last wait has ended without a request.
    is_idle: bool,
    /// When the request in the inbox arrived.
    arrived: Instant,
    inbox: Buffer,
    outbox: Buffer,
}

impl<'a, F: Filesystem + ?Sized> Worker<'a, F> {
    fn new(crew: &'a Arc<Crew<F>>, slot: &'a Slot) -> Result<Self, Errno> {
        let data = (crew.core.negotiated.max_write as usize).max(wire::XATTR_MAX);
        let device = crew.core.worker_device();
        Ok(Self {
            crew,
            slot,
            transport: Device::new(Arc::clone(&device))?,
            device,
            counters: crew.core.counters.add_worker(),
            spinner: Spinner::new(crew.spin),
            is_idle: false,
            arrived: Instant::now(),
            inbox: Buffer::new(data + REQUEST_SPARE, WRITE_HEAD),
            outbox: Buffer::new(data + OUT_HEADER, OUT_HEADER),
        })
    }

    /// Serves until the connection has ended (true), or there are workers enough.
    fn serve(&mut self) -> bool {
        let mut errors = 0;
        if self.crew.inflight.is_some() {
            // A process that is killed while the kernel waits for a page to read a request into takes the request with it: its sender
            // gets EIO in spite of a successor. So every page is there first, 1 MiB for each worker: the first long request can
            // come without a sign.
            self.inbox.touch();
        }
        loop {
            match self.receive() {
                Ok((ReceiveOutcome::Request(len), at_once)) => {
                    errors = 0;
                    let client = client(self.inbox.bytes().get(..len).unwrap_or_default());
                    let need = self.crew.pool.begin(self.slot, client, at_once);
                    self.crew.provide(need);
                    let goodbye = self.answer(len);
                    if goodbye {
                        return true;
                    }
                    if !self.crew.pool.done(self.slot) {
                        return false;
                    }
                }
                Ok((ReceiveOutcome::Nothing, _)) => {
                    if self.is_idle && self.crew.pool.should_end(self.slot) {
                        return false;
                    }
                }
                Ok((ReceiveOutcome::Closed, _)) => return true,
                Err(error) => {
                    errors += 1;
                    tracing::error!(%error, "reading from the device");
                    if errors >= RECEIVE_ERRORS_MAX {
                        return true;
                    }
                }
            }
        }
    }

    /// Waits for a request, awake for a moment if that pays, then asleep; says whether it was there at once.
    fn receive(&mut self) -> Result<(ReceiveOutcome, bool), Errno> {
        let limit = self.spinner.limit();
        let limit = if self.crew.is_awake() { limit.min(SPIN_AWAKE) } else { limit };
        if !limit.is_zero() && self.crew.pool.readers() == 1 {
            let begin = Instant::now();
            let received = self.transport.spin(self.inbox.bytes_mut(), limit)?;
            self.arrived = Instant::now();
            self.spinner.learn(received != ReceiveOutcome::Nothing);
            if received != ReceiveOutcome::Nothing {
                return Ok((received, self.arrived - begin < AT_ONCE));
            }
        }
        let begin = Instant::now();
        // Where several read, much comes, and the next one may be there.
        if self.crew.pool.readers() > 1 {
            let received = self.transport.receive(self.inbox.bytes_mut())?;
            if received != ReceiveOutcome::Nothing {
                self.arrived = Instant::now();
                return Ok((received, self.arrived - begin < AT_ONCE));
            }
        }
        self.is_idle = !self.transport.wait(Some(REST))?;
        let at_once = begin.elapsed() < AT_ONCE;
        let received = self.transport.receive(self.inbox.bytes_mut())?;
        self.arrived = Instant::now();
        Ok((received, at_once))
    }

    /// Answers the request in the inbox, and counts it; true: the kernel has said goodbye.
    fn answer(&mut self, len: usize) -> bool {
        let (goodbye, opcode) = self.answer_it(len);
        if let Some(opcode) = opcode {
            self.counters.took(opcode, self.arrived.elapsed());
        }
        goodbye
    }

    /// Answers a message without counting its time. Also says what kind of request it was, if it was one.
    fn answer_it(&mut self, len: usize) -> (bool, Option<Opcode>) {
        let core = &self.crew.core;
        let bytes = self.inbox.bytes().get(..len).unwrap_or_default();
        let setxattr_ext = core.negotiated.flags.contains(InitFlags::SETXATTR_EXT);
        let request = match request::parse(bytes, setxattr_ext) {
            Ok(request) => request,
            Err(bad) => {
                if bad.errno == Errno::IO {
                    tracing::error!(opcode = ?bad.opcode, len, "malformed request");
                }
                if let Some(unique) = bad.unique {
                    let _ = send(
                        &mut self.transport,
                        self.outbox.bytes_mut(),
                        unique,
                        -bad.errno.raw_os_error(),
                        0,
                    );
                }
                return (false, None);
            }
        };
        let opcode = request.opcode;
        self.counters.count(opcode);
        let unique = request.header.unique;
        if let Operation::Interrupt { .. } = request.operation {
            core.refuse_interrupt(unique);
            return (false, Some(opcode));
        }
        if is_slow(&request, core.slow_xattr) {
            let need = self.crew.pool.step_aside(self.slot);
            self.crew.provide(need);
        }
        if let Operation::Read { args } = &request.operation
            && pages::fills_pages(args)
        {
            core.pages.add(request.header.nodeid, self.arrived);
        }
        let inflight = self.crew.inflight.as_deref();
        let beginning = RequestStart { inflight, worker: self.slot.number, unique, mark: Cell::new(None) };
        let dispatcher = Dispatcher {
            fs: &*self.crew.fs,
            negotiated: &core.negotiated,
            duties: core.negotiated.duties(),
            backing: &core.backing,
            device: &self.device,
            replay: inflight.map_or(Replay::Fresh, |inflight| inflight.replay(unique)),
            progress: &beginning,
        };
        if let Some(counts) = inflight.and_then(|inflight| inflight.take_counts(unique)) {
            revert(&dispatcher, &counts.into(), &[]);
        }
        let written = inflight.filter(|_| {
            // A panic here loses nothing: the request is carried out as any other.
            let mark = catch_unwind(AssertUnwindSafe(|| dispatcher.mark(&request))).ok().flatten();
            beginning.mark.set(mark.map(|(mark, _)| mark));
            if mark.is_some_and(|(_, is_told)| !is_told) {
                beginning.begins();
            }
            mark.is_some()
        });
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
            Answer::Silence => return (false, Some(opcode)),
            Answer::Status(errno) => {
                // The next time it is refused again.
                if let Some(inflight) = written {
                    inflight.end(self.slot.number, unique);
                }
                (-errno.raw_os_error(), 0)
            }
            Answer::Body(len) => (0, len),
        };
        if let Operation::Write { args, .. } = &request.operation
            && error == 0
            && pages::passes_pages(args)
            && core.pages.has(request.header.nodeid, self.arrived)
        {
            let whole = prepare(self.outbox.bytes_mut(), unique, error, body_len).ok();
            let node = request.node();
            if let Some(answer) = whole.and_then(|answer| answer.try_into().ok())
                && core.notifier.answer_after(node, (args.offset, args.size.into()), answer, &self.device)
            {
                return (false, Some(opcode));
            }
        }
        let promises = inflight.zip(promise.answer_counts());
        if let Some((inflight, what)) = promises {
            inflight.note_counts(self.slot.number, unique, what);
        }
        let sent = send(&mut self.transport, self.outbox.bytes_mut(), unique, error, body_len);
        if let Some((inflight, _)) = promises {
            inflight.has_promised(self.slot.number);
        }
        if let Some(inflight) = written {
            inflight.end(self.slot.number, unique);
        }
        if let Err(error) = sent {
            // ENOENT: the request was given up by the kernel. Whatever else: it did not arrive either.
            if error != Errno::NOENT && error != Errno::NODEV {
                tracing::warn!(%error, opcode = request.opcode.name(), "reply refused by the kernel");
            }
            let body = self.outbox.bytes().get(OUT_HEADER..).unwrap_or_default();
            revert(&dispatcher, &promise, body);
        }
        (matches!(request.operation, Operation::Destroy), Some(opcode))
    }
}

impl<F: ?Sized> Drop for Worker<'_, F> {
    fn drop(&mut self) {
        self.crew.core.leaves_device(&self.device);
    }
}

fn revert<F: Filesystem + ?Sized>(dispatcher: &Dispatcher<'_, F>, promise: &Promise, body: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| dispatcher.revert(promise, body))).is_err() {
        tracing::error!("panic while taking an answer back");
    }
}

/// Writes down for a successor that a request has been begun.
struct RequestStart<'a> {
    inflight: Option<&'a Inflight>,
    worker: usize,
    unique: u64,
    /// None: it can be carried out twice.
    mark: Cell<Option<Mark>>,
}

impl Progress for RequestStart<'_> {
    fn begins(&self) {
        if let (Some(inflight), Some(mark)) = (self.inflight, self.mark.get()) {
            inflight.begin(self.worker, self.unique, mark);
        }
    }

    /// Struck out when the answer is known, and says the same.
    fn has_failed(&self) {}
}

/// Puts the header in front of the body that lies in `outbox` already.
fn prepare(outbox: &mut [u8], unique: u64, error: i32, body_len: usize) -> Result<&[u8], Errno> {
    let len = OUT_HEADER + body_len;
    let header = wire::OutHeader { len: len as u32, error, unique };
    header.write_to_prefix(outbox).map_err(|_| Errno::IO)?;
    outbox.get(..len).ok_or(Errno::IO)
}

/// Puts the header in front of the body that lies in `outbox` already, and sends both.
fn send(
    transport: &mut impl Transport,
    outbox: &mut [u8],
    unique: u64,
    error: i32,
    body_len: usize,
) -> Result<(), Errno> {
    transport.reply(prepare(outbox, unique, error, body_len)?)
}
