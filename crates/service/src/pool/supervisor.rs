//! The supervisor: keeps everything open that the service has open, and a service alive.
//!
//! It does nothing else, so that there is little that could go wrong in it. It has one thread, opens nothing while a service lives,
//! and touches none of the memory that services share.

use super::join::user_namespace;
use super::session::{self, Listeners};
use super::{Parse, REPLACE, host};
use crate::failure::Failure;
use crate::mountpoint;
use crate::sandbox::{self, Plan};
use crate::unmount::unmount;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use vellum_sys::{Fork, HeldSignals, Inherited, fork_with_descriptors, keep_over_exec, open_descriptors};

// Signal numbers as on every architecture of Linux that we build for.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;

/// A service that lived less than this, and was not killed, died of what it was left.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// So many short lives one after the other, and the supervisor gives up.
const SHORT_LIVES_MAX: u32 = 10;
/// What it waits longer before each next one.
const PAUSE: Duration = Duration::from_millis(50);

/// A pool that this process may supervise.
#[derive(Debug)]
pub struct Supervised {
    listeners: Listeners,
    /// The right to do so.
    lock: OwnedFd,
    socket: PathBuf,
    /// Descriptors that a predecessor of this program had open: they are the service's.
    before: BTreeSet<RawFd>,
    restarts: u64,
}

/// How to supervise.
pub struct Manner<'a> {
    /// Reads a command line again.
    pub parse: Parse,
    /// The service stays when nothing is mounted.
    pub stay: bool,
    /// How much a service gives up.
    pub sandbox: sandbox::Mode,
    /// The program that goes on in the place of this process, as it is on disk then.
    pub program: &'a Path,
    /// Its arguments, given what [`Supervised::heritage`] says.
    pub arguments: &'a (dyn Fn(&str) -> Vec<String> + Sync),
}

/// Makes the pool's socket. None: there is a supervisor.
pub fn listen(socket: &Path) -> Result<Option<Supervised>, Failure> {
    let shown = socket.display();
    let failed = |e: std::io::Error| Failure::system(format!("{shown}: cannot listen: {e}"));
    if let Some(dir) = socket.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(socket.with_extension("lock"), flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| failed(e.into()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(e) => return Err(failed(e.into())),
    }
    // The one for programs first: who finds the service finds both.
    let session = session::bind(socket).map_err(failed)?;
    let control = session::bind_at(socket, 0o600).map_err(failed)?;
    let socket = socket.to_owned();
    let listeners = Listeners { control, session };
    Ok(Some(Supervised { listeners, lock, socket, before: BTreeSet::new(), restarts: 0 }))
}

impl Supervised {
    /// What a successor of this process must be told to go on with the same pool.
    fn heritage(&self) -> String {
        let Listeners { control, session } = &self.listeners;
        let (control, session) = (control.as_raw_fd(), session.as_raw_fd());
        format!("{control}:{}:{}:{session}", self.lock.as_raw_fd(), self.restarts)
    }

    /// Goes on where a predecessor has started this program in its own place. Call before anything has been opened.
    pub fn inherit(heritage: &str, socket: &Path) -> Result<Self, Failure> {
        let bad =
            || Failure::input(format!("option --inherit {heritage}: leave it out; it is for vellum itself"));
        let mut numbers = heritage.split(':').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten().ok_or_else(bad);
        let (control, lock, restarts, session) = (next()?, next()?, next()?, next()?);
        let mut inherited = Inherited::all_but(&BTreeSet::new()).ok_or_else(bad)?;
        let mut take = |number: u64| {
            let taken = RawFd::try_from(number).ok().and_then(|number| inherited.take(number));
            taken.ok_or_else(bad)
        };
        let (control, lock, session) = (take(control)?, take(lock)?, take(session)?);
        let before = inherited.numbers().collect();
        let listeners = Listeners { control: control.into(), session: session.into() };
        Ok(Self { listeners, lock, socket: socket.to_owned(), before, restarts })
    }

    /// Descriptors of this process itself.
    fn own(&self) -> BTreeSet<RawFd> {
        open_descriptors().difference(&self.before).copied().collect()
    }

    /// Holds the signals that the supervisor waits for. Its service inherits that.
    pub fn hold() -> Result<HeldSignals, Failure> {
        HeldSignals::hold(&[SIGHUP, SIGINT, SIGTERM, SIGCHLD])
            .map_err(|e| Failure::system(format!("cannot hold signals: {e}")))
    }
}

/// Keeps a service alive until it ends by itself, because there is nothing left to serve. Call before any thread has been started.
pub fn supervise(mut pool: Supervised, manner: &Manner<'_>, signals: &HeldSignals) -> Result<(), Failure> {
    // From now on this process opens nothing any more.
    let own = pool.own();
    let mut short_lives = 0;
    loop {
        let begun = Instant::now();
        let service = start(&pool, &own, manner, signals)?;
        match attend(service, signals) {
            End::Done => break,
            End::Replace => {
                pool.restarts += 1;
                if let Err(failure) = replace(&pool, manner) {
                    tracing::error!("{failure}; going on with the old program");
                }
            }
            End::Killed => {
                pool.restarts += 1;
                tracing::error!("the service has been killed; a new one goes on");
            }
            End::Died(how) => {
                pool.restarts += 1;
                tracing::error!("the service has died ({how}); a new one goes on");
                short_lives = if begun.elapsed() < SHORT_LIFE { short_lives + 1 } else { 0 };
                if short_lives >= SHORT_LIVES_MAX {
                    return Err(Failure::system(
                        "the pool's service dies as soon as it is started; its mounts end",
                    ));
                }
                // At once the first time.
                std::thread::sleep(PAUSE * short_lives.saturating_sub(1));
            }
        }
    }
    // Whoever connects from now on finds nobody, and starts another supervisor, which waits for the lock.
    let _ = fs::remove_file(&pool.socket);
    let _ = fs::remove_file(session::path(&pool.socket));
    Ok(())
}

/// How a service has ended.
enum End {
    /// There is nothing left to serve.
    Done,
    /// A new program is to go on.
    Replace,
    /// By somebody else.
    Killed,
    /// By itself.
    Died(String),
}

fn start(
    pool: &Supervised,
    own: &BTreeSet<RawFd>,
    manner: &Manner<'_>,
    signals: &HeldSignals,
) -> Result<Pid, Failure> {
    let mut orders = host::Orders {
        listeners: &pool.listeners,
        own,
        parse: manner.parse,
        program: manner.program,
        restarts: pool.restarts,
        stay: manner.stay,
        supervisor: getpid(),
        user_namespace: user_namespace(),
        confined: BTreeMap::new(),
        signals,
    };
    let fork =
        fork_with_descriptors().map_err(|e| Failure::system(format!("cannot start the service: {e}")))?;
    match fork {
        Fork::Parent(service) => Ok(service),
        Fork::Child => {
            // Before the first thread is started: each has the privileges of the one that started it.
            let confined = sandbox::enter(&Plan {
                mode: manner.sandbox,
                roots: None,
                passthrough: true,
                writable: true,
                keep_awake: true,
            });
            orders.confined = confined.parts.clone();
            // All of it in a thread that the C library knows: see `fork_with_descriptors`. Nothing of the supervisor's is dropped here,
            // for that would close it there as well.
            let served = std::thread::scope(|scope| {
                let service = std::thread::Builder::new().name("vellum-service".into());
                service.spawn_scoped(scope, || host::serve(&orders)).map(std::thread::ScopedJoinHandle::join)
            });
            let failure = match served {
                Ok(Ok(Ok(()))) => std::process::exit(0),
                Ok(Ok(Err(failure))) => failure.to_string(),
                Ok(Err(_)) => "panic".into(),
                Err(e) => e.to_string(),
            };
            tracing::error!("the pool's service ends: {failure}");
            std::process::exit(1);
        }
    }
}

/// Waits until the service has ended.
fn attend(service: Pid, signals: &HeldSignals) -> End {
    let mut asked = false;
    let mut replace = false;
    loop {
        match signals.wait() {
            Ok(SIGHUP) => {
                replace = true;
                let _ = kill_process(service, Signal::KILL);
            }
            Ok(SIGINT | SIGTERM) => {
                asked = true;
                let _ = kill_process(service, Signal::TERM);
                unmount_all();
            }
            _ => {}
        }
        match waitpid(Some(service), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                return match status.exit_status() {
                    _ if replace => End::Replace,
                    Some(0) => End::Done,
                    Some(REPLACE) => End::Replace,
                    _ if asked => End::Done,
                    Some(code) => End::Died(format!("exit status {code}")),
                    None => match status.terminating_signal() {
                        Some(SIGKILL) => End::Killed,
                        signal => End::Died(format!("signal {}", signal.unwrap_or_default())),
                    },
                };
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(e) => return End::Died(format!("it cannot be waited for: {e}")),
        }
    }
}

/// Takes away the mounts of all connections that are open here; who uses them is served until they leave. The service may not.
fn unmount_all() {
    for point in mountpoint::held_by("self") {
        if let Err(e) = unmount(&point, false).or_else(|_| unmount(&point, true)) {
            tracing::warn!("{e}");
        }
    }
}

/// Starts the program as it is on disk in the place of this process. Returns only if that fails.
fn replace(pool: &Supervised, manner: &Manner<'_>) -> Result<(), Failure> {
    keep_over_exec().map_err(|e| Failure::system(format!("descriptors cannot be kept: {e}")))?;
    let error = Command::new(manner.program).args((manner.arguments)(&pool.heritage())).exec();
    Err(Failure::system(format!("cannot start the new program: {error}")))
}
