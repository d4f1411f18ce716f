//! Single requests taken apart: how long, how many requests to the service, how many context switches.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::requests::Counter;
use crate::resource_meter::Meter;
use crate::service::Service;
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// No more threads than this.
const THREADS_MAX: usize = 64;
/// No more operations than this: their requests have to fit into the kernel's trace buffer.
const OPERATIONS_MAX: usize = 100_000;
/// How many operations go by between looks at the stop flag.
const CHECK_EVERY: usize = 256;

/// What to do.
#[derive(Clone, Debug)]
pub struct RoundTrip {
    /// A directory on the mount.
    pub dir: PathBuf,
    /// Operations of each kind, over all threads.
    pub operations: usize,
    /// Threads of the parallel measurements.
    pub threads: usize,
}

/// What one kind of operation took.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub operation: &'static str,
    /// Threads that did it at once.
    pub threads: usize,
    /// Wall-clock time per operation, in microseconds.
    pub microseconds: f64,
    /// Requests per operation, where they can be counted.
    pub requests: Option<f64>,
    /// Requests per operation, by kind.
    pub requests_by_kind: BTreeMap<String, f64>,
    /// Context switches per operation in the client.
    pub client_switches: f64,
    /// Context switches per operation in the service.
    pub service_switches: Option<f64>,
    /// Processor time per operation of the client, in microseconds.
    pub client_cpu_microseconds: f64,
    /// Processor time per operation of the service, in microseconds.
    pub service_cpu_microseconds: Option<f64>,
}

/// One operation: in the directory, by the thread of this number, the n-th of it.
type Operation = fn(&OwnedFd, usize, usize) -> Result<()>;

const OPERATIONS: &[(&str, Operation)] = &[
    ("create+unlink", create_unlink),
    ("stat of a name that is not there", stat_missing),
    ("getxattr", get_xattr),
];

fn create_unlink(dir: &OwnedFd, thread: usize, number: usize) -> Result<()> {
    let name = format!("file-{thread}-{}", number % 8);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    drop(openat(dir, &name, flags, Mode::from_raw_mode(0o644)).doing(|| "creating a file")?);
    unlinkat(dir, &name, AtFlags::empty()).doing(|| "removing a file")
}

fn stat_missing(dir: &OwnedFd, thread: usize, number: usize) -> Result<()> {
    // Each name is new to the kernel, which remembers names that are not there.
    match statat(dir, format!("missing-{thread}-{number}"), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error).doing(|| "stat"),
        Ok(_) => Err(Failure::new("stat: a name is there that nobody made")),
    }
}

fn get_xattr(dir: &OwnedFd, _: usize, _: usize) -> Result<()> {
    let mut value = [0_u8; 64];
    match rustix::fs::fgetxattr(dir, "user.vellum-bench", &mut value) {
        Ok(_) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(error).doing(|| "getxattr"),
    }
}

/// Measures everything with one thread, then with several.
pub fn run(plan: &RoundTrip) -> Result<Vec<Row>> {
    check(plan)?;
    let mount = mount_of(&plan.dir)?;
    let service = Service::behind_mount(&mount);
    let work = plan.dir.join(format!(".vellum-bench-{}", std::process::id()));
    std::fs::create_dir(&work).doing(|| format!("making {}", work.display()))?;
    let scratch = std::env::temp_dir().join(format!("vellum-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).doing(|| "making a scratch directory")?;
    let counter = service
        .is_some()
        .then(|| Counter::new(&scratch))
        .and_then(|made| made.map_err(|failure| eprintln!("requests are not counted: {failure}")).ok());
    let rows = measure_all(plan, &work, service, counter.as_ref());
    drop(counter);
    let _ = std::fs::remove_dir_all(&scratch);
    let _ = std::fs::remove_dir_all(&work);
    rows
}

fn check(plan: &RoundTrip) -> Result<()> {
    if !(1..=OPERATIONS_MAX).contains(&plan.operations) {
        return Err(Failure::bad_input(format!(
            "option --operations {}: give a number from 1 to {OPERATIONS_MAX}",
            plan.operations
        )));
    }
    if !(1..=THREADS_MAX).contains(&plan.threads) {
        return Err(Failure::bad_input(format!(
            "option --threads {}: give a number from 1 to {THREADS_MAX}",
            plan.threads
        )));
    }
    if !plan.dir.is_dir() {
        return Err(Failure::bad_input(format!(
            "{}: not a directory; give a directory on the mount to measure",
            plan.dir.display()
        )));
    }
    Ok(())
}

/// The mount point above `dir`.
fn mount_of(dir: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let dir = std::fs::canonicalize(dir).doing(|| dir.display().to_string())?;
    let dev = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let own = dev(&dir);
    let above = dir.ancestors().take_while(|path| dev(path) == own).last();
    Ok(above.unwrap_or(&dir).to_owned())
}

fn measure_all(
    plan: &RoundTrip,
    work: &Path,
    service: Option<Service>,
    counter: Option<&Counter>,
) -> Result<Vec<Row>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(rustix::fs::CWD, work, flags, Mode::empty()).doing(|| "opening a directory")?;
    let mut threads = vec![1];
    if plan.threads > 1 {
        threads.push(plan.threads);
    }
    let mut rows = Vec::new();
    // Numbers make names that the kernel has not seen yet, so that it has to ask.
    let mut next = 0;
    for threads in threads {
        for (name, operation) in OPERATIONS {
            let each = (plan.operations / threads).max(1);
            let total = (each * threads) as f64;
            let mut pass = |count: usize| {
                let from = next;
                next += count;
                repeat(&dir, *operation, threads, from, count)
            };
            pass((each / 10).max(1))?;
            let meter = Meter::start(service.as_slice())?;
            pass(each)?;
            let sample = meter.end(1)?;
            let counted = counter.map(|counter| counter.during(&[work], || pass(each)));
            let counted = counted.transpose()?.flatten();
            let requests_by_kind: BTreeMap<String, f64> =
                counted.iter().flatten().map(|(kind, n)| (kind.clone(), *n as f64 / total)).collect();
            rows.push(Row {
                operation: name,
                threads,
                microseconds: sample.seconds * 1e6 / total,
                requests: counted.is_some().then(|| requests_by_kind.values().sum()),
                requests_by_kind,
                client_switches: sample.client_switches / total,
                service_switches: sample.service_switches.map(|n| n / total),
                client_cpu_microseconds: sample.client_cpu_seconds * 1e6 / total,
                service_cpu_microseconds: sample.service_cpu_seconds.map(|s| s * 1e6 / total),
            });
        }
    }
    Ok(rows)
}

/// Does `operation` in `threads` threads, each with the numbers from `from` on.
fn repeat(dir: &OwnedFd, operation: Operation, threads: usize, from: usize, count: usize) -> Result<()> {
    let one = |thread: usize| {
        for number in from..from + count {
            operation(dir, thread, number)?;
            if number % CHECK_EVERY == 0 {
                interrupt::check()?;
            }
        }
        Ok(())
    };
    if threads == 1 {
        return one(0);
    }
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        started
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked"))))
    })
}

/// The results for people.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<34}{:>8}{:>9}{:>8}{:>12}{:>12}{:>12}{:>12}\n",
        "per operation", "threads", "us", "req", "sw client", "sw service", "cpu client", "cpu service"
    );
    let maybe = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    for row in rows {
        let _ = writeln!(
            text,
            "{:<34}{:>8}{:>9.2}{:>8}{:>12.2}{:>12}{:>12.2}{:>12}",
            row.operation,
            row.threads,
            row.microseconds,
            maybe(row.requests),
            row.client_switches,
            maybe(row.service_switches),
            row.client_cpu_microseconds,
            maybe(row.service_cpu_microseconds)
        );
        let kinds: Vec<String> =
            row.requests_by_kind.iter().map(|(kind, n)| format!("{n:.2} {kind}")).collect();
        if !kinds.is_empty() {
            let _ = writeln!(text, "    {}", kinds.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_can_be_measured_and_is_left_clean() {
        let dir = std::env::temp_dir().join(format!("vellum-roundtrip-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let rows = run(&RoundTrip { dir: dir.clone(), operations: 100, threads: 2 }).unwrap();
        assert_eq!(rows.len(), 2 * OPERATIONS.len());
        assert!(rows.iter().all(|row| row.microseconds > 0.0));
        assert!(table(&rows).contains("create+unlink"));
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn bad_numbers_are_named() {
        for (operations, threads) in [(0, 1), (1, 0), (1, 1000)] {
            let plan = RoundTrip { dir: "/".into(), operations, threads };
            assert!(run(&plan).unwrap_err().bad_input);
        }
    }
}
