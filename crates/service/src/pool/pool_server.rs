//! A pool that is supervised: its sockets, and how another program goes on with it.

use super::sockets::{self, Listeners};
use super::supervisor::{self, Charge, Supervisor};
use super::{FORMAT, format};
use crate::failure::Failure;
use crate::layers::ceph;
use crate::mounts::mountpoint;
use crate::sandbox::{self, Plan};
use crate::store_server;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vellum_sys::{BlockedSignals, InheritedFds, keep_over_exec, open_descriptors};

/// A pool that this process may supervise.
#[derive(Debug)]
pub struct PoolServer {
    listeners: Listeners,
    /// The right to do so.
    lock: OwnedFd,
    socket: PathBuf,
    /// Descriptors that a predecessor of this program had open: they are the service's.
    before: BTreeSet<RawFd>,
    restarts: u64,
    /// The number of the family.
    number: u64,
    /// The standby of that program.
    standby: Option<Pid>,
}

/// How to supervise.
pub struct SupervisorOptions<'a> {
    /// The service stays when nothing is mounted.
    pub stay: bool,
    /// How much a service gives up.
    pub sandbox: sandbox::Mode,
    /// Mounts may have layers on CephFS.
    pub ceph: bool,
    /// The program that goes on in the place of this process, as it is on disk then.
    pub program: &'a Path,
    /// Its arguments, given what [`PoolServer::heritage`] says.
    pub arguments: &'a (dyn Fn(&str) -> Vec<String> + Sync),
}

/// Makes the pool's socket. None: there is a supervisor.
pub fn listen(socket: &Path) -> Result<Option<PoolServer>, Failure> {
    let shown = socket.display();
    let failed = |e: std::io::Error| Failure::system(format!("{shown}: cannot listen")).because(e);
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
    let session = sockets::bind(socket).map_err(failed)?;
    let control = sockets::bind_at(socket, 0o600).map_err(failed)?;
    let socket = socket.to_owned();
    let listeners = Listeners { control, session };
    let (before, number) = (BTreeSet::new(), supervisor::number());
    Ok(Some(PoolServer { listeners, lock, socket, before, restarts: 0, number, standby: None }))
}

impl PoolServer {
    /// What a successor of this process must be told to go on with the same pool.
    fn heritage(&self, standby: Option<Pid>, restarts: u64) -> String {
        let Listeners { control, session } = &self.listeners;
        let (control, session) = (control.as_raw_fd(), session.as_raw_fd());
        let standby = standby.map_or(0, |standby| standby.as_raw_nonzero().get());
        format!("{control}:{}:{restarts}:{session}:{standby}:{}", self.lock.as_raw_fd(), self.number)
    }

    /// Goes on where a predecessor has started this program in its own place. Call before anything has been opened.
    pub fn inherit(heritage: &str, socket: &Path) -> Result<Self, Failure> {
        let bad =
            || Failure::input(format!("option --inherit {heritage}: leave it out; it is for vellum itself"));
        let mut numbers = heritage.split(':').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten().ok_or_else(bad);
        let (control, lock, restarts, session, standby) = (next()?, next()?, next()?, next()?, next()?);
        let number = next()?;
        let mut inherited = InheritedFds::all_but(&BTreeSet::new()).ok_or_else(bad)?;
        let mut take = |number: u64| {
            let taken = RawFd::try_from(number).ok().and_then(|number| inherited.take(number));
            taken.ok_or_else(bad)
        };
        let (control, lock, session) = (take(control)?, take(lock)?, take(session)?);
        let before = inherited.numbers().collect();
        let listeners = Listeners { control: control.into(), session: session.into() };
        let standby = i32::try_from(standby).ok().and_then(Pid::from_raw);
        Ok(Self { listeners, lock, socket: socket.to_owned(), before, restarts, number, standby })
    }

    /// Descriptors of this process itself.
    fn own_descriptors(&self) -> BTreeSet<RawFd> {
        open_descriptors().difference(&self.before).copied().collect()
    }

    /// Ends the standby of the program that this one has replaced; it is a child of this process, or nothing is done. It kept all open
    /// until now.
    fn end_old_standby(&self) {
        if let Some(standby) = self.standby
            && matches!(waitpid(Some(standby), WaitOptions::NOHANG), Ok(None))
        {
            let _ = kill_process(standby, Signal::KILL);
            let _ = waitpid(Some(standby), WaitOptions::empty());
        }
    }

    /// Holds the signals that the supervisor waits for. Its service inherits that.
    pub fn hold() -> Result<BlockedSignals, Failure> {
        supervisor::hold()
    }
}

/// Keeps a service alive until it ends by itself, because there is nothing left to serve. Call before any thread has been started.
pub fn supervise(
    pool: PoolServer,
    manner: &SupervisorOptions<'_>,
    signals: &BlockedSignals,
) -> Result<(), Failure> {
    // From now on this process opens nothing any more.
    let own = pool.own_descriptors();
    let charge = Pool { pool: &pool, manner };
    let mut family = Supervisor::new(&charge, own, signals, (pool.restarts, pool.number))?;
    pool.end_old_standby();
    family.run()?;
    // Whoever connects from now on finds nobody, and starts another supervisor, which waits for the lock.
    let _ = fs::remove_file(&pool.socket);
    let _ = fs::remove_file(sockets::path(&pool.socket));
    family.close_inherited();
    store_server::sweep();
    Ok(())
}

struct Pool<'a> {
    pool: &'a PoolServer,
    manner: &'a SupervisorOptions<'a>,
}

impl Charge for Pool<'_> {
    fn listeners(&self) -> Option<&Listeners> {
        Some(&self.pool.listeners)
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let SupervisorOptions { sandbox: mode, ceph, .. } = *self.manner;
        if ceph {
            ceph::load();
        }
        Ok(Plan {
            mode,
            roots: None,
            passthrough: true,
            writable: true,
            keep_awake: true,
            cache: true,
            ceph: ceph.then(Vec::new),
            zoned: true,
        })
    }

    fn program(&self) -> &Path {
        self.manner.program
    }

    fn is_persistent(&self) -> bool {
        self.manner.stay
    }

    fn is_replaceable(&self) -> Option<Result<(), Failure>> {
        Some(format::agree(self.manner.program, FORMAT))
    }

    fn replace(&self, standby: Option<Pid>, restarts: u64) -> Option<Result<Infallible, Failure>> {
        let replaced = || -> Result<Infallible, Failure> {
            let program = self.manner.program;
            format::agree(program, FORMAT)?;
            keep_over_exec().map_err(|e| Failure::system("descriptors cannot be kept").because(e))?;
            let heritage = self.pool.heritage(standby, restarts);
            let error = Command::new(program).args((self.manner.arguments)(&heritage)).exec();
            Err(Failure::system("cannot start the new program").because(error))
        };
        Some(replaced())
    }

    fn mountpoints(&self) -> Vec<PathBuf> {
        mountpoint::mounts_of_process("self")
    }
}
