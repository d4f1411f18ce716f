//! A connection that is served: INIT, worker threads, the end.

pub(crate) mod inflight;
pub(crate) mod init;
pub(crate) mod notify;
pub(crate) mod stats;

use crate::files::backing::BackingTable;
use crate::files::pages::Pages;
use crate::mount::{self, FuseMount, MountError};
use crate::request::{self, Operation};
use crate::session::init::{InitProblem, SessionOptions, SessionParameters, Settings};
use crate::session::notify::FuseNotifier;
use crate::session::stats::{AllCounters, Counts, Times};
use crate::transport::{Device, ReceiveOutcome, Transport};
use crate::warn_once;
use crate::wire;
use crate::wire::{InitFlags, Opcode};
use crate::workers::buffer::Buffer;
use crate::workers::worker::Crew;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use vellum_sys::cpu_latency::CpuLatency;
use vellum_sys::fuse_dev;
use vellum_vfs::{Connection, Error, Filesystem, Result};
use zerocopy::IntoBytes;

/// What does not depend on the filesystem.
pub(crate) struct Core {
    pub(crate) device: Arc<OwnedFd>,
    /// Every descriptor of the connection that requests are read from.
    pub(crate) devices: Mutex<Vec<WorkerDevice>>,
    pub(crate) negotiated: SessionParameters,
    pub(crate) backing: BackingTable,
    pub(crate) counters: AllCounters,
    pub(crate) notifier: FuseNotifier,
    pub(crate) slow_xattr: Option<&'static CStr>,
    pub(crate) pages: Pages,
    mountpoint: Option<PathBuf>,
    clone_warned: AtomicBool,
}

/// A descriptor that a worker reads from, or has read from.
#[derive(Clone)]
pub(crate) struct WorkerDevice {
    fd: Arc<OwnedFd>,
    is_lent: bool,
}

impl Core {
    /// A descriptor for one more worker: one that a worker has left, or a clone with a queue of its own where that is possible.
    pub(crate) fn worker_device(&self) -> Arc<OwnedFd> {
        let mut devices = self.devices.lock();
        if let Some(left) = devices.iter_mut().find(|device| !device.is_lent) {
            left.is_lent = true;
            return Arc::clone(&left.fd);
        }
        let clone = if devices.is_empty() {
            Ok(Arc::clone(&self.device))
        } else {
            fuse_dev::clone(&*self.device).map(Arc::new)
        };
        match clone {
            Ok(fd) => {
                devices.push(WorkerDevice { fd: Arc::clone(&fd), is_lent: true });
                fd
            }
            Err(error) => {
                warn_once(&self.clone_warned, || {
                    tracing::debug!(%error, "workers share one descriptor");
                });
                Arc::clone(&self.device)
            }
        }
    }

    /// A worker has ended, and has answered all that it has read.
    pub(crate) fn leaves_device(&self, fd: &Arc<OwnedFd>) {
        if let Some(device) = self.devices.lock().iter_mut().find(|device| Arc::ptr_eq(&device.fd, fd)) {
            device.is_lent = false;
        }
    }

    /// Waits until there is a request, or the connection has ended. Nobody else waits.
    pub(crate) fn wait_for_request(&self) {
        let mut state = [PollFd::new(&*self.device, PollFlags::IN)];
        while poll(&mut state, None) == Err(Errno::INTR) {}
    }

    /// Answers an INTERRUPT. No operation of ours can be broken off half-way, and ENOSYS says so: the kernel then
    /// sends no further INTERRUPT on this connection and waits for the answer (a process that is being
    /// killed goes at once if its request has not been read yet). To take it and do nothing would be the same with more requests: one
    /// for each signal that meets a waiting client. It does not say whether the client is to die or only has a timer, so EINTR could
    /// only be the answer where a signal may end a wait on any filesystem: an open that meets a lease, which waits for 0.2 s at most. The kernel looks for the request only among those
    /// of the descriptor that we write to, so it is said on each until one knows it; ENOENT from all of them
    /// means that the request has been answered in the meantime, which is as good.
    pub(crate) fn refuse_interrupt(&self, unique: u64) {
        let len = size_of::<wire::OutHeader>() as u32;
        let header = wire::OutHeader { len, error: -Errno::NOSYS.raw_os_error(), unique };
        let devices = self.devices.lock().clone();
        for device in devices {
            if rustix::io::write(&*device.fd, header.as_bytes()).is_ok() {
                return;
            }
        }
    }
}

/// A mounted filesystem that is being served.
///
/// # Workers
///
/// Threads are started as they are needed, up to [`Workers::max`](crate::Workers::max), and as few as possible
/// wait for requests at a time, normally one, which waits awake for up to
/// [`Workers::spin`](crate::Workers::spin) before it sleeps. What that is worth, measured with
/// `examples/request_cost.rs` (time of a LOOKUP as the client sees it; kernel 6.18, virtual machine, 2 processors, halt
/// polling off in guest; medians, a third up or down from run to run):
///
/// | workers | 1 client | 2 clients | 1 client beside a busy process |
/// | --- | --- | --- | --- |
/// | one, asleep | 29 to 33 us | 62 us | 10 to 13 us |
/// | four in read(2), started on demand as libfuse does | 20 to 23 us | 41 us | 13 to 17 us |
/// | as here, without spinning | 28 to 32 us | 48 to 53 us | 11 to 14 us |
/// | as here, spinning 30 us | 18 to 24 us | 50 us | 13 us |
/// | as here, spinning 60 us (the default) | 15 to 18 us | 29 to 41 us | 12 to 13 us |
/// | as here, spinning 100 us | 14 to 24 us | 29 us | 15 us |
/// | with [`Session::share_cpu_latency`] | 10 to 11 us | 29 to 47 us | 11 us |
///
/// Two wake-ups of a sleeping processor, 10 to 15 us each, are nearly all of a round trip; when both processors are
/// busy anyway it takes a third. Spinning saves the worker's wake-up; the client's own remains, and is the floor
/// here. Processor time per request rises from 9 to 14 us on the otherwise idle machine and not at all on a busy one.
/// Four threads in read(2) gain their part by accident: the thread that has just replied has often not
/// fallen asleep yet when the next request comes, at the price of 1.2 to 1.4 switches per request.
/// Pinning a worker to the client's processor gains nothing: the scheduler moves the client to the idle one when
/// it is woken.
pub struct Session<F: Filesystem + ?Sized> {
    fs: Arc<F>,
    core: Arc<Core>,
    options: SessionOptions,
    latency: Option<Arc<CpuLatency>>,
}

impl<F: Filesystem + ?Sized> Session<F> {
    /// Negotiates with the kernel about a fresh mount. EPROTO: the kernel's FUSE is older than 7.31; ENODEV: it has
    /// been unmounted in the meantime.
    pub fn new(fs: Arc<F>, mounted: FuseMount, options: SessionOptions) -> Result<Self> {
        let device = Arc::new(mounted.device);
        let mut negotiated = handshake(&device, &options)?;
        if negotiated.max_readahead < options.max_readahead
            && mount::set_read_ahead(&device, &mounted.mountpoint, options.max_readahead)
        {
            negotiated.max_readahead = options.max_readahead;
        }
        if options.writeback && options.profile == vellum_vfs::Profile::Cached {
            let lifted = mount::lift_strict_limit(&device, &mounted.mountpoint);
            tracing::debug!(lifted, "the strict limit of unwritten data");
        }
        tracing::info!(%negotiated, mountpoint = %mounted.mountpoint.display(), "mounted");
        let pages = Pages::new(false);
        Ok(Self::assemble(fs, device, negotiated, options, pages, Some(mounted.mountpoint)))
    }

    /// Goes on with a connection that has been negotiated before, by a predecessor that has handed its
    /// descriptor over. Node ids and handles that the kernel holds must mean the same to `fs`. Requests that the
    /// predecessor has left unanswered come again after [`FuseNotifier::resend`].
    pub fn from_fd(
        fs: Arc<F>,
        device: OwnedFd,
        negotiated: SessionParameters,
        options: SessionOptions,
        mountpoint: Option<PathBuf>,
    ) -> Self {
        Self::assemble(fs, Arc::new(device), negotiated, options, Pages::new(true), mountpoint)
    }

    fn assemble(
        fs: Arc<F>,
        device: Arc<OwnedFd>,
        negotiated: SessionParameters,
        options: SessionOptions,
        pages: Pages,
        mountpoint: Option<PathBuf>,
    ) -> Self {
        let notifier = FuseNotifier::new(Arc::clone(&device), options.inflight.clone());
        let core = Core {
            device,
            devices: Mutex::default(),
            negotiated,
            backing: BackingTable::new(options.inflight.is_some()),
            counters: AllCounters::default(),
            notifier,
            slow_xattr: options.slow_xattr,
            pages,
            mountpoint,
            clone_warned: AtomicBool::new(false),
        };
        Self { fs, core: Arc::new(core), options, latency: None }
    }

    /// A handle for other threads.
    #[must_use]
    pub fn handle(&self) -> SessionHandle {
        SessionHandle(Arc::clone(&self.core))
    }

    /// Requests per opcode so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.counters.sum()
    }

    /// Processors are kept awake while requests come in numbers, through what all sessions of a process share.
    pub fn share_cpu_latency(&mut self, latency: Arc<CpuLatency>) {
        self.latency = Some(latency);
    }

    /// Serves until the mount has gone. Errors only when no thread can be started.
    pub fn run(self) -> Result<()> {
        let notifier = self.core.notifier.clone();
        self.fs.start(Connection {
            duties: self.core.negotiated.duties(),
            notifier: Arc::new(notifier.clone()),
        });
        let (latency, inflight) = (self.latency, self.options.inflight.clone());
        if let Some(inflight) = inflight.as_ref().filter(|inflight| inflight.is_of_successor())
            && self.core.negotiated.flags.contains(InitFlags::PASSTHROUGH)
        {
            self.core.backing.resume(&self.core.device, &*self.fs, inflight.descriptor());
        }
        let (fs, core) = (Arc::clone(&self.fs), Arc::clone(&self.core));
        let crew = Crew::new(fs, core, self.options.workers, latency, inflight);
        let result = Arc::new(crew).run().map_err(|error| thread_error(&error));
        notifier.close();
        self.fs.stop();
        tracing::info!("session has ended");
        result
    }

    /// Serves on a thread of its own.
    pub fn spawn(self) -> Result<(SessionHandle, JoinHandle<Result<()>>)> {
        let handle = self.handle();
        let thread = std::thread::Builder::new()
            .name("vellum-session".into())
            .spawn(move || self.run())
            .map_err(|error| thread_error(&error))?;
        Ok((handle, thread))
    }
}

/// What other threads may do with a session. It keeps the connection's descriptor open.
#[derive(Clone)]
pub struct SessionHandle(Arc<Core>);

impl SessionHandle {
    /// Takes the mount off; [`Session::run`] then ends. EBUSY while it is in use, unless `lazy`.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        match &self.0.mountpoint {
            Some(path) => mount::unmount(path, lazy),
            None => Err(MountError::Mountpoint(PathBuf::new(), Errno::NOENT)),
        }
    }

    /// Where it is mounted, as far as the session knows.
    #[must_use]
    pub fn mountpoint(&self) -> Option<&Path> {
        self.0.mountpoint.as_deref()
    }

    /// What has been negotiated.
    #[must_use]
    pub fn negotiated(&self) -> &SessionParameters {
        &self.0.negotiated
    }

    /// Requests per opcode so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counters.sum()
    }

    /// How long requests took, by opcode, those that have come.
    #[must_use]
    pub fn times(&self) -> Vec<(Opcode, Times)> {
        self.0.counters.times()
    }

    /// How many writes have come, and how many of them are done.
    #[must_use]
    pub fn writes(&self) -> [u64; 2] {
        self.0.counters.get(Opcode::Write).map_or([0; 2], |times| [times.begun, times.classes.iter().sum()])
    }

    /// The way to tell the kernel something unasked.
    #[must_use]
    pub fn notifier(&self) -> FuseNotifier {
        self.0.notifier.clone()
    }

    /// Nodes that are open with a backing file at the moment.
    #[must_use]
    pub fn backed_nodes(&self) -> usize {
        self.0.backing.len()
    }

    /// The connection's descriptor, to be handed to a successor.
    #[must_use]
    pub fn device(&self) -> BorrowedFd<'_> {
        self.0.device.as_fd()
    }
}

fn thread_error(error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
    Error::new(errno, "starting a thread")
}

fn handshake(device: &Arc<OwnedFd>, options: &SessionOptions) -> Result<SessionParameters> {
    /// Most looks and messages before an INIT that can be answered; two messages are normal with a newer major version.
    const TRIES: usize = 32;
    let settings = Settings::detect();
    let mut transport =
        Device::new(Arc::clone(device)).map_err(|error| Error::new(error, "waiting for INIT"))?;
    let mut inbox = Buffer::new(wire::MIN_READ_BUFFER, 0);
    for _ in 0..TRIES {
        let len = match transport.receive(inbox.bytes_mut()) {
            Ok(ReceiveOutcome::Request(len)) => len,
            Ok(ReceiveOutcome::Nothing) => {
                transport.wait(None).map_err(|error| Error::new(error, "waiting for INIT"))?;
                continue;
            }
            Ok(ReceiveOutcome::Closed) => return Err(Error::new(Errno::NODEV, "unmounted before INIT")),
            Err(error) => return Err(Error::new(error, "reading INIT")),
        };
        let bytes = inbox.bytes().get(..len).unwrap_or_default();
        let Ok(request) = request::parse(bytes, false) else { continue };
        let Operation::Init { args, ext } = request.operation else {
            reply(&mut transport, request.header.unique, -Errno::IO.raw_os_error(), &[])?;
            continue;
        };
        match init::negotiate(options, &args, ext.as_ref(), settings) {
            Ok((negotiated, out)) => {
                reply(&mut transport, request.header.unique, 0, out.as_bytes())?;
                return Ok(negotiated);
            }
            Err(InitProblem::NewerMajor) => {
                let out = wire::InitOut {
                    major: wire::MAJOR,
                    minor: wire::MINOR_NEWEST,
                    ..wire::InitOut::default()
                };
                reply(&mut transport, request.header.unique, 0, out.as_bytes())?;
            }
            Err(InitProblem::TooOld(major, minor)) => {
                reply(&mut transport, request.header.unique, -Errno::PROTO.raw_os_error(), &[])?;
                tracing::error!(major, minor, "the kernel's FUSE is older than 7.31");
                return Err(Error::new(Errno::PROTO, "the kernel's FUSE is older than 7.31"));
            }
        }
    }
    Err(Error::new(Errno::PROTO, "no INIT"))
}

fn reply(transport: &mut Device, unique: u64, error: i32, body: &[u8]) -> Result<()> {
    let len = size_of::<wire::OutHeader>() + body.len();
    let header = wire::OutHeader { len: len as u32, error, unique };
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    transport.reply(&bytes).map_err(|error| Error::new(error, "answering INIT"))
}
