//! Between two services: who asks waits for the next one, however many are killed before they serve.

use super::{kill, roles};
use crate::cases::pool::Pools;
use crate::harness::mount::{MountKind, only_vellum};
use crate::harness::outcome::{DuringContext, Outcome, Stop, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, Mount, PATIENCE};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Instant;

/// A service and its successor are killed, again and again.
pub(super) fn killed_before_it_serves(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    fs::write(layers.lower().join("below"), "below")?;
    let mut mount = cx.mount(&layers)?;
    let [supervisor, standby, _] = roles(&mount)?;
    for round in 0..25 {
        let service = mount.service().doing(format!("asking for the service in round {round}"))?;
        let _ = kill_process(service, Signal::KILL);
        let begin = Instant::now();
        let next = loop {
            let mut children = children(supervisor)?.into_iter();
            if let Some(next) = children.find(|child| ![service, standby].contains(child)) {
                break next;
            }
            ensure!(begin.elapsed() < PATIENCE, "no other service in round {round}");
        };
        let _ = kill_process(next, Signal::KILL);
        ensure_eq!(fs::read_to_string(mount.path("below"))?, "below", "a lower file in round {round}");
    }
    mount.unmount()
}

/// Many successors in a row are killed before their first step. Who waits for an answer has it from the first that lives.
pub(super) fn killed_in_a_row(cx: &Cx) -> Outcome {
    // Together more than what would end the mount, if none had served in between.
    const ROUNDS: usize = 3;
    const KILLS: usize = 36;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("l", 1)?;
    fs::write(layers.lower().join("below"), "below")?;
    let log = cx.dir.join("log");
    let variables = [("VELLUM_LOG_TO", log.to_str().unwrap_or_default())];
    let mut mount = Mount::with_variables(MountKind::under_test(), cx.profile, &layers, &[], &variables)?;
    let said = |what: &str| Outcome::Ok(fs::read_to_string(&log)?.matches(what).count());
    for round in 1..=ROUNDS {
        let [supervisor, _, service] = roles(&mount)?;
        let births = Births::watch(supervisor)?;
        kill(service)?;
        let new = mount.path(&format!("new{round}"));
        let waiting = std::thread::spawn(move || fs::write(new, "new"));
        for _ in 0..KILLS {
            births.kill_next()?;
        }
        births.let_next_live()?;
        let wrote = waiting.join().map_err(|_| Stop::Fail("the writer has panicked".into()))?;
        wrote.doing(format!("writing in round {round}"))?;
        ensure_eq!(fs::read_to_string(mount.path("below"))?, "below", "a lower file in round {round}");
        ensure_eq!(said("killed before it served")?, round * KILLS, "kills that the supervisor has seen");
    }
    ensure_eq!(said("its mounts end")?, 0, "ends in the log");
    mount.unmount()
}

/// The children of a process, which the kernel stops before their first step.
struct Births(nix::unistd::Pid);

impl Births {
    fn watch(parent: Pid) -> Outcome<Self> {
        let parent = nix::unistd::Pid::from_raw(parent.as_raw_nonzero().get());
        match ptrace::seize(parent, ptrace::Options::PTRACE_O_TRACEFORK) {
            Ok(()) => Ok(Self(parent)),
            Err(nix::Error::EPERM) => skip("ptrace is not permitted"),
            Err(error) => fail(format!("ptrace: {error}")),
        }
    }

    /// The next child, which is stopped, as its parent is.
    fn next(&self) -> Outcome<nix::unistd::Pid> {
        let failed = |error: nix::Error| Stop::Fail(format!("ptrace: {error}"));
        loop {
            match waitpid(self.0, Some(WaitPidFlag::__WALL)).map_err(failed)? {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_FORK) => {
                    let child = ptrace::getevent(self.0).map_err(failed)?;
                    let child = nix::unistd::Pid::from_raw(i32::try_from(child).unwrap_or_default());
                    waitpid(child, Some(WaitPidFlag::__WALL)).map_err(failed)?;
                    return Ok(child);
                }
                WaitStatus::Stopped(_, signal) => ptrace::cont(self.0, signal).map_err(failed)?,
                WaitStatus::PtraceEvent(..) => ptrace::cont(self.0, None).map_err(failed)?,
                other => return fail(format!("the supervisor: {other:?}")),
            }
        }
    }

    fn kill_next(&self) -> Outcome {
        let child = self.next()?;
        let killed = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL)
            .and_then(|()| waitpid(child, Some(WaitPidFlag::__WALL)))
            .and_then(|_| ptrace::cont(self.0, None));
        killed.map_err(|error| Stop::Fail(format!("killing a service: {error}")))
    }

    /// Watches no more.
    fn let_next_live(self) -> Outcome {
        let child = self.next()?;
        let left = ptrace::detach(child, None).and_then(|()| ptrace::detach(self.0, None));
        left.map_err(|error| Stop::Fail(format!("leaving the supervisor: {error}")))
    }
}

fn children(of: Pid) -> Outcome<Vec<Pid>> {
    let of = of.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children"))?;
    Ok(children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// A pool whose service is being replaced has one: it is shown, and can be replaced.
pub(super) fn queried_during_replacement(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let mount = pools.mount(&cx.layers("l", 1)?, true)?;
    for round in 0..20 {
        let shown = pools.show()?;
        let number = |name: &str| shown["service"][name].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let (service, supervisor) = (number("service"), number("supervisor"));
        let [Some(service), Some(supervisor)] = [service, supervisor].map(|pid| pid.and_then(Pid::from_raw))
        else {
            return fail(format!("no service in round {round}: {shown}"));
        };
        // The service may have been replaced since it was shown.
        let (whom, signal) = if round % 3 == 0 { (service, Signal::KILL) } else { (supervisor, Signal::HUP) };
        let _ = kill_process(whom, signal);
        if round % 2 == 0 {
            pools.run("restart", &[]).doing(format!("round {round}"))?;
        }
    }
    ensure!(mount.service().is_ok(), "nobody serves");
    Ok(())
}
