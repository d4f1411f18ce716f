//! The process behind a FUSE mount, as /proc shows it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often to look whether a process is gone.
const LOOK: Duration = Duration::from_millis(2);

/// A process that serves a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub pid: u32,
}

/// What a service has used so far. Threads that have ended are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceUse {
    pub threads: Vec<u32>,
    /// Switches to another thread, voluntary or not.
    pub switches: u64,
    /// Time on a processor.
    pub cpu: Duration,
    /// Time on a processor in ticks of the kernel's clock, in which threads that have ended are, too.
    pub whole_cpu: Duration,
    /// Page faults, with and without reading from a device; those of threads that have ended are in it.
    pub faults: u64,
}

impl ServiceUse {
    /// Whether threads that were there have ended, with what they had used.
    #[must_use]
    pub fn lacks_any_of(&self, before: &Self) -> bool {
        before.threads.iter().any(|thread| !self.threads.contains(thread))
    }
}

impl Service {
    /// The process that serves the FUSE filesystem mounted on `mountpoint`: it has the mount point among its
    /// arguments, or else it holds the device of that connection. (Arguments first: a process can hold on to a dead
    /// connection whose number has been given out again.)
    #[must_use]
    pub fn of_mountpoint(mountpoint: &Path) -> Option<Self> {
        let dev = fs::metadata(mountpoint).ok()?.dev();
        // FUSE's connections are numbered by the devices of their mounts, whose major number is 0.
        Self::named(mountpoint).or_else(|| Self::holding(rustix::fs::minor(dev)))
    }

    /// The process that holds `/dev/fuse` for this connection.
    fn holding(connection: u32) -> Option<Self> {
        let wanted = format!("fuse_connection:\t{connection}");
        // The supervisor of a pool's service holds what that holds, but has one thread.
        others().filter(|service| service.threads().len() > 1).find(|service| {
            let Ok(entries) = fs::read_dir(format!("/proc/{}/fdinfo", service.pid)) else { return false };
            entries.flatten().any(|entry| {
                fs::read_to_string(entry.path())
                    .is_ok_and(|text| text.lines().any(|line| line.trim_end() == wanted))
            })
        })
    }

    /// The process among whose arguments `mountpoint` is; of several the one with threads, for a supervisor and its heir have one each.
    fn named(mountpoint: &Path) -> Option<Self> {
        let wanted = mountpoint.as_os_str().as_encoded_bytes();
        let named = |service: &Self| {
            let line = fs::read(format!("/proc/{}/cmdline", service.pid)).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|arg| arg == wanted)
        };
        others().filter(named).max_by_key(|service| service.threads().len())
    }

    /// The ids of its threads.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return Vec::new() };
        tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
    }

    /// What it has used.
    #[must_use]
    pub fn usage(&self) -> ServiceUse {
        let mut sum = ServiceUse::default();
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return sum };
        for task in tasks.flatten() {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            sum.switches += field(&status, "voluntary_ctxt_switches:").unwrap_or(0)
                + field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
            let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            sum.threads.extend(task.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
            let nanoseconds = schedstat.split_whitespace().next().and_then(|word| word.parse().ok());
            sum.cpu += Duration::from_nanos(nanoseconds.unwrap_or(0));
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        sum.faults = sum_of(&stat, [10, 12]);
        let ticks = sum_of(&stat, [14, 15]) as f64;
        sum.whole_cpu = Duration::from_secs_f64(ticks / rustix::param::clock_ticks_per_second() as f64);
        sum
    }

    /// Its resident memory in bytes; None when it is gone.
    #[must_use]
    pub fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        field(&status, "VmRSS:").map(|kib| kib * 1024)
    }

    /// Waits until it has ended; false when it has not within `patience`.
    #[must_use]
    pub fn wait_gone(&self, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            // A zombie whose parent does not wait is gone as well.
            if stat.is_empty() || stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')) {
                return true;
            }
            if start.elapsed() > patience {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// All processes but this one.
fn others() -> impl Iterator<Item = Service> {
    let own = std::process::id();
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(pid)
        .filter(move |pid| *pid != own)
        .map(|pid| Service { pid })
}

/// The sum of two fields of `/proc/PID/stat`, by their numbers in proc_pid_stat(5), counted from 1.
fn sum_of(stat: &str, numbers: [usize; 2]) -> u64 {
    // The name, in parentheses, may hold anything; what follows it begins with field 3.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    numbers.iter().filter_map(|number| fields.get(number - 3)?.parse::<u64>().ok()).sum()
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_found_by_its_arguments_and_its_end_is_noticed() {
        let mut child =
            Command::new("tail").args(["-f", "--", "/dev/null", "/proc/self/nowhere-here"]).spawn();
        let child = child.as_mut().unwrap();
        let start = Instant::now();
        let service = loop {
            if let Some(service) = Service::named(Path::new("/proc/self/nowhere-here")) {
                break service;
            }
            assert!(start.elapsed() < Duration::from_secs(5));
        };
        assert_eq!(service.pid, child.id());
        assert!(service.resident().unwrap() > 0);
        assert!(!service.wait_gone(Duration::ZERO));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(service.wait_gone(Duration::from_secs(5)));
    }

    #[test]
    fn page_faults_are_parsed_after_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 120 9 3 9 5 6";
        assert_eq!((sum_of(stat, [10, 12]), sum_of(stat, [14, 15]), sum_of("", [10, 12])), (123, 11, 0));
        let own = Service { pid: std::process::id() };
        assert!(own.usage().faults > 0);
    }

    #[test]
    fn threads_that_have_ended_are_missed() {
        let of = |threads: &[u32]| ServiceUse { threads: threads.to_vec(), ..ServiceUse::default() };
        assert!(of(&[1, 3]).lacks_any_of(&of(&[1, 2])) && !of(&[1, 2, 3]).lacks_any_of(&of(&[2, 1])));
    }

    #[test]
    fn fields() {
        assert_eq!(field("VmRSS:\t 12 kB\nx: 3\n", "VmRSS:"), Some(12));
        assert_eq!(field("a: 1", "b:"), None);
    }
}
