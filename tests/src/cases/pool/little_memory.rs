//! A pool with less memory than its service takes to begin.

use super::Pools;
use crate::cases::checkpoint::support::eventually;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, shell};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is tried.
const ROUNDS: usize = 10;
/// How long a service lives that has enough.
const LIFE: Duration = Duration::from_secs(5);

/// A service that has less memory than it takes to begin, however often another one does: its mounts end, and it is said why.
pub(super) fn too_little(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    let layers = cx.layers("l", 1)?;
    fs::write(layers.lower().join("file"), "below")?;
    pools.run("create", &["--memory", "16M"])?;
    let (mut mount, mut bytes) = (None, 512 << 10);
    // The kernel may choose the supervisor, and its standby, instead: then the mounts end, too, but nobody is left to say so.
    for round in 0..ROUNDS {
        drop(mount.take());
        let here = mount.insert(pools.mount(&layers, true)?);
        ensure_eq!(fs::read(here.path("file"))?, b"below", "the file");
        let Some(group) = memory_group(&pools.name)? else { return skip("no group limits memory here") };
        group.leave_only(bytes)?;
        if group.settles()? {
            bytes = bytes / 4 * 3;
            ensure!(round + 1 < ROUNDS, "it lives with {bytes} bytes");
            pools.run("set", &["--memory", "16M"])?;
            continue;
        }
        // Of what it knows the kernel may say something still.
        let looked = fs::symlink_metadata(here.path("never-seen"));
        ensure!(
            looked.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())),
            "what is seen of a mount that has ended: {looked:?}"
        );
        let log = fs::read_to_string(pools.log())?;
        if log.contains("times in a row because the memory")
            && log.contains("vellum pool set NAME --memory SIZE")
        {
            return Ok(());
        }
        ensure!(round + 1 < ROUNDS, "nobody has said why: {log}");
        // What the kernel sees of the pool is as it was.
        eventually("another service can be had", || {
            Ok(pools.attempt("set", &["--memory", "17M"])?.status.success()
                && pools.attempt("set", &["--memory", "16M"])?.status.success())
        })?;
    }
    Ok(())
}

/// The control group that limits a pool's memory.
struct MemoryGroup {
    dir: PathBuf,
    /// Names of what says its limit, and how much is used.
    limit: &'static str,
    used: &'static str,
}

fn memory_group(pool: &str) -> Outcome<Option<MemoryGroup>> {
    let find = format!("find /sys/fs/cgroup -ignore_readdir_race -maxdepth 4 -type d -name '{pool}'");
    let found = shell::run(&mut shell::bash(&find))?;
    let files = [("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")];
    let group = |dir: &Path, (limit, used): (&'static str, &'static str)| {
        dir.join(limit).exists().then(|| MemoryGroup { dir: dir.to_owned(), limit, used })
    };
    Ok(found.lines().flat_map(|dir| files.map(|names| group(Path::new(dir), names))).flatten().next())
}

impl MemoryGroup {
    fn processes(&self) -> Outcome<Vec<Pid>> {
        let numbers = fs::read_to_string(self.dir.join("cgroup.procs"))?;
        Ok(numbers.lines().filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect())
    }

    /// Has the next service find no more memory than so many bytes, and no swap space.
    fn leave_only(&self, bytes: u64) -> Outcome {
        for (name, none) in [("memory.swappiness", "0"), ("memory.swap.max", "0")] {
            let _ = fs::write(self.dir.join(name), none);
        }
        let named = |name: &str| -> Outcome<Pid> {
            let is = |process: &Pid| {
                let comm = fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero()));
                comm.is_ok_and(|comm| comm.trim() == name)
            };
            self.processes()?.into_iter().find(is).map_or_else(|| fail(format!("no {name} there")), Ok)
        };
        let (supervisor, service) = (named("vellum-keeper")?, named("vellum")?);
        // So that a limit can be set while nobody needs more than it.
        kill_process(supervisor, Signal::STOP)?;
        let set = (|| {
            kill_process(service, Signal::KILL)?;
            eventually("the service has gone", || Ok(self.service_is_gone(service)))?;
            eventually("a limit", || {
                let used: u64 = fs::read_to_string(self.dir.join(self.used))?.trim().parse().unwrap_or(0);
                // Pages of files make way: whoever runs a program first has it counted.
                let limit = used.saturating_sub(self.file_pages()?) + bytes;
                Ok(fs::write(self.dir.join(self.limit), limit.to_string()).is_ok())
            })
        })();
        kill_process(supervisor, Signal::CONT)?;
        set
    }

    /// Waits until no process is left, or the same ones live on: whether they do.
    fn settles(&self) -> Outcome<bool> {
        let (mut before, mut since) = (self.processes()?, Instant::now());
        while !before.is_empty() && since.elapsed() < LIFE {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.processes()?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        Ok(!before.is_empty())
    }

    fn file_pages(&self) -> Outcome<u64> {
        let parts = fs::read_to_string(self.dir.join("memory.stat"))?;
        let of = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            ["inactive_file", "active_file"].contains(&name).then(|| bytes.parse::<u64>().ok())?
        };
        Ok(parts.lines().filter_map(of).sum())
    }

    /// It has given its memory back; its number stays until its supervisor asks.
    fn service_is_gone(&self, service: Pid) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", service.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }
}
