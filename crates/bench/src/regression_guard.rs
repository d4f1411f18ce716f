//! Guards what Vellum costs, in counts that do not depend on how busy the machine is: requests to the service, its system
//! calls, the space that copies take, and what its threads do to each other's cache lines. A file beside the source says what they were; more than that is a regression.

use crate::compare::style;
use crate::contender::{Contender, Kind};
use crate::counts::count_lines;
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::machine::Machine;
use crate::mounts::Mounts;
use crate::requests::Counter;
use crate::syscalls::SyscallCounter;
use crate::tasks::{self, Task};
use crate::testbed::{self, Testbed};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The factor of all sizes and counts: 200 files, 25 MiB.
const SCALE: f64 = 0.05;
/// What is guarded: tasks whose counts hardly depend on when the kernel writes back or reads ahead.
const TASKS: &[&str] = &[
    "open-read",
    "grep",
    "lstat",
    "find-cold",
    "untar-warm",
    "rm-upper",
    "rm-lower",
    "mv-lower",
    "chmod-lower",
    "random-read",
    "rewrite-byte",
    "append",
    "append-fsync",
    "block-first-1m",
    "block-same",
    "block-others",
    "block-random-4k",
    "private-open",
    "private-stat",
    "private-read",
    "private-write",
    "private-create",
];
/// A count may be larger than the largest that was seen by this part: below 50 it is exact, and 0 stays 0.
const TOLERANCE: f64 = 0.02;
/// Locked instructions by this part: what threads do when they meet is a matter of chance.
const LOCKED_TOLERANCE: f64 = 0.10;
/// Writes to shared lines by this part: which thread serves whom is one, too, and with it which lines come to be shared.
const SHARED_TOLERANCE: f64 = 0.25;
/// KiB that a file's blocks may take more where it takes any: one block.
const SPACE_SLACK: u64 = 4;
/// System calls whose number depends on how busy the machine is, and how many more there may be: a service looks whether its threads
/// sleep, and starts another one where requests wait.
const BESIDES: &[(&str, u64)] = &[("pread64", 48), ("open", 4), ("openat", 4), ("ioctl", 4)];
/// How often a task is counted before a count that has become larger is believed. What the kernel does by its own decision, such
/// as forgetting cached pages when memory is short, happens in one run; a regression happens in every run.
const LOOKS: usize = 3;
/// How often a task is counted for the file, which has the largest of each count.
const SAMPLES: usize = 5;
/// Exit status where nothing, or not all, could be compared.
pub const EXIT_NOT_COMPARED: u8 = 77;

/// What one task counted on one profile.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Counts {
    /// Operations that were done.
    pub operations: u64,
    /// Requests from the kernel, by kind.
    pub requests: BTreeMap<String, u64>,
    /// System calls of the service, by name.
    pub calls: BTreeMap<String, u64>,
    /// Space that the upper layer takes afterwards, in KiB.
    pub upper_kib: u64,
    /// Locked instructions of the service, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<u64>,
    /// Its writes to cache lines that several of its threads wrote for several clients, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_writes: Option<u64>,
}

/// By `task[profile]`.
type TaskCounts = BTreeMap<String, Counts>;

/// What was counted, and on what.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Baseline {
    /// The kernel's version: which requests there are is its decision.
    pub kernel: String,
    /// The filesystem of the layers: how it keeps holes and blocks is its decision.
    pub filesystem: String,
    /// By `task[profile]`.
    pub counts: BTreeMap<String, Counts>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Vellum's program and its profiles.
    pub subjects: &'a [Contender],
    /// Where layers and mounts are made.
    pub dir: &'a Path,
    /// What the counts were.
    pub baseline: &'a Path,
    /// Write what they are now.
    pub update: bool,
}

/// What came of a run in which nothing has become more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardOutcome {
    /// All of it was compared, or written.
    Done,
    /// Something was not compared, and why.
    NotCompared(String),
}

/// Counts, prints a table, and compares with the baseline. Fails when something has become more, or is not known.
pub fn run(plan: &Plan<'_>) -> Result<GuardOutcome> {
    let testbed = Testbed::new(plan.dir, None, SCALE)?;
    let (kernel, filesystem) = (kernel(), Machine::detect(testbed.top()).filesystem);
    let known = if plan.update { None } else { Some(read(plan.baseline)?) };
    if let Some(known) = &known
        && (&known.kernel, &known.filesystem) != (&kernel, &filesystem)
    {
        let (theirs, on) = (&known.kernel, &known.filesystem);
        return Ok(GuardOutcome::NotCompared(format!(
            "the counts are those of Linux {theirs} on {on}; this is {kernel} on {filesystem}"
        )));
    }
    let tasks: Vec<&'static Task> = TASKS.iter().filter_map(|name| tasks::named(name)).collect();
    let progress = ProgressBar::new((tasks.len() * plan.subjects.len()) as u64);
    progress.set_style(style());
    let counters =
        Counters { requests: Counter::new(testbed.top())?, calls: SyscallCounter::new(testbed.top())? };
    let mut counted = TaskCounts::new();
    for task in &tasks {
        for subject in plan.subjects {
            interrupt::check()?;
            let name = format!("{}[{}]", task.name, profile(subject.kind));
            progress.set_message(name.clone());
            let nothing = Counts::default();
            let count = || {
                interrupt::check()?;
                counters.count(task, subject, &testbed)
            };
            let counts = match &known {
                Some(known) => least(known.counts.get(&name).unwrap_or(&nothing), count)?,
                None => most(count)?,
            };
            counted.insert(name, counts);
            progress.inc(1);
        }
        testbed.clear()?;
    }
    progress.finish_and_clear();
    let Some(known) = known else {
        let baseline = Baseline { kernel, filesystem, counts: counted };
        let text = serde_json::to_string_pretty(&baseline).doing(|| "writing the counts")?;
        return fs::write(plan.baseline, text + "\n")
            .map(|()| GuardOutcome::Done)
            .doing(|| format!("option --baseline: {}", plan.baseline.display()));
    };
    let GuardReport { table, worse, left_out } = judge(&known.counts, &counted);
    print!("{table}");
    match (worse, left_out) {
        (0, 0) => Ok(GuardOutcome::Done),
        (0, _) => {
            Ok(GuardOutcome::NotCompared(format!("{left_out} counts of the file could not be made here")))
        }
        _ => Err(Failure::new(format!(
            "{worse} counts are larger than {} says; mend it, or run with --update and say why in the commit",
            plan.baseline.display()
        ))),
    }
}

/// Version and patch level of the kernel, as in `6.18`.
fn kernel() -> String {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    release.split(['.', '-']).take(2).collect::<Vec<_>>().join(".")
}

fn profile(kind: Kind) -> &'static str {
    kind.name().strip_prefix("vellum-").unwrap_or(kind.name())
}

fn read(path: &Path) -> Result<Baseline> {
    let bad = |why: String| {
        Failure::bad_input(format!("option --baseline {}: {why}; --update writes one", path.display()))
    };
    let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| bad(error.to_string()))
}

struct Counters {
    requests: Counter,
    calls: SyscallCounter,
}

impl Counters {
    /// One run for the requests, one for the system calls and one for the cache lines, each on a fresh mount: counting one
    /// disturbs the other.
    fn count(&self, task: &Task, subject: &Contender, testbed: &Testbed) -> Result<Counts> {
        let too_many = || Failure::new("the kernel could not keep all events");
        let requests = Mounts::during(subject, testbed, task, |mounts| {
            let mut client = mounts.client_unmeasured(testbed, task)?;
            let requests = self.requests.during(mounts.roots(), || client.run().map(drop))?;
            client.end()?;
            requests.ok_or_else(too_many)
        })?;
        let (calls, upper_kib) = Mounts::during(subject, testbed, task, |mounts| {
            let services = mounts.services();
            self.calls.watch(&services)?;
            let mut client = mounts.client_unmeasured(testbed, task)?;
            let calls = self.calls.during(&services, || client.run().map(drop))?;
            client.end()?;
            rustix::fs::sync();
            let bytes: u64 = mounts.uppers().iter().map(|upper| testbed::space(upper)).sum();
            Ok((calls.ok_or_else(too_many)?.service, bytes / 1024))
        })?;
        let operations = (task.operations)(testbed) as u64 * u64::from(task.passes);
        let lines = count_lines(task, subject, testbed);
        let (locked, shared_writes) = lines.map(|lines| (lines.locked, lines.client_writes)).unzip();
        Ok(Counts { operations, requests, calls, upper_kib, locked, shared_writes })
    }
}

/// Counts, and again while something is more than `before`; of each count the least is kept.
fn least(before: &Counts, mut count: impl FnMut() -> Result<Counts>) -> Result<Counts> {
    let mut least = count()?;
    for _ in 1..LOOKS {
        if least.increases(before).is_empty() {
            break;
        }
        least = least.min(&count()?);
    }
    Ok(least)
}

/// Counts several times; of each count the largest is kept.
fn most(mut count: impl FnMut() -> Result<Counts>) -> Result<Counts> {
    let mut most = count()?;
    for _ in 1..SAMPLES {
        most = most.max(&count()?);
    }
    Ok(most)
}

impl Counts {
    /// What is more than it was, and what that was.
    fn increases(&self, before: &Self) -> Vec<(String, u64, u64)> {
        let mut more = Vec::new();
        for (what, now, before) in
            [("", &self.requests, &before.requests), ("call ", &self.calls, &before.calls)]
        {
            for (kind, n) in now {
                let was = before.get(kind).copied().unwrap_or(0);
                let besides = BESIDES.iter().find(|(call, _)| !what.is_empty() && call == kind);
                let besides = besides.map_or(0, |(_, besides)| *besides);
                if n.saturating_sub(besides) > allowed(was, TOLERANCE) {
                    more.push((format!("{what}{kind}"), *n, was));
                }
            }
        }
        let blocks = if before.upper_kib == 0 { 0 } else { SPACE_SLACK };
        if self.upper_kib > allowed(before.upper_kib, TOLERANCE) + blocks {
            more.push(("KiB".to_owned(), self.upper_kib, before.upper_kib));
        }
        for (what, now, before, part) in [
            ("locked instructions", self.locked, before.locked, LOCKED_TOLERANCE),
            ("writes to shared lines", self.shared_writes, before.shared_writes, SHARED_TOLERANCE),
        ] {
            let (now, was) = (now.unwrap_or(0), before.unwrap_or(0));
            if now > allowed(was, part) {
                more.push((what.to_owned(), now, was));
            }
        }
        more
    }

    /// What was counted before and is not any more.
    fn missing(&self, before: &Self) -> impl Iterator<Item = &'static str> {
        [
            ("locked instructions", self.locked.is_none() && before.locked.is_some()),
            ("writes to shared lines", self.shared_writes.is_none() && before.shared_writes.is_some()),
        ]
        .into_iter()
        .filter_map(|(what, left_out)| left_out.then_some(what))
    }

    /// The smaller one of each count; what one of them does not have is none.
    fn min(&self, other: &Self) -> Self {
        let both = |one: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
            one.iter().filter_map(|(kind, n)| Some((kind.clone(), *n.min(other.get(kind)?)))).collect()
        };
        Self {
            operations: self.operations,
            requests: both(&self.requests, &other.requests),
            calls: both(&self.calls, &other.calls),
            upper_kib: self.upper_kib.min(other.upper_kib),
            locked: self.locked.min(other.locked),
            shared_writes: self.shared_writes.min(other.shared_writes),
        }
    }

    /// The larger one of each count.
    fn max(&self, other: &Self) -> Self {
        let both = |one: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
            let mut most = one.clone();
            for (kind, n) in other {
                let most = most.entry(kind.clone()).or_default();
                *most = (*most).max(*n);
            }
            most
        };
        Self {
            operations: self.operations,
            requests: both(&self.requests, &other.requests),
            calls: both(&self.calls, &other.calls),
            upper_kib: self.upper_kib.max(other.upper_kib),
            locked: self.locked.max(other.locked),
            shared_writes: self.shared_writes.max(other.shared_writes),
        }
    }
}

/// What a comparison says.
struct GuardReport {
    /// A line for each task, and below it what has become more or less, and what was not compared.
    table: String,
    /// How many counts have become more.
    worse: usize,
    /// How many were not compared.
    left_out: usize,
}

fn judge(known: &TaskCounts, counted: &TaskCounts) -> GuardReport {
    let (mut text, mut worse, mut left_out) = (String::new(), 0, 0);
    let _ = writeln!(
        text,
        "{:<32}{:>20}{:>22}{:>20}{:>16}{:>16}",
        "", "requests (were)", "system calls (were)", "KiB (were)", "locked/op", "shared/op"
    );
    let nothing = Counts::default();
    for (name, now) in counted {
        let before = known.get(name).unwrap_or(&nothing);
        let sum = |of: &BTreeMap<String, u64>| of.values().sum::<u64>();
        let pair = |now: u64, before: u64| format!("{now} ({before})");
        let each = |n: Option<u64>, was: Option<u64>| {
            let each = |n: u64, of: &Counts| n as f64 / of.operations.max(1) as f64;
            n.map(|n| format!("{:.1} ({:.1})", each(n, now), each(was.unwrap_or(0), before)))
                .unwrap_or_default()
        };
        let _ = writeln!(
            text,
            "{name:<32}{:>20}{:>22}{:>20}{:>16}{:>16}",
            pair(sum(&now.requests), sum(&before.requests)),
            pair(sum(&now.calls), sum(&before.calls)),
            pair(now.upper_kib, before.upper_kib),
            each(now.locked, before.locked),
            each(now.shared_writes, before.shared_writes)
        );
        for (what, now, was) in now.increases(before) {
            worse += 1;
            let _ = writeln!(text, "    MORE: {what}: {now}, was {was}");
        }
        for (what, was, now) in before.increases(now) {
            let _ = writeln!(text, "    less: {what}: {now}, was {was}");
        }
        for what in now.missing(before) {
            left_out += 1;
            let _ = writeln!(text, "    NOT COMPARED: {what}");
        }
    }
    GuardReport { table: text, worse, left_out }
}

/// The largest that a count may be that was `before`.
fn allowed(before: u64, part: f64) -> u64 {
    (before as f64).mul_add(1.0 + part, 0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(lookups: u64, preads: u64, upper_kib: u64) -> TaskCounts {
        let of = |name: &str, n| BTreeMap::from([(name.to_owned(), n)]);
        let counts = Counts {
            operations: 100,
            requests: of("LOOKUP", lookups),
            calls: of("pread64", preads),
            upper_kib,
            ..Counts::default()
        };
        TaskCounts::from([("grep[cached]".to_owned(), counts)])
    }

    fn worse(known: &TaskCounts, counted: &TaskCounts) -> usize {
        judge(known, counted).worse
    }

    #[test]
    fn more_is_a_regression_and_less_is_not() {
        let known = counts(200, 200, 1000);
        assert_eq!(worse(&known, &counts(200, 200, 1000)), 0);
        assert_eq!(worse(&known, &counts(204, 200, 1024)), 0);
        assert_eq!(worse(&known, &counts(205, 200, 1000)), 1);
        assert_eq!(worse(&known, &counts(200, 252, 1000)), 0);
        assert_eq!(worse(&known, &counts(205, 253, 1025)), 3);
        let GuardReport { table, worse, .. } = judge(&known, &counts(0, 0, 0));
        assert_eq!(worse, 0);
        assert!(table.contains("less: LOOKUP: 0, was 200"));
    }

    #[test]
    fn small_counts_are_exact_and_none_stays_none() {
        for was in [0, 1, 7, 49] {
            assert_eq!(worse(&counts(was, 0, 0), &counts(was, 0, 0)), 0);
            assert_eq!(worse(&counts(was, 0, 0), &counts(was + 1, 0, 0)), 1, "{was}");
        }
        assert_eq!(worse(&counts(0, 0, 0), &counts(0, 0, 4)), 1);
    }

    #[test]
    fn only_a_repeated_increase_is_a_regression() {
        let known = counts(200, 200, 1000);
        let nth = |number: usize, all: &[(u64, u64)]| {
            all.get(number).map(|(lookups, preads)| counts(*lookups, *preads, 1000)).unwrap()
        };
        let name = "grep[cached]";
        for (all, looks, expected) in [
            (vec![(200, 200)], 1, 0),
            (vec![(400, 200), (200, 400)], 2, 0),
            (vec![(400, 400), (400, 200), (400, 200)], 3, 1),
        ] {
            let mut done = 0;
            let least = least(known.get(name).unwrap(), || {
                done += 1;
                Ok(nth(done - 1, &all).remove(name).unwrap())
            });
            assert_eq!(done, looks);
            assert_eq!(worse(&known, &TaskCounts::from([(name.to_owned(), least.unwrap())])), expected);
        }
        let mut done = 0;
        let most = most(|| {
            done += 1;
            Ok(counts(done, 10 - done, 7).remove(name).unwrap())
        });
        assert_eq!(done, SAMPLES as u64);
        assert_eq!(TaskCounts::from([(name.to_owned(), most.unwrap())]), counts(5, 9, 7));
    }

    #[test]
    fn writes_to_shared_lines_are_judged_by_operation_and_printed_so() {
        let of = |locked: u64, shared: u64| {
            let mut counted = counts(200, 200, 1000);
            for counts in counted.values_mut() {
                (counts.locked, counts.shared_writes) = (Some(locked), Some(shared));
            }
            counted
        };
        let known = of(1000, 100);
        assert_eq!(worse(&known, &of(1100, 125)), 0);
        assert_eq!(worse(&known, &of(1101, 125)), 1);
        assert_eq!(worse(&known, &of(1100, 126)), 1);
        let GuardReport { table, worse, .. } = judge(&of(1000, 0), &of(1000, 1));
        assert_eq!(worse, 1);
        assert!(table.contains("10.0 (10.0)") && table.contains("0.0 (0.0)"), "{table}");
        assert!(table.contains("MORE: writes to shared lines: 1, was 0"), "{table}");
        // A processor whose instructions are not stepped: that is said.
        let GuardReport { table, worse, left_out } = judge(&known, &counts(200, 200, 1000));
        assert_eq!((worse, left_out), (0, 2));
        assert!(table.contains("NOT COMPARED: locked instructions"), "{table}");
    }

    #[test]
    fn counts_without_a_reference_are_regressions() {
        assert_eq!(worse(&TaskCounts::new(), &counts(200, 200, 1000)), 3);
    }

    #[test]
    fn every_task_that_is_guarded_exists() {
        for name in TASKS {
            assert!(tasks::named(name).is_some(), "{name}");
        }
    }
}
