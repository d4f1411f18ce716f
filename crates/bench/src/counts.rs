//! What is counted in a run of its own that is not timed, for counting costs time: requests, system calls, and memory.

use crate::cacheline::{self, LineCount};
use crate::contender::Contender;
use crate::failure::Result;
use crate::memcg::{Charges, MemoryCharge};
use crate::mounts::Mounts;
use crate::requests::{Counter, Requests};
use crate::syscalls::{Calls, SyscallCounter};
use crate::task_process;
use crate::tasks::{self, Task};
use crate::testbed::{self, Testbed};
use std::path::{Path, PathBuf};

/// The scale at which instructions are counted one by one: some dozen operations say what each of them does.
const LINES_SCALE: f64 = 0.05;

/// What was counted in all passes of one measurement. None: it cannot be counted here, or there was too much of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Requests from the kernel to the services, where there are any.
    pub requests: Option<Requests>,
    /// System calls of the process that does the task and its children, and the few that this one talks to it with.
    pub client_calls: Option<Calls>,
    /// System calls of the services, where there are any.
    pub service_calls: Option<Calls>,
    /// Memory at the end that preparation and passes are charged with, the caches having been empty before.
    pub charged: Option<MemoryCharge>,
    /// What the service does to cache lines that its threads share, for tasks that are about that.
    pub lines: Option<LinesPerOperation>,
}

/// Of the service's threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinesPerOperation {
    /// Locked instructions.
    pub locked: f64,
    /// Writes to cache lines that several threads wrote for several clients; None where no requests could be seen.
    pub shared_writes: Option<f64>,
}

#[derive(Debug)]
pub struct Counters {
    requests: Option<Counter>,
    calls: Option<SyscallCounter>,
    charges: bool,
    scratch: PathBuf,
}

impl Counters {
    /// What can be counted here; what cannot be is said on stderr.
    #[must_use]
    pub fn detect(scratch: &Path) -> Self {
        Self {
            requests: or_warn("requests", Counter::new(scratch)),
            calls: or_warn("system calls", SyscallCounter::new(scratch)),
            charges: or_warn(MEMORY, Charges::new().and_then(|_| testbed::drop_caches())).is_some(),
            scratch: scratch.to_owned(),
        }
    }

    /// Whether there is anything that can be counted.
    #[must_use]
    pub fn any(&self) -> bool {
        self.requests.is_some() || self.calls.is_some() || self.charges
    }

    /// Does a task once on fresh layers.
    pub fn count(&self, task: &Task, subject: &Contender, testbed: &Testbed) -> Result<Counts> {
        // It has to outlive the mount: a group with a process in it cannot be removed.
        let charges = if self.charges { or_warn(MEMORY, Charges::new()) } else { None };
        if let Some(charges) = &charges {
            testbed::drop_caches()?;
            charges.as_service()?;
        }
        Mounts::during(subject, testbed, task, |mounts| {
            if let Some(charges) = &charges {
                charges.as_client()?;
            }
            let counts = self.on(testbed, task, mounts)?;
            let charged = charges.as_ref().map(Charges::now).transpose()?;
            Ok(Counts { charged, ..counts })
        })
        .map(|counts| Counts { lines: self.lines(task, subject), ..counts })
    }

    fn lines(&self, task: &Task, subject: &Contender) -> Option<LinesPerOperation> {
        if !has_lines(task, subject) {
            return None;
        }
        let testbed = or_warn(LINES, Testbed::new(&self.scratch, None, LINES_SCALE))?;
        let count = count_lines(task, subject, &testbed)?;
        let operations = (task.operations)(&testbed).max(1) as f64 * f64::from(task.passes);
        let each = |n: u64| n as f64 / operations;
        let shared_writes = (count.clients > 0).then(|| each(count.client_writes));
        Some(LinesPerOperation { locked: each(count.locked), shared_writes })
    }

    fn on(&self, testbed: &Testbed, task: &Task, mounts: &Mounts) -> Result<Counts> {
        let (services, at_work) = (mounts.services(), mounts.processes());
        let mut counts = Counts::default();
        if let Some(calls) = &self.calls {
            calls.watch(&at_work)?;
        }
        // Only now, so that it is watched and charged from its start.
        let mut client = mounts.client_unmeasured(testbed, task)?;
        let mut passes = || client.run().map(drop);
        let calls = || match &self.calls {
            Some(counter) => {
                let of = counter.during(&at_work, passes)?;
                let (client, service) = of.map(|of| (of.client, of.service)).unzip();
                counts.client_calls = client;
                counts.service_calls = service.filter(|_| !at_work.is_empty());
                Ok(())
            }
            None => passes(),
        };
        match &self.requests {
            Some(counter) if !services.is_empty() => {
                counts.requests = counter.during(mounts.roots(), calls)?;
            }
            _ => calls()?,
        }
        client.end()?;
        Ok(counts)
    }
}

const MEMORY: &str = "memory by control group";
const LINES: &str = "writes to shared lines";

fn has_lines(task: &Task, subject: &Contender) -> bool {
    cacheline::HERE && task.name.starts_with(tasks::PRIVATE) && subject.program.is_some()
}

/// Steps through the service of a task that is about shared cache lines, on a fresh mount. None: it is another task, or it cannot be
/// done here, which is said on stderr.
#[must_use]
pub fn count_lines(task: &Task, subject: &Contender, testbed: &Testbed) -> Option<LineCount> {
    if !has_lines(task, subject) {
        return None;
    }
    let count = Mounts::during(subject, testbed, task, |mounts| {
        let [service] = mounts.services()[..] else { return Ok(None) };
        if subject.library.is_none() {
            // From another process, clients hardly ever have two threads of a stepped service at work at once.
            let part = mounts.part(testbed, task);
            return task_process::play(&part, |passes| cacheline::count(service, passes)).map(Some);
        }
        let mut client = mounts.client_unmeasured(testbed, task)?;
        let count = cacheline::count(service, || client.run().map(drop))?;
        client.end()?;
        Ok(Some(count))
    });
    or_warn(LINES, count).flatten()
}

fn or_warn<T>(what: &str, made: Result<T>) -> Option<T> {
    made.map_err(|failure| eprintln!("{what}: not counted: {failure}")).ok()
}
