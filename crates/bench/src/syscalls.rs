//! Counts the system calls of a service, by the kernel's own trace events, in a run that is not timed.
//!
//! Waiting and waking are left out: how often a thread sleeps is a matter of chance, and is counted as context switches.

use crate::failure::{Failure, Result};
use crate::service::Service;
use crate::trace::Instance;
use std::collections::BTreeMap;
use std::path::Path;
use syscalls::Sysno;

/// System calls by name.
pub type Calls = BTreeMap<String, u64>;

const EVENT: &str = "raw_syscalls/sys_enter";

/// What only waits, wakes, or manages a process's own memory and signals. A service waits for requests by `read`, whose number
/// is a matter of chance too; data are read at offsets.
const NOT_COUNTED: &[Sysno] = &[
    Sysno::read,
    Sysno::fcntl,
    Sysno::futex,
    Sysno::sched_yield,
    Sysno::nanosleep,
    Sysno::clock_nanosleep,
    Sysno::restart_syscall,
    Sysno::epoll_wait,
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

/// What counts them.
#[derive(Debug)]
pub struct SyscallCounter(Instance);

impl SyscallCounter {
    /// Prepares to count. Fails without root, and where the kernel has no such events.
    pub fn new(scratch: &Path) -> Result<Self> {
        let instance = Instance::new(scratch, "calls")?;
        if !instance.has(EVENT) {
            return Err(Failure::new("this kernel has no trace event sys_enter"));
        }
        // Threads that are started meanwhile count as well.
        instance.write("options/event-fork", "1")?;
        Ok(Self(instance))
    }

    /// Counts the calls of a service while `what` runs.
    pub fn during(&self, service: Service, what: impl FnOnce() -> Result<()>) -> Result<Calls> {
        let threads: Vec<String> = service.threads().iter().map(u32::to_string).collect();
        self.0.write("set_event_pid", &threads.join(" "))?;
        Ok(count(&self.0.during(EVENT, "0", what)?))
    }
}

/// Counts lines such as `vellum-12 [001] ..... 1.0: sys_enter: NR 17 (3, ...)`.
fn count(trace: &str) -> Calls {
    let mut calls = Calls::new();
    for line in trace.lines() {
        let Some((_, event)) = line.split_once("sys_enter: NR ") else { continue };
        let number = event.split_whitespace().next().and_then(|word| word.parse().ok());
        let Some(number) = number else { continue };
        let name = match Sysno::new(number) {
            Some(call) if NOT_COUNTED.contains(&call) => continue,
            Some(call) => call.name().to_owned(),
            None => format!("call {number}"),
        };
        *calls.entry(name).or_default() += 1;
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_waiting_is_not() {
        let pread = Sysno::pread64.id();
        let futex = Sysno::futex.id();
        let trace = format!(
            "# tracer: nop\n\
             vellum-1 [001] ..... 1.0: sys_enter: NR {pread} (3, 7f, 1000, 0, 0, 0)\n\
             vellum-1 [001] ..... 1.1: sys_enter: NR {futex} (3, 7f, 1000, 0, 0, 0)\n\
             vellum-1 [001] ..... 1.2: sys_enter: NR {pread} (3, 7f, 1000, 0, 0, 0)\n"
        );
        assert_eq!(count(&trace), Calls::from([("pread64".to_owned(), 2)]));
    }
}
