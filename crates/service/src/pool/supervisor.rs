//! Three processes that are one service: who serves, who starts another when that has died, and who takes that one's place.
//!
//! The *supervisor* keeps everything open that the service has open, and a service alive. It does nothing else, so that there is
//! little that could go wrong in it: it has one thread, opens nothing, and touches none of the memory that services share. The *standby*
//! is a copy of it that sleeps until the supervisor has died, whatever that died of. The service is the supervisor's child and dies
//! with it, for a service that nobody watches would be one too few; so a standby begins as any supervisor does whose service has died.
//! All have one table of descriptors, so that one of them is enough to keep the mounts.

use super::mount_client::user_namespace;
use super::pool_service::{self, Orders, ServiceStart};
use super::short_lives::{Death, PAUSE, SHORT_LIFE, ShortLives};
use super::sockets::Listeners;
use super::supervisor_state::SupervisorState;
use super::{AT_ONCE, ENDING, EXPELLED, FAILED, KEEPERS, REPLACE, abort};
use crate::failure::Failure;
use crate::layers::ceph;
use crate::process::boot_id;
use crate::process::cpu_idle::online_processors;
use crate::process::daemon::{self, StartupReport, Word};
use crate::process::memory_group;
use crate::sandbox::{self, Plan};
use libc::{SIGCHLD, SIGHUP, SIGKILL, SIGUSR1, SIGUSR2};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, wait, waitpid,
};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vellum_ring_server::Room;
use vellum_sys::{
    BlockedSignals, Fork, InheritedFds, close_all_but, find_code, fork, fork_with_descriptors,
    limit_allocator,
};

/// When services are killed for want of memory within so long of each other, they lack it for what they were left.
const STARVED_LIFE: Duration = Duration::from_secs(60);
/// So many of them one after the other, and the supervisor gives up.
const STARVED_LIVES_MAX: u64 = 10;

/// What is served: the part in which a pool and a mount of its own differ.
pub(super) trait Charge {
    /// The sockets by which the service is reached.
    fn listeners(&self) -> Option<&Listeners> {
        None
    }

    /// What a service gives up. What it needs for that which it has no right to afterwards is done.
    fn plan(&self) -> Result<Plan, Failure>;

    /// Without sockets, in the first service, before anything is given up: what it begins with.
    fn first(&self) -> Result<ServiceStart, Failure> {
        Err(Failure::system("there is nothing to begin with"))
    }

    /// Who waits until that is served.
    fn pending(&self) -> Option<&StartupReport> {
        None
    }

    /// The program that goes on in the place of the supervisor.
    fn program(&self) -> &Path {
        Path::new("")
    }

    /// The service stays when nothing is mounted.
    fn is_persistent(&self) -> bool {
        false
    }

    /// Starts another program in the place of this process. Returns only if that fails. None: nothing is replaced here.
    fn replace(&self, standby: Option<Pid>, restarts: u64) -> Option<Result<Infallible, Failure>> {
        let _ = (standby, restarts);
        None
    }

    /// Whether a new program can go on; None: nothing is replaced here.
    fn is_replaceable(&self) -> Option<Result<(), Failure>> {
        None
    }

    /// Where the mounts are.
    fn mountpoints(&self) -> Vec<PathBuf>;
}

/// Supervisor and standby.
pub(super) struct Supervisor<'a> {
    pub(super) charge: &'a dyn Charge,
    /// Descriptors that are not the service's.
    pub(super) own: BTreeSet<RawFd>,
    pub(super) signals: &'a BlockedSignals,
    pub(super) board: SupervisorState,
    /// A number by chance that stands for all services of this family, one after the other.
    pub(super) number: u64,
    /// By which the service wakes the supervisor, and the first one says why it cannot begin.
    pub(super) word: Word,
    service: StartupReport,
    /// The one that sleeps.
    standby: Option<Pid>,
    /// Somebody has asked for the end.
    asked: bool,
    short_lives: ShortLives,
}

/// How a service has ended.
enum End {
    /// There is nothing left to serve.
    Done,
    /// It could not begin.
    Failed,
    /// A new program is to go on.
    Replace,
    /// Nobody is to be waited for.
    AtOnce,
    /// With its supervisor; this process is the supervisor now.
    Inherited,
    /// A cluster has expelled its client.
    Expelled,
    /// By somebody else.
    Killed,
    /// By itself.
    Died(String),
}

impl End {
    fn from_status(status: WaitStatus) -> Self {
        match status.exit_status() {
            Some(0) => Self::Done,
            Some(FAILED) => Self::Failed,
            Some(REPLACE) => Self::Replace,
            Some(AT_ONCE) => Self::AtOnce,
            Some(EXPELLED) => Self::Expelled,
            Some(code) => Self::Died(format!("exit status {code}")),
            None => match status.terminating_signal() {
                Some(SIGKILL) => Self::Killed,
                signal => Self::Died(format!("signal {}", signal.unwrap_or_default())),
            },
        }
    }
}

/// Holds the signals that a supervisor and its standby wait for. The service inherits that.
pub(super) fn hold() -> Result<BlockedSignals, Failure> {
    let all: Vec<i32> = ENDING.into_iter().chain([SIGCHLD, SIGUSR1, SIGUSR2]).collect();
    BlockedSignals::hold(&all).map_err(|e| Failure::system("cannot hold signals").because(e))
}

/// A number for a new family.
pub(super) fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Names this process for lists of processes.
fn call_this(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

impl<'a> Supervisor<'a> {
    /// Call before any thread has been started. How many services were before, and the number of their family.
    pub(super) fn new(
        charge: &'a dyn Charge,
        own: BTreeSet<RawFd>,
        signals: &'a BlockedSignals,
        (restarts, number): (u64, u64),
    ) -> Result<Self, Failure> {
        let board = SupervisorState::create(restarts)?;
        let (word, service) = daemon::word()?;
        let (standby, asked, short_lives) = (None, false, ShortLives::default());
        let mut family =
            Self { charge, own, signals, board, number, word, service, standby, asked, short_lives };
        family.own.extend([family.word.number(), family.service.number()]);
        family.own.extend(memory_group::watch());
        find_code();
        family.signal_on_request();
        Ok(family)
    }

    fn signal_on_request(&self) {
        if let Err(e) = self.word.signal_on_data(SIGUSR2) {
            tracing::warn!("signals to the service will not unmount: {e}");
        }
    }

    /// Keeps a service alive until it ends by itself, because there is nothing left to serve.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let kept = self.serve_until_end();
        // It would go on otherwise.
        if let Some(standby) = self.standby.take() {
            let _ = kill_process(standby, Signal::KILL);
            let _ = waitpid(Some(standby), WaitOptions::empty());
        }
        kept
    }

    /// After the end: closes what the last service had open, which this process has had, too.
    pub(super) fn close_inherited(&self) {
        close_all_but(&self.own);
    }

    fn serve_until_end(&mut self) -> Result<(), Failure> {
        call_this(KEEPERS[0]);
        loop {
            let begun = Instant::now();
            let kills = memory_group::kills();
            let started = self.start(false);
            // After the service, for whoever mounts waits for that one.
            let inherited = self.standby.is_none() && self.start_standby();
            let end = match started {
                _ if inherited => End::Inherited,
                Ok(service) => {
                    if self.asked {
                        self.unmount_all();
                    }
                    self.wait_for_service(service)
                }
                Err(why) => End::Died(why),
            };
            self.board.set_service_gone();
            self.short_lives.end(self.board.served_for());
            let how = match end {
                End::Done => return Ok(()),
                End::Failed => return Err(Failure::system("the service could not begin")),
                End::AtOnce => {
                    let _ = self.abort::<()>("nobody is waited for");
                    return Ok(());
                }
                _ if !self.board.has_served() && self.charge.listeners().is_none() => {
                    return Err(Failure::system("the service process died before the mount was ready"));
                }
                End::Replace => {
                    if let Some(Err(failure)) = self.charge.replace(self.standby, self.board.restarts() + 1) {
                        tracing::error!("{failure}; going on with the old program");
                    }
                    String::new()
                }
                End::Killed | End::Inherited if self.check_memory_shortage(kills)? => {
                    self.asked |= self.board.is_ending();
                    "the OOM killer killed the service; a successor serves its mounts".to_owned()
                }
                End::Inherited => {
                    self.asked |= self.board.is_ending();
                    "the supervisor died; the standby replaces it, with a new service".to_owned()
                }
                End::Expelled => {
                    // However often: what it was left can be served. But a cluster that expels all who come is not asked in a loop.
                    self.short_lives.reset();
                    std::thread::sleep(SHORT_LIFE.saturating_sub(begun.elapsed()));
                    "a cluster expelled the service's client; a successor serves its mounts".to_owned()
                }
                End::Killed => self.after_death(Death::Killed, "SIGKILL")?,
                End::Died(how) => self.after_death(Death::Own, &how)?,
            };
            self.board.count_restart();
            if !how.is_empty() {
                tracing::error!("{how}");
            }
        }
    }

    /// Whether the kernel has killed the service, or its supervisor, because their control group has too little memory. Again and again means
    /// that it cannot serve what it was left; an error then.
    fn check_memory_shortage(&mut self, kills_before: u64) -> Result<bool, Failure> {
        if memory_group::kills() == kills_before {
            return Ok(false);
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec.unsigned_abs();
        let starved = self.board.count_starved(now, STARVED_LIFE.as_secs());
        if starved >= STARVED_LIVES_MAX {
            let bytes =
                memory_group::limit().map_or_else(String::new, |bytes| format!(" of {} KiB", bytes >> 10));
            let why = format!(
                "the kernel has killed the service {starved} times in a row because the memory{bytes} of its control group {} is not enough for \
                 what is mounted there; its mounts end: give it more (vellum pool set NAME --memory SIZE) and mount again",
                memory_group::path().display(),
            );
            tracing::error!("{why}");
            return self.abort(&why);
        }
        std::thread::sleep(PAUSE);
        Ok(true)
    }

    /// Waits until another service may be started, and says what has happened. An error: none is to be.
    fn after_death(&mut self, death: Death, how: &str) -> Result<String, Failure> {
        let served = self.board.served_for();
        let Some(pause) = self.short_lives.count(death, served) else {
            let why = format!("the service dies as soon as it is started ({how}); its mounts end");
            tracing::error!("{why}");
            return self.abort(&why);
        };
        std::thread::sleep(pause);
        Ok(match death {
            Death::Own => format!("the service has died ({how}); a successor serves its mounts"),
            Death::Killed if served.is_none() => {
                "the service was killed before it served; a successor serves its mounts".to_owned()
            }
            Death::Killed => "the service was killed; a successor serves its mounts".to_owned(),
        })
    }

    /// Nobody will serve any more: has the kernel know, before the last descriptors are closed.
    fn abort<T>(&mut self, why: &str) -> Result<T, Failure> {
        if let Ok(last) = self.start(true) {
            let _ = waitpid(Some(last), WaitOptions::empty());
        }
        Err(Failure::system(why))
    }

    /// Sees to it that there is a standby. True in the standby itself, when the supervisor has died.
    fn start_standby(&mut self) -> bool {
        let mut inherited = false;
        while self.standby.is_none() {
            let supervisor = getpid();
            match fork_with_descriptors() {
                Ok(Fork::Parent(standby)) => self.standby = Some(standby),
                Ok(Fork::Child) => {
                    call_this(KEEPERS[1]);
                    self.wait_for_end_of(supervisor);
                    call_this(KEEPERS[0]);
                    self.signal_on_request();
                    inherited = true;
                }
                Err(e) => {
                    tracing::warn!("the standby cannot be started: {e}");
                    break;
                }
            }
        }
        inherited
    }

    /// What the standby does.
    fn wait_for_end_of(&self, supervisor: Pid) {
        if let Err(e) = set_parent_process_death_signal(Some(Signal::USR1)) {
            tracing::error!("the standby cannot watch the supervisor: {e}");
        }
        // Signals that are for the supervisor come here too, where somebody means the whole group.
        while getppid() == Some(supervisor) {
            let _ = self.signals.rest();
        }
        // The service dies with its supervisor; but as long as it has not, it may answer what the next one answers, too.
        let Some(service) = self.board.service() else { return };
        let Ok(service) = pidfd_open(service, PidfdFlags::empty()) else { return };
        while poll(&mut [PollFd::new(&service, PollFlags::IN)], None).is_err() {}
    }

    /// Starts a service; with `over`, one that only ends what nobody can serve.
    fn start(&self, over: bool) -> Result<Pid, String> {
        let supervisor = getpid();
        // Here: the service may be killed before its first step.
        self.board.expect_service();
        match fork_with_descriptors() {
            Ok(Fork::Parent(service)) => Ok(service),
            Ok(Fork::Child) => {
                call_this("vellum");
                self.board.begin_service();
                let dies_too = set_parent_process_death_signal(Some(Signal::KILL));
                if dies_too.is_err() || getppid() != Some(supervisor) {
                    std::process::exit(1);
                }
                vellum_sys::end_process(self.serve(supervisor, over));
            }
            Err(e) => Err(format!("it cannot be started: {e}")),
        }
    }

    /// What the service does; its exit status. Nothing of the supervisor's is dropped here, for that would close it there as well.
    fn serve(&self, supervisor: Pid, over: bool) -> i32 {
        let ended = |failure: Failure| {
            tracing::error!("the service ends: {failure}");
            1
        };
        // Before anything is opened: what a predecessor had open is what is open.
        let heritage = if over || self.board.has_served() || self.charge.listeners().is_some() {
            match InheritedFds::all_but(&self.own) {
                Some(inherited) => Some(inherited),
                None => return ended(Failure::system("cannot see what is open; is /proc mounted?")),
            }
        } else {
            None
        };
        let is_first = heritage.is_none();
        // Somebody waits for the first one to begin.
        let failed = |failure: Failure| {
            if !is_first {
                return ended(failure);
            }
            self.service.failed(&failure);
            FAILED
        };
        ceph::be_one_of(self.number, self.board.restarts());
        ceph::end_when_expelled();
        let plan = match self.charge.plan() {
            Ok(plan) => plan,
            Err(failure) => return failed(failure),
        };
        if plan.cache {
            memory_group::open();
        }
        let begin = match heritage.map(ServiceStart::Heritage).map_or_else(|| self.charge.first(), Ok) {
            Ok(begin) => begin,
            Err(failure) => return failed(failure),
        };
        // Before the first thread is started: each has the privileges of the one that started it.
        let processors = online_processors();
        // Nor can this be read.
        boot_id::run();
        limit_allocator(processors.unwrap_or(1));
        // Nothing can be mounted afterwards.
        let room = self.charge.listeners().and_then(|_| Room::create());
        let confined = sandbox::enter(&plan);
        let reaches_ceph = plan.ceph.is_some();
        drop(plan);
        let orders = Orders {
            listeners: self.charge.listeners(),
            pending: self.charge.pending(),
            program: self.charge.program(),
            stay: self.charge.is_persistent(),
            supervisor,
            user_namespace: user_namespace(),
            confined: confined.parts.clone(),
            processors,
            reaches_ceph,
            signals: self.signals,
            room,
            board: self.board,
            word: &self.service,
        };
        // In a thread that the C library knows: see `fork_with_descriptors`.
        let served = std::thread::scope(|scope| {
            let service = std::thread::Builder::new().name("vellum-service".into());
            let work = || match begin {
                ServiceStart::Heritage(inherited) if over => {
                    abort::end_all(inherited);
                    Ok(())
                }
                begin => pool_service::serve(&orders, begin),
            };
            service.spawn_scoped(scope, work).map(std::thread::ScopedJoinHandle::join)
        });
        ceph::leave();
        match served {
            Ok(Ok(Ok(()))) => 0,
            Ok(Ok(Err(failure))) if !self.board.has_served() => failed(failure),
            Ok(Ok(Err(failure))) => ended(failure),
            Ok(Err(_)) => ended(Failure::system("panic")),
            Err(e) => ended(Failure::system("cannot start a thread").because(e)),
        }
    }

    /// Waits until the service has ended.
    fn wait_for_service(&mut self, service: Pid) -> End {
        let mut replace = false;
        loop {
            match self.signals.rest() {
                Ok(SIGHUP) if self.charge.listeners().is_some() => match self.charge.is_replaceable() {
                    Some(Err(failure)) => tracing::error!("{failure}; going on with the old program"),
                    _ => {
                        replace = true;
                        let _ = kill_process(service, Signal::KILL);
                    }
                },
                Ok(signal) if ENDING.contains(&signal) => {
                    if self.asked {
                        let _ = kill_process(service, Signal::KILL);
                        let _ = waitpid(Some(service), WaitOptions::empty());
                        return End::AtOnce;
                    }
                    self.board.end();
                }
                Ok(SIGUSR2) if self.board.has_served() => self.word.drain(),
                _ => {}
            }
            if self.board.is_ending() && !self.asked {
                self.asked = true;
                self.unmount_all();
            }
            let mut end = None;
            while let Ok(Some((process, status))) = wait(WaitOptions::NOHANG) {
                if process == service {
                    end = Some(if replace { End::Replace } else { End::from_status(status) });
                } else if Some(process) == self.standby {
                    self.standby = None;
                }
            }
            if let Some(end) = end {
                return end;
            }
            if self.standby.is_none() && self.start_standby() {
                return End::Inherited;
            }
        }
    }

    /// Takes the mounts away; who uses them is served until they leave. In a process of its own: it waits for the service, which may
    /// die meanwhile.
    fn unmount_all(&self) {
        match fork() {
            Ok(Fork::Parent(_)) => {}
            Ok(Fork::Child) => {
                let points = self.charge.mountpoints();
                // It must not be one more that keeps layers open.
                close_all_but(&self.own);
                for point in points {
                    // From the tree now, if it cannot be at once for good.
                    let unmount = |lazy| vellum_fuse::unmount(&point, lazy);
                    if let Err(e) = unmount(false).or_else(|_| unmount(true)) {
                        tracing::warn!("cannot unmount: {e}");
                    }
                }
                std::process::exit(0);
            }
            Err(e) => tracing::warn!("cannot unmount: {e}"),
        }
    }
}
