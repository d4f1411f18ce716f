//! Processors: others on them come first while a checkpoint is taken, as far as it does not have the container stand still for much longer.
//!
//! The command, the runtime and CRIU work at the lowest priority. Where processors are free now and then that costs nothing, and others need not wait
//! for them. Where all processors are busy all the time it would take forever; so a thread looks at how long they have waited, and gives
//! them the priority back that they had.

use rustix::process::{Pid, getpriority_process, setpriority_process};
use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The lowest priority, as nice(1) counts.
const LOWEST: i32 = 19;
/// From one look to the next.
const TICK: Duration = Duration::from_millis(20);
/// So long may those at work wait for processors in any case,
const GRACE: Duration = Duration::from_millis(100);
/// Children of children that are looked for: the runtime, CRIU, and what they call.
const DEPTH: u32 = 6;

/// This process and its children, at the lowest priority until it is dropped, or until they have waited too long.
#[derive(Debug)]
pub(super) struct LowPriority {
    watch: Option<(Sender<()>, JoinHandle<()>)>,
}

impl LowPriority {
    /// Begins: for this process, and whatever it starts from then on. Without the right to take it back nothing is done.
    pub(super) fn begin() -> Self {
        Self::with(GRACE)
    }

    fn with(grace: Duration) -> Self {
        let Ok(usual) = getpriority_process(None) else { return Self { watch: None } };
        let (end, ends) = mpsc::channel();
        let (begins, begun) = mpsc::channel();
        // Started before, so that it keeps its priority.
        let watch = move || {
            if setpriority_process(None, LOWEST).and_then(|()| setpriority_process(None, usual)).is_err() {
                return;
            }
            let own = rustix::thread::gettid();
            set(&threads("self"), LOWEST, own);
            let _ = begins.send(());
            let mut waits = Waits::default();
            while ends.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let family = family();
                waits.look(&family);
                if waits.are_too_long(grace) {
                    tracing::info!(?waits, "processors are busy: no longer at the lowest priority");
                    break;
                }
            }
            // Twice, for what was being started meanwhile.
            (0..2).for_each(|_| set(&family(), usual, own));
        };
        let watch = thread::Builder::new().name("polite".to_owned()).spawn(watch).ok();
        let _ = begun.recv();
        Self { watch: watch.map(|watch| (end, watch)) }
    }
}

impl Drop for LowPriority {
    fn drop(&mut self) {
        if let Some((end, watch)) = self.watch.take() {
            drop(end);
            let _ = watch.join();
        }
    }
}

/// How long threads have worked, and have waited for a processor.
#[derive(Debug, Default)]
struct Waits {
    /// By thread: nanoseconds of work, and of waiting.
    threads: HashMap<Pid, (u64, u64)>,
    /// What they had behind them when they were first seen is not counted, and those that have ended are.
    worked: Duration,
    waited: Duration,
}

impl Waits {
    fn look(&mut self, family: &[Pid]) {
        for thread in family {
            if let Some(now) = times(*thread) {
                self.count(*thread, now);
            }
        }
    }

    fn count(&mut self, thread: Pid, now: (u64, u64)) {
        let before = self.threads.insert(thread, now).unwrap_or(now);
        self.worked += Duration::from_nanos(now.0.saturating_sub(before.0));
        self.waited += Duration::from_nanos(now.1.saturating_sub(before.1));
    }

    /// Longer than they have worked, and a little: as they would wait at the usual priority where somebody else keeps each processor busy.
    fn are_too_long(&self, grace: Duration) -> bool {
        self.waited > grace + self.worked
    }
}

/// What the scheduler has counted of a thread.
fn times(thread: Pid) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
    let mut words = text.split_ascii_whitespace().map(str::parse);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

/// The threads of this process, its children, and theirs.
fn family() -> Vec<Pid> {
    let mut found = threads("self");
    let (mut from, mut depth) = (0, 0);
    while from < found.len() && depth < DEPTH {
        let parents = from..found.len();
        from = found.len();
        for parent in parents {
            for child in children(found[parent]) {
                found.extend(threads(&child.to_string()));
            }
        }
        depth += 1;
    }
    found
}

fn threads(process: &str) -> Vec<Pid> {
    let listed = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    listed.filter_map(|entry| pid(entry.file_name().to_str()?)).collect()
}

/// Those that a thread has started. A kernel that does not list them has no such file.
fn children(thread: Pid) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{thread}/task/{thread}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(pid).collect()
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

/// Gives threads a priority, but for one.
fn set(threads: &[Pid], priority: i32, but: Pid) {
    for thread in threads.iter().filter(|thread| **thread != but) {
        // It may have ended.
        let _ = setpriority_process(Some(*thread), priority);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, BufRead};
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    fn priority(of: Pid) -> i32 {
        getpriority_process(Some(of)).unwrap()
    }

    /// Runs one of the tests below in a process of its own, for others' threads and children are not to be counted.
    fn alone(name: &str) {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return;
        }
        let this = std::env::current_exe().unwrap();
        let test = format!("cpu_priority::tests::{name}");
        let output =
            Command::new(this).args(["--exact", &test, "--ignored", "--nocapture"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// A shell and its child, at work until they are killed.
    fn started() -> (Child, Pid) {
        let mut command = Command::new("sh");
        let mut child = command
            .args(["-c", "while :; do :; done & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        (child, pid(said.trim()).unwrap())
    }

    fn kill(process: Pid) {
        let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
    }

    fn ended((mut child, grandchild): (Child, Pid)) {
        kill(grandchild);
        let _ = child.kill();
        child.wait().unwrap();
    }

    #[test]
    fn low_priority_covers_child_processes_until_the_end() {
        alone("child_runs_at_low_priority");
    }

    #[test]
    #[ignore = "counts all threads and children: run by another test"]
    fn child_runs_at_low_priority() {
        let (own, usual) = (rustix::thread::gettid(), priority(rustix::thread::gettid()));
        let polite = LowPriority::with(Duration::from_secs(3600));
        let started = started();
        let all = [own, Pid::from_child(&started.0), started.1];
        let seen = all.map(priority);
        drop(polite);
        let after = all.map(priority);
        ended(started);
        assert_eq!((seen, after), ([LOWEST; 3], [usual; 3]));
    }

    #[test]
    fn low_priority_ends_on_busy_processors() {
        alone("child_leaves_low_priority");
    }

    #[test]
    #[ignore = "counts all threads and children: run by another test"]
    fn child_leaves_low_priority() {
        let usual = priority(rustix::thread::gettid());
        // Others, for whoever has started them has ended.
        let script = "while :; do :; done > /dev/null 2>&1 & echo $!";
        let processors = thread::available_parallelism().unwrap().get();
        let other = |_| Command::new("sh").args(["-c", script]).output().unwrap().stdout;
        let busy: Vec<Vec<u8>> = (0..processors).map(other).collect();
        let polite = LowPriority::begin();
        let started = started();
        let begin = Instant::now();
        while priority(started.1) != usual && begin.elapsed() < Duration::from_secs(60) {
            thread::sleep(TICK);
        }
        let took = begin.elapsed();
        let is_usual = priority(started.1) == usual;
        ended(started);
        drop(polite);
        busy.iter().filter_map(|said| pid(std::str::from_utf8(said).ok()?.trim())).for_each(kill);
        assert!(is_usual, "{took:?}");
    }

    #[test]
    fn waits_are_counted_from_the_first_sample() {
        let thread = rustix::thread::gettid();
        let mut waits = Waits::default();
        let ms = |count: u64| count * 1_000_000;
        waits.count(thread, (ms(5), ms(1000)));
        assert!(!waits.are_too_long(GRACE));
        waits.count(thread, (ms(55), ms(1149)));
        assert!(!waits.are_too_long(GRACE), "{waits:?}");
        waits.count(thread, (ms(55), ms(1151)));
        assert!(waits.are_too_long(GRACE), "{waits:?}");
    }
}
