//! All mounts of Vellum that this process can see, asked what they have done.

use crate::query::{self, read};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use vellum_pool::{Pool, PoolName, Store};
use vellum_service::Failure;
use vellum_service::instance::STATS;
use vellum_service::instance::stats::InstanceStats;
use vellum_service::mounts::mountpoint::{FS_TYPE, Mount, mounts};

/// How long all services together may take to answer; one that hangs must not hang who looks at the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// Which mounts.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only those of this pool.
    pub pool: Option<PoolName>,
    /// Only these; none: all.
    pub mountpoints: Vec<PathBuf>,
}

/// A mount and what it has done.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The pool that its service is in.
    pub pool: Option<PoolName>,
    /// What it says.
    pub stats: InstanceStats,
    /// Memory of the service in bytes, where it can be seen.
    pub resident: Option<u64>,
    /// Requests that the kernel has and nobody has answered, where it says so.
    pub waiting: Option<u64>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Those that have answered, in the order of their mount points.
    pub all: Vec<Answer>,
    /// Those that have not in time.
    pub silent: Vec<PathBuf>,
    /// Those whose service has ended.
    pub ended: Vec<PathBuf>,
}

/// Asks. A mount of another user, which does not answer, is left out unless it was named.
pub fn ask_all(choice: &Choice) -> Result<Answers, Failure> {
    let pools = pools()?;
    if let Some(name) = &choice.pool
        && !Store::of_user()?.names()?.contains(name)
    {
        return Err(Failure::input(format!("pool {name}: there is none; vellum pool list shows them")));
    }
    let table = mounts("self");
    let points = match choice.mountpoints.as_slice() {
        [] => mount_points(&table),
        named => named.to_vec(),
    };
    let (to_us, from_them) = mpsc::channel();
    for point in &points {
        let (point, to_us) = (point.clone(), to_us.clone());
        // One each: it may hang in the kernel, and then it ends with this process.
        std::thread::spawn(move || {
            let answer = query::answer(&point, STATS);
            let _ = to_us.send((point, answer));
        });
    }
    drop(to_us);
    let mut answers = BTreeMap::new();
    let end = std::time::Instant::now() + PATIENCE;
    while answers.len() < points.len() {
        let left = end.saturating_duration_since(std::time::Instant::now());
        match from_them.recv_timeout(left) {
            Ok((point, answer)) => answers.insert(point, answer),
            Err(_) => break,
        };
    }
    let mut found = Answers::default();
    for point in points {
        match answers.remove(&point) {
            None => found.silent.push(point),
            Some(Err(Errno::NOTCONN)) if choice.mountpoints.is_empty() => found.ended.push(point),
            Some(Err(e)) if !choice.mountpoints.is_empty() => return Err(query::refused(&point, e)),
            Some(Err(_)) => {}
            Some(Ok(answer)) => {
                let stats: InstanceStats = match read(&answer) {
                    Err(failure) if !choice.mountpoints.is_empty() => return Err(failure),
                    Err(_) => continue,
                    Ok(stats) => stats,
                };
                let pool = pools.get(&stats.pid).cloned();
                if choice.pool.is_none() || choice.pool == pool {
                    let resident = resident(stats.pid);
                    let waiting = waiting(&table, &point);
                    found.all.push(Answer { pool, stats, resident, waiting });
                }
            }
        }
    }
    Ok(found)
}

/// Where Vellum is mounted, each place once.
fn mount_points(table: &[Mount]) -> Vec<PathBuf> {
    let mut points: Vec<PathBuf> = Vec::new();
    let mut devices = Vec::new();
    for mount in table.iter().filter(|mount| mount.fs_type == FS_TYPE) {
        // A filesystem bound to a second place has no more to say there.
        if !devices.contains(&&mount.device) {
            devices.push(&mount.device);
            points.push(mount.point.clone());
        }
    }
    points.sort();
    points
}

/// The pool of each process that is in one.
fn pools() -> Result<BTreeMap<u32, PoolName>, Failure> {
    let mut of = BTreeMap::new();
    for pool in Pool::all()? {
        of.extend(pool.processes().into_iter().map(|process| (process, pool.name().clone())));
    }
    Ok(of)
}

/// The length of the kernel's queue for the mount at `point`, which `fusectl` tells if it is mounted.
fn waiting(table: &[Mount], point: &Path) -> Option<u64> {
    let mount = table.iter().rfind(|mount| mount.point == point)?;
    let number = mount.device.strip_prefix("0:")?;
    let text = std::fs::read_to_string(format!("/sys/fs/fuse/connections/{number}/waiting")).ok()?;
    text.trim().parse().ok()
}

fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}
