//! Counts the system calls of a service and of its client, by the kernel's own trace events, in a run that is not timed.
//!
//! Waiting and waking are left out: how often a thread sleeps is a matter of chance, and is counted as context switches.

use crate::failure::{Failure, Result};
use crate::service::Service;
use crate::trace::Instance;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syscalls::Sysno;

/// System calls by name.
pub type Calls = BTreeMap<String, u64>;

const EVENT: &str = "raw_syscalls/sys_enter";

/// System calls of both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Of this process and its children.
    pub client: Calls,
    pub service: Calls,
}

/// What only waits, wakes, or manages a process's own memory and signals.
const NOT_COUNTED: &[Sysno] = &[
    Sysno::fcntl,
    Sysno::futex,
    Sysno::sched_yield,
    Sysno::nanosleep,
    Sysno::clock_nanosleep,
    Sysno::restart_syscall,
    Sysno::epoll_wait,
    Sysno::epoll_pwait,
    // Where a worker that begins will wait.
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::ppoll,
    Sysno::poll,
    Sysno::madvise,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mprotect,
    Sysno::brk,
    Sysno::getrusage,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigaction,
    Sysno::sigaltstack,
    Sysno::clone,
    Sysno::clone3,
    Sysno::exit,
    Sysno::set_robust_list,
    Sysno::rseq,
    Sysno::prctl,
    Sysno::gettid,
    Sysno::sched_getaffinity,
    Sysno::sched_setaffinity,
];

#[derive(Debug)]
pub struct SyscallCounter(Instance);

impl SyscallCounter {
    /// Prepares to count. Fails without root, and where the kernel has no such events.
    pub fn new(scratch: &Path) -> Result<Self> {
        if !in_first_pid_namespace() {
            return Err(Failure::new(
                "in a PID namespace processes have other numbers than in the kernel's trace",
            ));
        }
        let instance = Instance::new(scratch, "calls")?;
        if !instance.has(EVENT) {
            return Err(Failure::new("this kernel has no trace event sys_enter"));
        }
        // Threads and processes that are started meanwhile count as well.
        instance.write("options/event-fork", "1")?;
        Ok(Self(instance))
    }

    /// From here on these services, this process, and what they start are known; nothing is counted yet.
    pub fn watch(&self, services: &[Service]) -> Result<()> {
        let own = Service { pid: std::process::id() };
        let threads: Vec<String> = services
            .iter()
            .chain([&own])
            .flat_map(Service::threads)
            .map(|thread| thread.to_string())
            .collect();
        self.0.write("set_event_pid", &threads.join(" "))
    }

    /// Counts while `what` runs; None when there were too many calls to count.
    pub fn during(
        &self,
        services: &[Service],
        what: impl FnOnce() -> Result<()>,
    ) -> Result<Option<CallCounts>> {
        let mut serving = ServiceThreads::default();
        serving.add(services);
        let trace = self.0.during(EVENT, "0", what)?;
        serving.add(services);
        Ok(trace.map(|trace| count(&trace, &serving)))
    }
}

/// The threads of services, and what they are called: those that were there neither at the beginning nor at the end are known by that.
#[derive(Debug, Default)]
struct ServiceThreads {
    threads: BTreeSet<u32>,
    names: BTreeSet<String>,
}

impl ServiceThreads {
    fn add(&mut self, services: &[Service]) {
        for thread in services.iter().flat_map(Service::threads) {
            self.threads.insert(thread);
            let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            self.names.insert(name.trim_end_matches('\n').to_owned());
        }
    }

    /// Whether it is one of them, as the trace shows it: `NAME-NUMBER`.
    fn has(&self, task: &str) -> bool {
        let Some((name, number)) = task.trim().rsplit_once('-') else { return false };
        number.parse().is_ok_and(|number| self.threads.contains(&number)) || self.names.contains(name)
    }
}

/// Whether the numbers of processes are the kernel's own here.
fn in_first_pid_namespace() -> bool {
    // The number that the kernel gives to the first one (PROC_PID_INIT_INO).
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

/// Counts lines such as `vellum-12 [001] ..... 1.0: sys_enter: NR 17 (3, ...)`.
fn count(trace: &str, serving: &ServiceThreads) -> CallCounts {
    let mut calls = CallCounts::default();
    for line in trace.lines() {
        let Some((before, event)) = line.split_once("sys_enter: NR ") else { continue };
        let number = event.split_whitespace().next().and_then(|word| word.parse().ok());
        let Some(number) = number else { continue };
        // A thread's name may hold anything, its number is behind the last dash before the processor.
        let serves = before.rsplit_once('[').is_some_and(|(task, _)| serving.has(task));
        let name = match Sysno::new(number) {
            Some(call) if NOT_COUNTED.contains(&call) => continue,
            // A service waits for requests by `read`, whose number is a matter of chance; it reads data at offsets.
            Some(Sysno::read) if serves => continue,
            Some(call) => call.name().to_owned(),
            None => format!("call {number}"),
        };
        let side = if serves { &mut calls.service } else { &mut calls.client };
        *side.entry(name).or_default() += 1;
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_waiting_is_not() {
        let (pread, futex, read) = (Sysno::pread64.id(), Sysno::futex.id(), Sysno::read.id());
        let trace = format!(
            "# tracer: nop\n\
             vellum [w]-11   [001] ..... 1.0: sys_enter: NR {pread} (3, 7f, 1000, 0, 0, 0)\n\
             vellum-1        [001] ..... 1.1: sys_enter: NR {futex} (3, 7f, 1000, 0, 0, 0)\n\
             vellum-11       [001] ..... 1.2: sys_enter: NR {read} (3, 7f, 1000, 0, 0, 0)\n\
             cat-12          [000] ..... 1.2: sys_enter: NR {read} (3, 7f, 1000, 0, 0, 0)\n\
             a-b-13          [000] ..... 1.3: sys_enter: NR {pread} (3, 7f, 1000, 0, 0, 0)\n"
        );
        // One of the second name has come and gone meanwhile.
        let serving =
            ServiceThreads { threads: BTreeSet::from([11]), names: BTreeSet::from(["a-b".to_owned()]) };
        let calls = count(&trace, &serving);
        assert_eq!(calls.service, Calls::from([("pread64".to_owned(), 2)]));
        assert_eq!(calls.client, Calls::from([("read".to_owned(), 1)]));
    }
}
