//! The service of a pool: serves all its mounts, those of its predecessor first.

use super::calls::Door;
use super::card::{self, Card, Found};
use super::direct::{DirectMount, Roots};
use super::join::user_namespace;
use super::program;
use super::session::{self, Listeners};
use super::underway::{Line, Underway};
use super::wire::{self, MountRequest, Reply, Request, Status};
use super::{FORMAT, Parse, REPLACE};
use crate::config::Config;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::layers::OpenLayers;
use crate::serving::{report, session_options};
use crate::tree::Kept;
use crate::{tend, tree};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, getppid};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use vellum_fuse::{Inflight, Mounted, Negotiated, Session, SessionHandle};
use vellum_ring::files::{MOUNT_NUMBERS, RING_WANTED};
use vellum_sys::{HeldSignals, Inherited};
use vellum_union::{Generations, Ledger, Union};

/// How long a client may take over one message.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often there is a look whether there is anything left to serve.
const LOOK: Duration = Duration::from_millis(500);
/// So long without mounts and clients, and the service ends.
const IDLE: Duration = Duration::from_secs(1);
/// Clients that are heard at the same time.
const CLIENTS_MAX: usize = 64;
/// Rings at the same time.
const PROGRAMS_MAX: usize = 1024;

pub(super) type Tree = Instance<Union>;

/// A mount that is being served.
struct Served {
    /// Keeps the connection's device open until the card has gone.
    _session: SessionHandle,
    generations: Arc<Generations>,
    /// Where its files may be handed out. It is on the card, and so stays open in any case.
    door: Option<Door>,
}

/// What is held beside a session.
struct Beside {
    card: OwnedFd,
    locks: Vec<OwnedFd>,
    generations: Arc<Generations>,
    direct: Option<Arc<DirectMount>>,
}

/// A ring that no program has yet.
struct Spare {
    memory: OwnedFd,
    /// To whom it is given; the thread of the ring waits for him.
    give: SyncSender<Line>,
}

#[derive(Default)]
struct Books {
    /// The mounts that are being served.
    mounts: HashMap<u64, Served>,
    next: u64,
    clients: usize,
    /// Rings.
    programs: usize,
    /// A ring for the next program.
    spare: Option<Spare>,
    /// Somebody is making one.
    spare_comes: bool,
    /// Somebody has asked for the end.
    stopping: bool,
}

/// The service.
pub(super) struct Host {
    parse: Parse,
    restarts: u64,
    program: PathBuf,
    supervisor: Pid,
    user_namespace: Option<u64>,
    /// What has been given up, for those who ask.
    confined: BTreeMap<String, String>,
    books: Mutex<Books>,
    /// What programs were sent and have not taken.
    underway: Arc<Underway>,
}

/// What a service is told by its supervisor.
pub(super) struct Orders<'a> {
    /// The pool's sockets.
    pub(super) listeners: &'a Listeners,
    /// Descriptors of the supervisor itself.
    pub(super) own: &'a BTreeSet<RawFd>,
    pub(super) parse: Parse,
    /// The program that a successor would be.
    pub(super) program: &'a Path,
    /// How many services were before this one.
    pub(super) restarts: u64,
    /// Stay when nothing is mounted.
    pub(super) stay: bool,
    pub(super) supervisor: Pid,
    pub(super) user_namespace: Option<u64>,
    /// What has been given up.
    pub(super) confined: BTreeMap<String, String>,
    /// What is to end the service.
    pub(super) signals: &'a HeldSignals,
}

/// Serves until nothing is left to be served.
pub(super) fn serve(orders: &Orders<'_>) -> Result<(), Failure> {
    let begun = Instant::now();
    let inherited = Inherited::all_but(orders.own)
        .ok_or_else(|| Failure::system("cannot see what the last service had open; is /proc mounted?"))?;
    let host = Arc::new(Host {
        parse: orders.parse,
        restarts: orders.restarts,
        program: orders.program.to_owned(),
        supervisor: orders.supervisor,
        user_namespace: orders.user_namespace,
        confined: orders.confined.clone(),
        books: Mutex::default(),
        underway: Arc::default(),
    });
    host.resume(inherited);
    if orders.restarts > 0 {
        let mounts = host.books.lock().mounts.len();
        tracing::info!(mounts, milliseconds = begun.elapsed().as_millis() as u64, "gone on with");
    }
    let ending = Arc::clone(&host);
    let signals = orders.signals.clone();
    std::thread::Builder::new()
        .name("vellum-signals".into())
        .spawn(move || ending.end_on(&signals))
        .map_err(|e| Failure::system(format!("cannot start a thread: {e}")))?;
    host.listen(orders.listeners, orders.stay)
}

impl Host {
    /// Goes on with what a predecessor was serving.
    fn resume(self: &Arc<Self>, mut inherited: Inherited) {
        for found in card::find(&mut inherited) {
            let mountpoint = String::from_utf8_lossy(&found.card.request.mountpoint).into_owned();
            if let Err(failure) = self.resume_one(found, &mut inherited) {
                tracing::error!(mountpoint, "a mount is lost: {failure}");
            }
        }
        // Now that nothing waits at them any more: further descriptors of the connections, and whatever the predecessor was in the
        // middle of.
        inherited.close_rest();
    }

    fn resume_one(self: &Arc<Self>, found: Found, inherited: &mut Inherited) -> Result<(), Failure> {
        let Found { card, device, layers, direct, ledger, inflight, generations, written } = found;
        let failed = |e: vellum_vfs::Error| Failure::system(e.to_string());
        let negotiated = Negotiated::from_numbers(card.negotiated)
            .ok_or_else(|| Failure::system("its card says nothing sensible of the connection"))?;
        let ledger = Arc::new(Ledger::open(ledger).map_err(failed)?);
        let inflight = Arc::new(Inflight::open(inflight).map_err(failed)?);
        let generations = Arc::new(Generations::open(generations).map_err(failed)?);
        let held: HashMap<RawFd, OwnedFd> =
            ledger.held().into_iter().filter_map(|fd| Some((fd, inherited.take(fd)?))).collect();
        let direct = direct.and_then(|roots| DirectMount::of(roots, card.request.device)).map(Arc::new);
        let kept = Kept {
            ledger: Some(Arc::clone(&ledger)),
            generations: Some(Arc::clone(&generations)),
            direct: direct.is_some(),
        };
        let made = self.make(&card.request, layers, kept, &inflight)?;
        made.tree.resume(held);
        let mountpoint = Some(made.mountpoint.clone());
        let Made { config, tree, report, options, locks, .. } = made;
        let instance = Arc::new(Instance::new(tree, report));
        let session = Session::from_fd(Arc::clone(&instance), device, negotiated, options, mountpoint);
        instance.goes_on_with(&inflight);
        // What had been read and not answered comes again. Before anything is read here, or that would come twice. A connection that
        // has ended has nothing to send.
        if let Err(error) = session.handle().notifier().resend() {
            tracing::debug!(%error, "nothing is sent again");
        }
        self.run(&config, &instance, session, Beside { card: written, locks, generations, direct })
    }

    /// Serves a mount that a client has made.
    fn take(self: &Arc<Self>, request: MountRequest, descriptors: Vec<OwnedFd>) -> Result<(), Failure> {
        let wanted = 1
            + if request.upper { 2 } else { 0 }
            + request.lowers
            + request.locks
            + usize::from(request.direct)
            + usize::from(request.reading)
            + usize::from(request.still);
        let mut all = descriptors.into_iter();
        if all.len() != wanted {
            return Err(Failure::system(format!("{} descriptors where {wanted} belong", all.len())));
        }
        let missing = || Failure::system("a descriptor is missing");
        let device = all.next().ok_or_else(missing)?;
        let upper = match request.upper {
            true => Some((all.next().ok_or_else(missing)?, all.next().ok_or_else(missing)?)),
            false => None,
        };
        let lowers: Vec<OwnedFd> = all.by_ref().take(request.lowers).collect();
        let locks: Vec<OwnedFd> = all.by_ref().take(request.locks).collect();
        let root = all.by_ref().take(request.direct.into()).next();
        let reading = all.by_ref().take(request.reading.into()).next();
        let still = all.by_ref().take(request.still.into()).next();
        let direct = root.map(|root| Roots { root, reading, still });
        let failed = |e: vellum_vfs::Error| Failure::system(e.to_string());
        let ledger = Arc::new(Ledger::create().map_err(failed)?);
        let inflight = Arc::new(Inflight::create().map_err(failed)?);
        let generations = Arc::new(Generations::create().map_err(failed)?);
        let number = |fd: BorrowedFd<'_>| fd.as_raw_fd();
        let numbers =
            (number(ledger.descriptor()), number(inflight.descriptor()), number(generations.descriptor()));
        let layers = card::layers(&request, upper, lowers, Vec::new());
        let mut card = Card::new(request.clone(), &device, &layers, &locks, direct.as_ref(), numbers);
        let direct = direct.and_then(|roots| DirectMount::of(roots, request.device)).map(Arc::new);
        let kept = Kept {
            ledger: Some(ledger),
            generations: Some(Arc::clone(&generations)),
            direct: direct.is_some(),
        };
        let made = self.make(&request, layers, kept, &inflight)?;
        let mountpoint = made.mountpoint.clone();
        let instance = Arc::new(Instance::new(made.tree, made.report));
        let mounted = Mounted { device, mountpoint: mountpoint.clone() };
        let session = Session::new(Arc::clone(&instance), mounted, made.options)
            .map_err(|e| Failure::system(format!("mount point {}: {e}", mountpoint.display())))?;
        card.negotiated = session.handle().negotiated().to_numbers();
        let card = card.write()?;
        self.run(&made.config, &instance, session, Beside { card, locks, generations, direct })
    }

    /// The tree of a request, and what goes with it.
    fn make(
        &self,
        request: &MountRequest,
        layers: OpenLayers,
        kept: Kept,
        inflight: &Arc<Inflight>,
    ) -> Result<Made, Failure> {
        let arguments = request.arguments.iter().map(|word| OsString::from_vec(word.clone())).collect();
        let config = (self.parse)(arguments)?;
        let mountpoint = PathBuf::from(OsString::from_vec(request.mountpoint.clone()));
        let mut layers = layers.into_branches()?;
        let locks = std::mem::take(&mut layers.locks).into_iter().map(Into::into).collect();
        let mut options = session_options(&config, &layers);
        options.inflight = Some(Arc::clone(inflight));
        let report = report(&config, &mountpoint, &layers, &options);
        let tree = tree::build_kept(&config, layers, kept)?;
        options.allow_idmap &= !tree.hands_out();
        Ok(Made { config, mountpoint, tree, report, options, locks })
    }

    /// Serves; the card and the locks are held until the mount has gone.
    fn run(
        self: &Arc<Self>,
        config: &Config,
        instance: &Arc<Tree>,
        session: Session<Tree>,
        beside: Beside,
    ) -> Result<(), Failure> {
        let Beside { card, locks, generations, direct } = beside;
        instance.served_by(session.handle());
        instance.confined_by(self.confined.clone());
        let failed = |e: &dyn std::fmt::Display| Failure::system(format!("serving the mount: {e}"));
        let (handle, thread) = session.spawn().map_err(|e| failed(&e))?;
        if let Some(rate) = config.background_fill
            && let Err(e) = tend::start(instance, handle.clone(), rate)
        {
            tracing::warn!("partial files stay partial: {e}");
        }
        let number = {
            let mut books = self.books.lock();
            books.next += 1;
            let number = books.next;
            if instance.inner().hands_out() {
                instance.open_doors();
            }
            let door = direct.map(|direct| Door { tree: Arc::downgrade(instance), direct });
            books.mounts.insert(number, Served { _session: handle.clone(), generations, door });
            number
        };
        let host = Arc::clone(self);
        let ended = move || {
            if !matches!(thread.join(), Ok(Ok(()))) {
                tracing::error!("a session has ended badly");
            }
            // The card first: a successor must not find a mount whose descriptors are being closed.
            drop(card);
            drop(locks);
            let handle = host.books.lock().mounts.remove(&number);
            drop(handle);
        };
        std::thread::Builder::new().name("vellum-end".into()).spawn(ended).map_err(|e| failed(&e))?;
        Ok(())
    }

    /// Hears clients, until there have been neither mounts nor clients for a while.
    fn listen(self: &Arc<Self>, listeners: &Listeners, stay: bool) -> Result<(), Failure> {
        let mut idle_since = Instant::now();
        let mut waiting = session::Waiting::default();
        let namespace = user_namespace().unwrap_or_default();
        // A predecessor of another version may not have done so.
        session::refuse_rights(&listeners.session);
        loop {
            self.underway.sweep();
            let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            // Programs that have sent what cannot be closed keep others away, but nobody from mounting.
            let programs = if self.underway.is_full() { PollFlags::empty() } else { PollFlags::IN };
            let mut all = vec![
                PollFd::new(&listeners.control, PollFlags::IN),
                PollFd::new(&listeners.session, programs),
            ];
            all.extend(waiting.iter().map(|program| PollFd::new(program, PollFlags::IN)));
            let polled = poll(&mut all, Some(&wait));
            let [control, session] =
                [0, 1].map(|at| all.get(at).is_some_and(|one| !one.revents().is_empty()));
            match polled {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    if control {
                        self.accept(&listeners.control);
                    }
                    if session {
                        let mounts = self.direct_mounts();
                        waiting.extend(session::answer(
                            &listeners.session,
                            &self.underway,
                            &mounts,
                            namespace,
                        ));
                    }
                    waiting.look(|program, asked| self.give(program, asked));
                }
                Err(e) => return Err(Failure::system(format!("the pool's socket: {e}"))),
            }
            let books = self.books.lock();
            if !books.mounts.is_empty() || books.clients > 0 && !books.stopping {
                idle_since = Instant::now();
            } else if books.stopping || !stay && idle_since.elapsed() >= IDLE {
                return Ok(());
            }
        }
    }

    /// Something of all mounts, of the newest first.
    fn of_mounts<T>(&self, what: impl Fn(&Served) -> Option<T>) -> Vec<T> {
        let books = self.books.lock();
        let mut all: Vec<_> = books.mounts.iter().collect();
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(**number));
        all.into_iter().filter_map(|(_, served)| what(served)).collect()
    }

    fn generations(&self) -> Vec<Arc<Generations>> {
        self.of_mounts(|served| Some(Arc::clone(&served.generations)))
    }

    /// Where files are handed out.
    pub(super) fn doors(&self) -> Vec<Door> {
        self.of_mounts(|served| served.door.clone().filter(Door::is_open))
    }

    fn direct_mounts(&self) -> Vec<[u64; MOUNT_NUMBERS]> {
        self.doors().iter().flat_map(Door::numbers).collect()
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        let Ok((client, _)) = listener.accept() else { return };
        self.serve_apart(
            "vellum-client",
            CLIENTS_MAX,
            |books| &mut books.clients,
            move |host| host.hear(client),
        );
    }

    /// Gives a program what it asks for.
    fn give(self: &Arc<Self>, mut program: Line, asked: u64) {
        if asked == RING_WANTED {
            return self.give_ring(program);
        }
        let memory = self.generations().into_iter().find(|memory| memory.id() == asked);
        if let Some(Err(error)) = memory.map(|memory| session::send_memory(&mut program, &memory)) {
            tracing::debug!(%error, "a program that wanted a memory");
        }
    }

    /// Serves a program over a ring: the one that has been made beforehand, if there is one.
    fn give_ring(self: &Arc<Self>, mut program: Line) {
        if self.doors().is_empty() {
            return;
        }
        let spare = {
            let mut books = self.books.lock();
            // Whoever was making one may have failed.
            books.spare_comes = false;
            books.spare.take()
        };
        let Some(spare) = spare else {
            self.make_ring(move |_, memory| {
                program::send_ring(&mut program, memory)?;
                Ok(program)
            });
            return;
        };
        // The memory first: the program goes on with it while the thread wakes up.
        if let Err(error) = program::send_ring(&mut program, spare.memory.as_fd()) {
            tracing::debug!(%error, "a program that wanted a ring");
            self.books.lock().spare = Some(spare);
        } else if spare.give.send(program).is_err() {
            tracing::debug!("a ring has gone");
        }
    }

    /// Makes a ring for the next program that asks: the most of what a session costs has been done then.
    fn keep_spare(self: &Arc<Self>) {
        {
            let mut books = self.books.lock();
            if books.spare.is_some() || std::mem::replace(&mut books.spare_comes, true) {
                return;
            }
        }
        self.make_ring(|host, memory| {
            let (give, given) = sync_channel(1);
            let spare = Spare { memory: memory.try_clone_to_owned()?, give };
            {
                let mut books = host.books.lock();
                books.spare = Some(spare);
                books.spare_comes = false;
            }
            given.recv().map_err(std::io::Error::other)
        });
    }

    fn make_ring(
        self: &Arc<Self>,
        give: impl FnOnce(&Self, BorrowedFd<'_>) -> std::io::Result<Line> + Send + 'static,
    ) {
        self.serve_apart(
            "vellum-program",
            PROGRAMS_MAX,
            |books| &mut books.programs,
            move |host| program::serve(host, |memory| give(host, memory), || host.keep_spare()),
        );
    }

    /// Serves somebody in a thread of his own, unless there are as many of his kind as there may be.
    fn serve_apart(
        self: &Arc<Self>,
        name: &str,
        most: usize,
        count: fn(&mut Books) -> &mut usize,
        serve: impl FnOnce(&Arc<Self>) -> std::io::Result<()> + Send + 'static,
    ) {
        {
            let mut books = self.books.lock();
            let count = count(&mut books);
            if *count >= most {
                return;
            }
            *count += 1;
        }
        // Whatever becomes of the thread.
        let counted = Counted { host: Arc::clone(self), count };
        let started = std::thread::Builder::new().name(name.into()).spawn(move || {
            if let Err(error) = serve(&counted.host) {
                let thread = std::thread::current();
                tracing::debug!(%error, "{}", thread.name().unwrap_or_default());
            }
        });
        if let Err(error) = started {
            tracing::debug!(%error, "a thread for {name}");
        }
    }

    fn hear(self: &Arc<Self>, mut client: UnixStream) -> std::io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let peer = vellum_sys::peer(client.as_fd())?;
        if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
            tracing::warn!(uid = peer.uid, pid = peer.process.unwrap_or_default(), "a stranger is sent away");
            return Ok(());
        }
        loop {
            let (request, descriptors) = match wire::receive::<Request>(&mut client) {
                Ok(received) => received,
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(e) => return Err(e),
            };
            let reply = match request {
                Request::Status => Reply::Status(self.status()),
                Request::Mount(request) => Reply::of(self.take(request, descriptors)),
                // Whoever is the parent of a process without one is no supervisor.
                Request::Restart if getppid() != Some(self.supervisor) => {
                    let line = "its supervisor has died; unmount, and mount again";
                    Reply::of(Err(Failure::system(line)))
                }
                Request::Restart => {
                    wire::send(&mut client, &Reply::Done, &[])?;
                    // In the middle of everything, as if it were killed; the supervisor knows this status.
                    std::process::exit(REPLACE);
                }
                Request::Stop => {
                    let mut books = self.books.lock();
                    books.stopping = books.mounts.is_empty();
                    let used = (!books.stopping).then(|| Failure::input("something is mounted"));
                    Reply::of(used.map_or(Ok(()), Err))
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
            mounts: self.books.lock().mounts.len(),
        }
    }

    /// Ends with the last mount after a first signal, and at once at a second. The supervisor unmounts.
    fn end_on(&self, signals: &HeldSignals) {
        let mut before = false;
        while let Ok(signal) = signals.wait() {
            if std::mem::replace(&mut before, true) {
                std::process::exit(1);
            }
            tracing::info!(signal, "ending with the last mount");
            self.books.lock().stopping = true;
        }
    }
}

/// Somebody who is served apart, and counted until this is dropped.
struct Counted {
    host: Arc<Host>,
    count: fn(&mut Books) -> &mut usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        *(self.count)(&mut self.host.books.lock()) -= 1;
    }
}

/// A tree that is ready to be served.
struct Made {
    config: Config,
    mountpoint: PathBuf,
    tree: Union,
    report: crate::explain::InstanceReport,
    options: vellum_fuse::SessionOptions,
    locks: Vec<OwnedFd>,
}
