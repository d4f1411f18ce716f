//! The service: serves all mounts of a pool, or one of its own, those of its predecessor first.

use super::mount_client::user_namespace;
use super::new_mount::{NewMount, SessionResources};
use super::sockets::{self, Listeners};
use super::supervisor_state::SupervisorState;
use super::wire::{self, FirstMount, Reply, Request, Status};
use super::{AT_ONCE, ENDING, FORMAT, REPLACE, resume};
use crate::failure::Failure;
use crate::instance::{background_fill, lost_forgets};
use crate::layers::ceph;
use crate::layers::lock::DirLock;
use crate::layers::zoned;
use crate::mounts::flatten_after_unmount;
use crate::process::daemon::StartupReport;
use crate::process::node_memory;
use crate::store_server;
use libc::SIGHUP;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_ring_server::{Entrance, Files, PendingClients, Readable, RingServer, Room};
use vellum_sys::cpu_latency::CpuLatency;
use vellum_sys::{BlockedSignals, InheritedFds, drop_code, trim_memory};
use vellum_union::Union;

/// How long a client may take over one message.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often there is a look whether there is anything left to serve.
const LOOK: Duration = Duration::from_millis(500);
/// In one of so many looks it is asked how much memory there is.
const LOOKS: u32 = 10;
/// So long without mounts and clients, and the service ends.
const IDLE: Duration = Duration::from_secs(1);
/// Seconds that a mount takes to begin, with its first requests.
const BEGINNING: u32 = 13;
/// Clients that are heard at the same time.
const CLIENTS_MAX: usize = 64;

#[derive(Default)]
struct Books {
    /// Mounts that are being served.
    mounts: usize,
    /// All that there were so far.
    begun: u64,
    /// Mounts that have ended, and whose upper layers are being completed.
    ending: usize,
    clients: usize,
    /// Somebody has asked for the end.
    stopping: bool,
}

pub(super) struct PoolService {
    restarts: u64,
    program: PathBuf,
    supervisor: Pid,
    user_namespace: Option<u64>,
    /// What has been given up, for those who ask.
    confined: BTreeMap<String, String>,
    processors: Option<usize>,
    /// It may connect to Ceph clusters.
    reaches_ceph: bool,
    /// Keeps processors awake for sessions and rings.
    latency: Arc<CpuLatency>,
    /// It has sockets.
    pooled: bool,
    board: SupervisorState,
    books: Mutex<Books>,
    /// How programs come to files beside the mounts.
    ring_server: Arc<RingServer<Union>>,
    /// A mount has gone.
    changed: Condvar,
}

/// What a service is told by its supervisor.
pub(super) struct Orders<'a> {
    /// The pool's sockets; None: it serves one mount of its own, and is reached by that alone.
    pub(super) listeners: Option<&'a Listeners>,
    /// Who waits until that one is served.
    pub(super) pending: Option<&'a StartupReport>,
    /// The program that a successor would be.
    pub(super) program: &'a Path,
    /// Stay when nothing is mounted.
    pub(super) stay: bool,
    pub(super) supervisor: Pid,
    pub(super) user_namespace: Option<u64>,
    /// What has been given up.
    pub(super) confined: BTreeMap<String, String>,
    /// Of this machine, as far as is known.
    pub(super) processors: Option<usize>,
    /// It may connect to Ceph clusters.
    pub(super) reaches_ceph: bool,
    /// What is to end the service.
    pub(super) signals: &'a BlockedSignals,
    /// Where programs show what no domain keeps them from.
    pub(super) room: Option<Arc<Room>>,
    /// What all of the family know.
    pub(super) board: SupervisorState,
    /// Wakes the supervisor.
    pub(super) word: &'a StartupReport,
}

/// What a service begins with.
pub(super) enum ServiceStart {
    /// A mount that has just been made.
    Fresh(Box<NewMount>),
    /// One whose layers can be opened only when everything has been given up.
    Asked(Box<FirstMount>),
    /// What a predecessor had open.
    Heritage(InheritedFds),
}

impl ServiceStart {
    pub(super) fn fresh(fresh: NewMount) -> Self {
        Self::Fresh(Box::new(fresh))
    }
}

/// Serves until nothing is left to be served.
pub(super) fn serve(orders: &Orders<'_>, begin: ServiceStart) -> Result<(), Failure> {
    let begun = Instant::now();
    let restarts = orders.board.restarts();
    let latency = Arc::<CpuLatency>::default();
    let service = Arc::new(PoolService {
        restarts,
        program: orders.program.to_owned(),
        supervisor: orders.supervisor,
        user_namespace: orders.user_namespace,
        confined: orders.confined.clone(),
        processors: orders.processors,
        reaches_ceph: orders.reaches_ceph,
        ring_server: RingServer::new(orders.room.clone(), Arc::clone(&latency)),
        latency,
        pooled: orders.listeners.is_some(),
        board: orders.board,
        books: Mutex::default(),
        changed: Condvar::new(),
    });
    let pending = match begin {
        ServiceStart::Fresh(fresh) => {
            service.run(*fresh)?;
            orders.pending
        }
        ServiceStart::Asked(gift) => {
            let FirstMount { request, descriptors } = *gift;
            service.run(NewMount::prepare(&request, descriptors, false)?)?;
            orders.pending
        }
        ServiceStart::Heritage(inherited) => {
            resume::all(&service, inherited);
            None
        }
    };
    if restarts > 0 {
        let mounts = service.books.lock().mounts;
        tracing::info!(
            mounts,
            milliseconds = begun.elapsed().as_millis() as u64,
            "serves the mounts of its predecessor"
        );
    }
    let (ending, word) = (Arc::clone(&service), orders.word.try_clone()?);
    let signals = orders.signals.clone();
    std::thread::Builder::new()
        .name("vellum-signals".into())
        .spawn(move || ending.end_on(&signals, &word))
        .map_err(|e| Failure::system("cannot start a thread").because(e))?;
    orders.board.set_serving();
    if let Some(pending) = pending
        && let Err(failure) = pending.ready()
    {
        tracing::error!("{failure}");
    }
    let served = match orders.listeners {
        Some(listeners) => service.listen(listeners, orders.stay),
        None => {
            service.wait();
            Ok(())
        }
    };
    // What a command was writing to a store is of use to somebody, whatever became of the mounts.
    store_server::wait_until_unused();
    served
}

impl PoolService {
    /// Serves a mount; the record and the locks are held until it has gone.
    pub(super) fn run(self: &Arc<Self>, fresh: NewMount) -> Result<(), Failure> {
        let NewMount { config, mut instance, mut session, beside } = fresh;
        let SessionResources { record, locks, generations, handouts } = beside;
        let tree = Arc::clone(&instance.tree);
        let record = Arc::new(record);
        instance.record = Some(Arc::clone(&record));
        instance.watch_cache();
        instance.report.sandbox = self.confined.clone();
        instance.report.processors = config.keep_awake.report(self.processors, &self.latency);
        let keep_awake = config.keep_awake.is_wanted(self.processors);
        if keep_awake {
            session.share_cpu_latency(Arc::clone(&self.latency));
        }
        let failed = |e: &dyn std::error::Error| Failure::system("serving the mount").because(e);
        let handle = session.handle();
        if let Some(rate) = config.background_fill
            && let Err(e) = background_fill::start(&tree, handle.clone(), rate)
        {
            tracing::warn!("partial files stay partial: {e}");
        }
        if let Err(e) = node_memory::watch(&tree) {
            tracing::warn!("memory of nodes is not bounded: {e}");
        }
        if self.restarts > 0
            && let Err(e) = lost_forgets::start(&tree)
        {
            tracing::warn!("what the last service was to forget may stay: {e}");
        }
        let files = handouts.filter(|_| tree.can_hand_out()).map(|handouts| {
            let entrance = Arc::<Entrance>::default();
            instance.entrance = Some(Arc::clone(&entrance));
            let tree = Arc::downgrade(&tree);
            Files { tree, entrance, numbers: handouts.numbers(config.volatile) }
        });
        let memory = generations.map(|memory| Readable { id: memory.id(), memory });
        let number = self.ring_server.add(vellum_ring_server::Mount { memory, files, keep_awake });
        {
            let mut books = self.books.lock();
            books.mounts += 1;
            books.begun += 1;
        }
        let service = Arc::clone(self);
        let (ended, config) = (instance.into_questions(), config.clone());
        drop(tree);
        let serve = move || {
            // A panic must not keep what follows from being done.
            if !matches!(catch_unwind(AssertUnwindSafe(|| session.run())), Ok(Ok(()))) {
                tracing::error!("a session has ended badly");
            }
            // What is written behind before that: a successor that comes meanwhile writes it, by the record.
            if config.write_behind.is_some()
                && let Err(error) = ended.tree.sync_all()
            {
                tracing::error!(%error, "something could not be written when the mount ended");
            }
            // The record first: a successor must not find a mount whose descriptors are being closed.
            record.close();
            service.ring_server.remove(number);
            // `vellum umount` waits until the connection is closed: then the layers are free, unless they are still to be filled.
            let filled = config.fill_at_end.0 > 0 && ended.tree.needs_lowers();
            let handle = (!filled).then_some(handle);
            {
                let mut books = service.books.lock();
                books.ending += 1;
                books.mounts -= 1;
            }
            let locks: Vec<DirLock> = locks.into_iter().map(DirLock::from).collect();
            flatten_after_unmount::complete(&*ended.tree, &config, &locks);
            zoned::write_out();
            drop(ended);
            drop(locks);
            drop(handle);
            service.books.lock().ending -= 1;
            service.changed.notify_all();
        };
        // Before anybody is answered.
        self.board.begin_mount();
        let started = std::thread::Builder::new().name("vellum-session".into()).spawn(serve);
        started.map(drop).map_err(|e| {
            self.ring_server.remove(number);
            self.books.lock().mounts -= 1;
            failed(&e)
        })
    }

    /// Counts a mount that will be served, so that the service stays for it.
    pub(super) fn expect(self: &Arc<Self>) -> MountGuard {
        self.books.lock().mounts += 1;
        MountGuard(Arc::clone(self))
    }

    /// Waits until the last mount has gone, and nothing more is done about its upper layer.
    fn wait(&self) {
        let mut books = self.books.lock();
        while books.mounts > 0 || books.ending > 0 {
            self.changed.wait(&mut books);
        }
    }

    /// Hears clients, until there have been neither mounts nor clients for a while.
    fn listen(self: &Arc<Self>, listeners: &Listeners, stay: bool) -> Result<(), Failure> {
        let mut idle_since = Instant::now();
        let mut waiting = PendingClients::default();
        let namespace = user_namespace().unwrap_or_default();
        let mut short = false;
        // A predecessor of another version may not have done so.
        sockets::refuse_rights(&listeners.session);
        let mut looks = (0..LOOKS).cycle();
        loop {
            if looks.next() == Some(0) {
                node_memory::look();
            }
            self.ring_server.sweep();
            let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            // Programs that have sent what cannot be closed keep others away, but nobody from mounting.
            let no_programs = short || self.ring_server.is_full();
            let programs = if no_programs { PollFlags::empty() } else { PollFlags::IN };
            // Those who cannot be let in for want of descriptors are there all the time: they are not looked at for a while.
            let owners = if short { PollFlags::empty() } else { PollFlags::IN };
            short = false;
            let mut all =
                vec![PollFd::new(&listeners.control, owners), PollFd::new(&listeners.session, programs)];
            all.extend(waiting.iter().map(|program| PollFd::new(program, PollFlags::IN)));
            let polled = poll(&mut all, Some(&wait));
            let [control, session] =
                [0, 1].map(|at| all.get(at).is_some_and(|one| !one.revents().is_empty()));
            match polled {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    if control {
                        short |= self.accept(&listeners.control).is_err_and(|e| sockets::is_shortage(&e));
                    }
                    if session {
                        let greeted = self.ring_server.greet(&listeners.session, namespace, &mut waiting);
                        short |= greeted.is_err_and(|e| sockets::is_shortage(&e));
                    }
                    self.ring_server.serve_waiting(&mut waiting);
                }
                Err(e) => return Err(Failure::system("the pool's socket").because(e)),
            }
            let books = self.books.lock();
            let stopping = books.stopping || self.board.is_ending();
            let others = books.clients + books.ending + usize::from(store_server::is_used());
            if books.mounts > 0 || others > 0 && !stopping {
                idle_since = Instant::now();
            } else if stopping || !stay && idle_since.elapsed() >= IDLE {
                return Ok(());
            }
        }
    }

    /// Hears an owner in a thread of his own, unless there are as many as there may be.
    fn accept(self: &Arc<Self>, listener: &UnixListener) -> io::Result<()> {
        let (mut client, _) = listener.accept()?;
        {
            let mut books = self.books.lock();
            if books.clients >= CLIENTS_MAX {
                drop(books);
                // There is room for it: nothing was sent before.
                let busy = Failure::system("as many clients as there may be").remedy("try again");
                return wire::send(&mut client, &Reply::Failed(busy), &[]);
            }
            books.clients += 1;
        }
        // Whatever becomes of the thread.
        let counted = ClientGuard(Arc::clone(self));
        let started = std::thread::Builder::new().name("vellum-client".into()).spawn(move || {
            if let Err(error) = counted.0.serve_client(client) {
                tracing::debug!(%error, "a client");
            }
        });
        if let Err(error) = started {
            tracing::debug!(%error, "a thread for a client");
        }
        Ok(())
    }

    fn serve_client(self: &Arc<Self>, mut client: UnixStream) -> std::io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let peer = vellum_sys::peer(client.as_fd())?;
        if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
            tracing::warn!(uid = peer.uid, pid = peer.process.unwrap_or_default(), "a stranger is sent away");
            // A connection that just ends looks like the death of the service, and is tried again.
            return wire::send(&mut client, &Reply::Failed(Failure::input("another user's pool")), &[]);
        }
        loop {
            let (request, descriptors) = match wire::receive::<Request>(&mut client) {
                Ok(received) => received,
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(e) => return Err(e),
            };
            let reply = match request {
                Request::Status => Reply::Status(self.status()),
                Request::Has(device) if zoned::has_open(device) => Reply::Done,
                Request::Has(_) => Reply::Failed(Failure::input("not open here")),
                Request::Mount(request) => {
                    let fresh = ceph::require_reach(&request.config, self.reaches_ceph)
                        .and_then(|()| NewMount::prepare(&request, descriptors, true));
                    Reply::from_result(fresh.and_then(|fresh| self.run(fresh)))
                }
                Request::Restart if let Err(failure) = zoned::check_replaceable() => Reply::Failed(failure),
                Request::Restart => {
                    wire::send(&mut client, &Reply::Done, &[])?;
                    // In the middle of everything, as if it were killed; the supervisor knows this status.
                    vellum_sys::end_process(REPLACE);
                }
                Request::Stop => {
                    let mut books = self.books.lock();
                    books.stopping = books.mounts == 0;
                    let used = (!books.stopping).then(|| Failure::input("something is mounted"));
                    Reply::from_result(used.map_or(Ok(()), Err))
                }
            };
            wire::send(&mut client, &reply, &[])?;
        }
    }

    fn status(&self) -> Status {
        Status {
            service: std::process::id(),
            supervisor: self.supervisor.as_raw_nonzero().get().unsigned_abs(),
            version: env!("CARGO_PKG_VERSION").into(),
            format: FORMAT,
            user_namespace: self.user_namespace,
            restarts: self.restarts,
            program: self.program.to_string_lossy().into_owned(),
            mounts: self.books.lock().mounts,
        }
    }

    /// Has the supervisor take the mounts away at a first signal; at a second, nobody is waited for.
    fn end_on(&self, signals: &BlockedSignals, word: &StartupReport) {
        let mut settled = 0;
        loop {
            let begun = self.books.lock().begun;
            // In a pool more mounts will be made.
            let rests = begun == settled && !self.pooled;
            let signal = if rests { signals.rest().map(Some) } else { signals.wait_for(BEGINNING) };
            let Ok(signal) = signal else { return };
            let Some(signal) = signal else {
                // What it took to begin is not needed any more.
                if begun != settled && begun == self.books.lock().begun {
                    settled = begun;
                    trim_memory();
                    drop_code();
                }
                continue;
            };
            match signal {
                // In the middle of everything, as if it were killed.
                SIGHUP if self.pooled && zoned::check_replaceable().is_err() => {
                    tracing::error!("not replaced: a mount has its upper layer in a store on a zoned device");
                }
                SIGHUP if self.pooled => vellum_sys::end_process(REPLACE),
                _ if !ENDING.contains(&signal) => {}
                _ if self.board.is_ending() => vellum_sys::end_process(AT_ONCE),
                _ => {
                    tracing::info!(signal, "unmounting");
                    self.board.end();
                    word.wake();
                }
            }
        }
    }
}

/// A mount that is counted until this is dropped.
pub(super) struct MountGuard(Arc<PoolService>);

impl Drop for MountGuard {
    fn drop(&mut self) {
        self.0.books.lock().mounts -= 1;
        self.0.changed.notify_all();
    }
}

/// A client that is counted until this is dropped.
struct ClientGuard(Arc<PoolService>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.books.lock().clients -= 1;
    }
}
