//! What a service does to cache lines that its threads share, counted and not timed.
//!
//! A locked instruction, and a write to a line that another thread writes too, cost little on two cores and most of the time on
//! many. Counting them needs neither many cores nor the processor's counters: all threads of the service are stepped one
//! instruction at a time while a small workload runs, and each instruction is decoded before it is done. What the kernel
//! writes for the service (into its buffers, say) is not in the count.

#[cfg(target_arch = "x86_64")]
mod addresses;
#[cfg(target_arch = "x86_64")]
mod clock;
#[cfg(target_arch = "x86_64")]
mod decode;
#[cfg(target_arch = "x86_64")]
mod line_writes;
#[cfg(target_arch = "x86_64")]
#[cfg(target_arch = "x86_64")]
mod requests;
#[cfg(target_arch = "x86_64")]
mod stepper;
#[cfg(target_arch = "x86_64")]
mod stops;
#[cfg(target_arch = "x86_64")]
mod stretched_timeouts;

use crate::failure::Result;
use crate::service::Service;
use std::collections::BTreeMap;

/// Whether services can be stepped on this kind of processor.
pub const HERE: bool = cfg!(target_arch = "x86_64");

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineCount {
    /// Instructions that were done. A repeated one (`rep movsb`) is one.
    pub instructions: u64,
    /// Those among them that are locked: with the prefix, and exchanges with memory.
    pub locked: u64,
    /// Writes, locked or not, to lines that at least two threads of the service wrote. A repeated instruction writes once to
    /// each line.
    pub shared_writes: u64,
    /// Those among them to lines that several threads wrote for several clients: not what belongs to one client's files, which comes to
    /// be shared because any thread serves any client, but what clients share who have nothing in common.
    pub client_writes: u64,
    /// Clients whose requests were seen.
    pub clients: u64,
    pub shared_lines: u64,
    /// The instructions that wrote what clients share (or threads, where there are no clients), as `file+0xADDRESS` with the address that `addr2line -e FILE` takes, and how often.
    pub sites: BTreeMap<String, u64>,
}

/// Counts what all threads of `service` do while `what` runs on the calling thread.
///
/// The service is slower by some ten thousand times meanwhile, sees a time that is as slow, and goes on by itself afterwards, also when counting fails.
#[cfg(target_arch = "x86_64")]
pub fn count(service: Service, what: impl FnOnce() -> Result<()>) -> Result<LineCount> {
    stepper::count(service, what)
}

/// Fails: instructions are decoded for x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
pub fn count(_: Service, _: impl FnOnce() -> Result<()>) -> Result<LineCount> {
    Err(crate::failure::Failure::new("writes to shared cache lines can be counted on x86-64 only"))
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Set for this program when it is to be what is stepped: `shared` or `apart`.
    const ROLE: &str = "VELLUM_BENCH_STEPPED";
    /// Additions of each of two threads.
    const ADDITIONS: u64 = 500;
    /// What waking, ending and waiting for two threads may write, and what else the test harness does: about 130.
    const BESIDE: u64 = ADDITIONS / 2;

    #[repr(align(128))]
    struct Padded(AtomicU64);

    static NUMBERS: [Padded; 2] = [const { Padded(AtomicU64::new(0)) }; 2];

    /// Does nothing by itself; what [`stepped`] starts: two threads that add to one number, or each to its own.
    #[test]
    fn two_threads_add() {
        let Ok(role) = std::env::var(ROLE) else { return };
        let second = usize::from(role == "apart");
        let mut stdin = std::io::stdin().lock();
        std::thread::scope(|scope| {
            let add = |number: &'static Padded| {
                std::thread::park();
                for _ in 0..ADDITIONS {
                    number.0.fetch_add(1, Ordering::Relaxed);
                }
            };
            let threads = [&NUMBERS[0], &NUMBERS[second]].map(|number| scope.spawn(move || add(number)));
            say("ready");
            stdin.read_exact(&mut [0]).unwrap();
            for thread in &threads {
                thread.thread().unpark();
            }
        });
        say("done");
        // Until the count has ended.
        stdin.read_to_end(&mut Vec::new()).unwrap();
    }

    fn say(word: &str) {
        // Not `println`, which a test's harness keeps to itself.
        let mut stdout = std::io::stdout();
        stdout.write_all(format!("\n{word}\n").as_bytes()).unwrap();
        stdout.flush().unwrap();
    }

    /// Counts while the threads of another process add; None where a process may not trace its child.
    fn stepped(role: &str) -> Option<LineCount> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cacheline::tests::two_threads_add", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut wait_for = |word: &str| lines.by_ref().any(|line| line.unwrap() == word);
        assert!(wait_for("ready"));
        let counted = count(Service { pid: child.id() }, || {
            stdin.write_all(b"x").unwrap();
            assert!(wait_for("done"));
            Ok(())
        });
        drop(stdin);
        let status = child.wait().unwrap();
        match counted {
            Err(failure) if failure.to_string().contains("EPERM") => {
                println!("SKIPPED: {failure}");
                None
            }
            counted => {
                assert!(status.success(), "{status}");
                Some(counted.unwrap())
            }
        }
    }

    #[test]
    fn false_sharing_between_threads_is_detected() {
        let Some(shared) = stepped("shared") else { return };
        assert!(shared.locked >= 2 * ADDITIONS, "{shared:?}");
        assert!(shared.shared_writes >= 2 * ADDITIONS, "{shared:?}");
        let hottest = shared.sites.values().max().copied().unwrap_or(0);
        assert!((ADDITIONS..=2 * ADDITIONS).contains(&hottest), "{shared:?}");

        let Some(apart) = stepped("apart") else { return };
        assert!(apart.locked >= 2 * ADDITIONS, "{apart:?}");
        assert!(apart.shared_writes <= BESIDE, "{apart:?}");
        assert!(shared.shared_lines <= BESIDE && apart.shared_lines <= BESIDE);
        assert!(apart.instructions > apart.locked);
    }

    #[test]
    fn a_failed_measurement_leaves_the_process_running() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let service = Service { pid: child.id() };
        let failed = count(service, || Err(crate::failure::Failure::new("of its own")));
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(failed.is_err());
        assert!(!stat.contains(") t ") && !stat.contains(") T "), "{stat}");
        let gone = count(service, || Ok(())).unwrap_err();
        assert!(gone.to_string().contains("no process"), "{gone}");
    }
}
