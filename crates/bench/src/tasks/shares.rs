//! Shares of the service's cache by weight, through mounts of one pool: the experiment of the weight-aware page cache, and what its
//! authors leave open (equal weights, a file of several, a container that is idle).
//!
//! As published, four containers of the weights 100, 200, 400 and 800 bring two units of data each into the cache, and then read one of
//! them. They bring them by reading them for the first time, not by writing, for the service's cache is of lower layers. It holds a third of what they
//! bring: in the source all of it would have fitted, but for what else the machine kept in memory.

use super::small::SMALL;
use super::sources::in_all_clones;
use super::task::{Cache, Env, Metric, Step, Task};
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::testbed::{Lower, SHARES_COMMON, Testbed};
use rustix::fs::{Advice, fadvise, lgetxattr};
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Containers.
const MOUNTS: usize = 4;
const MIB: usize = 1 << 20;
/// Longest answer of a service in bytes.
const ANSWER_MAX: usize = 65_536;
/// What a service is asked.
const STATS: &str = "vellum.stats";
/// So long a container reads nothing.
const ASLEEP: Duration = Duration::from_secs(11);
/// What it has left by then at most, as a part of its share: nine tenths are lent in ten seconds.
const LEFT: f64 = 0.15;
/// What counts as having its share again.
const BACK: f64 = 0.99;
/// Longest wait for that.
const BACK_MAX: Duration = Duration::from_secs(60);

const FOUR_WEIGHTS: &[u16] = &[100, 200, 400, 800];
const EQUAL_WEIGHTS: &[u16] = &[100; MOUNTS];

const SHARES: Task = Task {
    state: "fresh mounts in one pool; the lower files are in the page cache of their filesystem",
    lower: Lower::Shares,
    metric: Metric::Shares,
    library: false,
    clones: |_| MOUNTS,
    operations: |testbed| MOUNTS * testbed.share_unit_mib(),
    ..SMALL
};

/// Its cache, where each has a part of it by `ideal`.
const fn cache(weights: &'static [u16], ideal: &'static [u16]) -> Option<Cache> {
    Some(Cache { bytes: third, weights, ideal })
}

const fn of(name: &'static str, title: &'static str, cache: Option<Cache>, prepare: Step, run: Step) -> Task {
    Task { name, title, cache, prepare, run, ..SHARES }
}

pub(crate) const FOUR: Task = of(
    "s3-shares-four",
    "mounts of weights 100, 200, 400, 800 have brought 2 units each (of 64 MiB), and read 1 again",
    cache(FOUR_WEIGHTS, FOUR_WEIGHTS),
    fill_cache,
    read_again,
);
pub(crate) const EQUAL: Task = of(
    "s3-shares-equal",
    "the same with equal weights",
    cache(EQUAL_WEIGHTS, EQUAL_WEIGHTS),
    fill_cache,
    read_again,
);
pub(crate) const ONE_FILE: Task = of(
    "s3-shares-one-file",
    "mounts of weights 100, 200, 400, 800 read one file, which all pay for in equal parts",
    cache(FOUR_WEIGHTS, EQUAL_WEIGHTS),
    warm_lower,
    |env| in_all_clones(env.roots, |root| read(&root.join(SHARES_COMMON), usize::MAX)),
);
/// Judged by how long it takes.
const fn timed(task: Task) -> Task {
    Task { metric: Metric::Time, ..task }
}

pub(crate) const IDLE: Task = timed(of(
    "s3-idle",
    "a mount that has read nothing for 11 s, while 3 others read, has its share again",
    cache(EQUAL_WEIGHTS, EQUAL_WEIGHTS),
    lend,
    reclaim_share,
));
pub(crate) const THROUGHPUT_EQUAL: Task = timed(of(
    "s3-throughput-equal",
    "mounts of equal weights bring 2 units each (of 64 MiB), and read 1 again",
    cache(EQUAL_WEIGHTS, EQUAL_WEIGHTS),
    warm_lower,
    fill_and_read_cache,
));
pub(crate) const THROUGHPUT_FOUR: Task = timed(of(
    "s3-throughput-four",
    "the same with weights 100, 200, 400, 800",
    cache(FOUR_WEIGHTS, FOUR_WEIGHTS),
    warm_lower,
    fill_and_read_cache,
));

/// Without a bar: weights hold where the storage is what is short, as a cluster is (`--ceph`), and not on a disk that is in memory.
pub(crate) const MISSES: Task = Task {
    metric: Metric::Misses,
    operations: |_| 1,
    ..of(
        "s3-misses-four",
        "mounts of weights 100, 200, 400, 800 fetch what is not cached, at random, 16 threads each for 5 s",
        Some(Cache { bytes: |_| NARROW, weights: FOUR_WEIGHTS, ideal: FOUR_WEIGHTS }),
        warm_lower,
        read_random_misses,
    )
};

/// A cache in which next to nothing is found of what is read at random.
const NARROW: u64 = 4 << 20;
/// Threads that miss in each mount: twice as many as a storage is given fetches at a time.
const MISSING: usize = 16;
/// How long they do.
const MISS_FOR: Duration = Duration::from_secs(5);
/// What is fetched at a time.
const BLOCK: u64 = 64 << 10;

/// A third of what all bring.
fn third(testbed: &Testbed) -> u64 {
    (MOUNTS * 2 * testbed.share_unit_mib() * MIB / 3) as u64
}

/// The file that a mount alone reads.
fn own_file(roots: &[PathBuf], root: &Path) -> PathBuf {
    let number = roots.iter().position(|other| other == root).unwrap_or_default();
    root.join(number.to_string())
}

/// Reads at most so many bytes from the beginning of a file, whatever the kernel has of it for this mount.
fn read(path: &Path, most: usize) -> Result<()> {
    let mut file = File::open(path).doing(|| "opening a lower file")?;
    fadvise(&file, 0, None, Advice::DontNeed).doing(|| "forgetting pages")?;
    let mut piece = vec![0; MIB];
    let mut all = 0;
    while all < most {
        interrupt::check()?;
        match file.read(&mut piece).doing(|| "reading a lower file")? {
            0 => break,
            more => all += more,
        }
    }
    Ok(())
}

/// The layer's files come into the page cache of their filesystem.
fn warm_lower(env: &Env<'_>) -> Result<()> {
    let lower = env.testbed.lower(Lower::Shares)?;
    let own = (0..MOUNTS).map(|number| number.to_string());
    own.chain([SHARES_COMMON.to_owned()]).try_for_each(|name| read_as_it_is(&lower.join(name)))
}

fn read_as_it_is(path: &Path) -> Result<()> {
    let mut file = File::open(path).doing(|| "opening a lower file")?;
    std::io::copy(&mut file, &mut std::io::sink()).doing(|| "reading a lower file").map(drop)
}

/// All bring what they have, at once.
fn fill_cache(env: &Env<'_>) -> Result<()> {
    warm_lower(env)?;
    read_own(env.roots, usize::MAX)
}

/// All read so many bytes of their own files, at once.
fn read_own(roots: &[PathBuf], most: usize) -> Result<()> {
    in_all_clones(roots, |root| read(&own_file(roots, root), most))
}

/// All read the first half of it, at once.
fn read_again(env: &Env<'_>) -> Result<()> {
    read_own(env.roots, env.testbed.share_unit_mib() * MIB)
}

fn fill_and_read_cache(env: &Env<'_>) -> Result<()> {
    read_own(env.roots, usize::MAX)?;
    read_again(env)
}

/// All read blocks of their own files at random, each with several threads, for some seconds.
fn read_random_misses(env: &Env<'_>) -> Result<()> {
    let end = Instant::now() + MISS_FOR;
    in_all_clones(env.roots, |root| {
        let path = own_file(env.roots, root);
        std::thread::scope(|scope| {
            let path = &path;
            let spawn = |seed| scope.spawn(move || miss_until(path, seed, end));
            let threads: Vec<_> = (1..=MISSING as u64).map(spawn).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(Failure::new("a thread has panicked")))
            })
        })
    })
}

fn miss_until(path: &Path, seed: u64, end: Instant) -> Result<()> {
    let file = File::open(path).doing(|| "opening a lower file")?;
    fadvise(&file, 0, None, Advice::Random).doing(|| "reading nothing ahead")?;
    let blocks = file.metadata().doing(|| "the size of a lower file")?.len() / BLOCK;
    let (mut number, mut block) = (seed, vec![0; BLOCK as usize]);
    while Instant::now() < end {
        interrupt::check()?;
        // Knuth's MMIX generator; its upper bits are the good ones.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (number >> 33) % blocks.max(1) * BLOCK;
        file.read_exact_at(&mut block, at).doing(|| "reading a lower file")?;
        fadvise(&file, at, NonZeroU64::new(BLOCK), Advice::DontNeed).doing(|| "forgetting pages")?;
    }
    Ok(())
}

/// Does `what` on the first mount while the others read.
fn with_competing_readers<T>(env: &Env<'_>, what: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let roots = env.roots;
    let Some((first, others)) = roots.split_first() else {
        return Err(Failure::new("there is no mount"));
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let go_on = || {
            in_all_clones(others, |root| {
                while !ended.load(Relaxed) {
                    read(&own_file(roots, root), usize::MAX)?;
                }
                Ok(())
            })
        };
        let others = std::thread::Builder::new().spawn_scoped(scope, go_on).doing(|| "starting a thread")?;
        let done = what(first);
        ended.store(true, Relaxed);
        others.join().unwrap_or_else(|_| Err(Failure::new("a thread has panicked")))?;
        done
    })
}

/// The first mount sleeps until its share is lent.
fn lend(env: &Env<'_>) -> Result<()> {
    fill_cache(env)?;
    let share = third(env.testbed) as f64 / MOUNTS as f64;
    let left = with_competing_readers(env, |first| {
        let begin = Instant::now();
        while begin.elapsed() < ASLEEP {
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        cached_bytes(first)
    })?;
    if left as f64 > share * LEFT {
        return Err(Failure::new(format!(
            "of an idle mount's share of {share:.0} bytes {left} are not lent"
        )));
    }
    Ok(())
}

/// It wakes, and reads until it has its share again.
fn reclaim_share(env: &Env<'_>) -> Result<()> {
    let share = third(env.testbed) as f64 / MOUNTS as f64;
    with_competing_readers(env, |first| {
        let begin = Instant::now();
        let file = own_file(env.roots, first);
        let mut data = File::open(&file).doing(|| "opening a lower file")?;
        let mut piece = vec![0; MIB];
        while (cached_bytes(first)? as f64) < share * BACK {
            if begin.elapsed() > BACK_MAX {
                return Err(Failure::new(format!(
                    "an idle mount has {} bytes again, not {share:.0}",
                    cached_bytes(first)?
                )));
            }
            interrupt::check()?;
            if data.read(&mut piece).doing(|| "reading a lower file")? == 0 {
                data = File::open(&file).doing(|| "opening a lower file")?;
                fadvise(&data, 0, None, Advice::DontNeed).doing(|| "forgetting pages")?;
            }
        }
        Ok(())
    })
}

/// Cached bytes that a mount pays for.
fn cached_bytes(root: &Path) -> Result<u64> {
    counted(root, "bytes")
}

/// What the service says of a mount's part of its cache.
fn counted(root: &Path, what: &str) -> Result<u64> {
    let mut answer = vec![0; ANSWER_MAX];
    let len =
        lgetxattr(root, STATS, answer.as_mut_slice()).doing(|| "asking a service what it has cached")?;
    let stats: serde_json::Value =
        serde_json::from_slice(answer.get(..len).unwrap_or_default()).doing(|| "a service's answer")?;
    let count = stats.get("cache").and_then(|cache| cache.get(what)).and_then(serde_json::Value::as_u64);
    count.ok_or_else(|| Failure::new("a service says nothing of a cache"))
}

/// How far a mount's part of all that is cached, or was fetched, is off its ideal part at the most, as a part of that.
pub(crate) fn share_error(roots: &[PathBuf], ideal: &[u16], metric: Metric) -> Result<f64> {
    let what = if metric == Metric::Misses { "misses" } else { "bytes" };
    let held = roots.iter().map(|root| counted(root, what)).collect::<Result<Vec<u64>>>()?;
    Ok(largest_distance(&held, ideal))
}

fn largest_distance(held: &[u64], ideal: &[u16]) -> f64 {
    let (all, of): (u64, u64) = (held.iter().sum(), ideal.iter().map(|part| u64::from(*part)).sum());
    let part = |value: u64, of: u64| value as f64 / of.max(1) as f64;
    let distance = |(held, ideal): (&u64, &u16)| {
        let ideal = part(u64::from(*ideal), of);
        (part(*held, all) - ideal).abs() / ideal
    };
    held.iter().zip(ideal).map(distance).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_parts_of_the_ideal() {
        assert_eq!(largest_distance(&[10, 20, 40, 80], FOUR_WEIGHTS), 0.0);
        assert!((largest_distance(&[90, 110], &[1, 1]) - 0.1).abs() < 1e-9);
        assert!((largest_distance(&[12, 88], &[1, 9]) - 0.2).abs() < 1e-9);
        assert!(largest_distance(&[0, 0], &[1, 1]) >= 1.0);
    }
}
