//! A service that goes on with what its predecessor has cached: nothing of it is fetched again, and what has changed below is seen.

use super::{Contents, compare, figure, fill};
use crate::cases::pool::Pools;
use crate::harness::PATIENCE;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, wait_while};
use crate::harness::rng::{Rng, seed};
use crate::harness::{Cx, Layers, Mount};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// With `shared`, what has just changed is not cached.
const SETTLED: Duration = Duration::from_millis(2100);
/// How long services are killed, and more of them than how many: on a busy machine the next one takes its time.
const KILLED: Duration = Duration::from_secs(6);
const KILLS: u32 = 10;

/// Kills the service of a mount, and waits for the next one.
pub(in crate::cases) fn kill(mount: &Mount) -> Outcome {
    let service = mount.service()?;
    kill_process(service, Signal::KILL)?;
    wait_while!(mount.service().is_ok_and(|now| now == service), "no other service");
    Ok(())
}

/// Changes some bytes of a file, which keeps its size.
fn change(layers: &Layers, contents: &mut Contents, name: &str, with: &[u8]) -> Outcome {
    File::options().write(true).open(layers.lower().join(name))?.write_all_at(with, 100)?;
    let data = contents.get_mut(name).and_then(|data| data.get_mut(100..100 + with.len()));
    data.into_iter().for_each(|data| data.copy_from_slice(with));
    Ok(())
}

pub(super) fn warm(cx: &Cx) -> Outcome {
    for sharing in ["shared", "immutable"] {
        let layers = cx.layers(sharing, 1)?;
        let mut contents = fill(layers.lower())?;
        std::thread::sleep(SETTLED);
        let mount = cx.mount_with(&layers, &[&format!("cache={sharing}"), "cache_size=64M"])?;
        compare(&mount, &contents)?;
        let (misses, bytes) = (figure(&mount, "misses")?, figure(&mount, "bytes")?);
        ensure!(misses > 0, "{sharing}: nothing was fetched");
        // The next one, and the one after that, which has it from a successor.
        for round in 0..2 {
            kill(&mount)?;
            ensure_eq!(
                figure(&mount, "bytes")?,
                0,
                "{sharing}, round {round}: bytes that it pays for at first"
            );
            compare(&mount, &contents)?;
            ensure_eq!(
                figure(&mount, "misses")?,
                0,
                "{sharing}, round {round}: blocks that were fetched again"
            );
            ensure!(figure(&mount, "hits")? > 0, "{sharing}, round {round}: no hits");
            ensure_eq!(figure(&mount, "bytes")?, bytes, "{sharing}, round {round}: bytes that it pays for");
        }
        // Two files change below, one while nobody serves. What was cached of them is not found any more; all else is.
        change(&layers, &mut contents, "file5", b"changed")?;
        kill(&mount)?;
        change(&layers, &mut contents, "file7", b"changed, too")?;
        if sharing == "shared" {
            std::thread::sleep(SETTLED);
        }
        compare(&mount, &contents)?;
        let again = figure(&mount, "misses")?;
        ensure!((1..misses).contains(&again), "{sharing}: {again} of {misses} fetches after changes");
        kill(&mount)?;
        compare(&mount, &contents)?;
        ensure_eq!(figure(&mount, "misses")?, 0, "{sharing}: what had changed was not kept");
    }
    Ok(())
}

/// A pool whose service is replaced: both mounts have it, as nobody's at first, and no more than the cache may hold.
pub(super) fn warm_pool(cx: &Cx) -> Outcome {
    const CACHE: u64 = 8 << 20;
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let first = cx.layers("first", 1)?;
    let contents = fill(first.lower())?;
    let second = Layers { lowers: first.lowers.clone(), ..cx.layers("second", 1)? };
    let pool = format!("pool={}", pools.name());
    // The cache is as large as the largest of its mounts wants, whichever a successor sees first.
    let mount = |layers, size| pools.mount_with(layers, &[&pool, "cache=immutable", size]);
    let (mut small, large) = (mount(&first, "cache_size=1M")?, mount(&second, "cache_size=64M")?);
    compare(&large, &contents)?;
    pools.run("restart", &[])?;
    for mount in [&small, &large] {
        ensure_eq!(figure(mount, "bytes")?, 0, "bytes that a mount pays for at first");
        compare(mount, &contents)?;
        ensure_eq!(figure(mount, "misses")?, 0, "blocks that were fetched again");
    }
    drop(large);
    // What there is no room for goes.
    let third = cx.layers("third", 1)?;
    fs::write(third.lower().join("large"), vec![1; 2 * CACHE as usize])?;
    let third = mount(&third, "cache_size=8M")?;
    small.unmount()?;
    pools.run("restart", &[])?;
    let all = [("large".to_owned(), vec![1; 2 * CACHE as usize])];
    compare(&third, &all.into())?;
    let bytes = figure(&third, "bytes")?;
    ensure!(bytes <= CACHE, "{bytes} bytes where {CACHE} may be cached");
    Ok(())
}

/// A service is killed again and again while what is cached comes and goes: whatever is read is right.
pub(super) fn killed(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 1)?;
    let contents = fill(layers.lower())?;
    let mount = cx.mount_with(&layers, &["cache=immutable", "cache_size=4M"])?;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> Outcome {
                    while !ends.load(Relaxed) {
                        compare(&mount, &contents)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let (mut rng, begin, mut kills) = (Rng::new(seed()), Instant::now(), 0);
        let killed = (|| -> Outcome {
            while begin.elapsed() < KILLED || kills <= KILLS && begin.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(20 + rng.below(100)));
                kill(&mount)?;
                kills += 1;
            }
            Ok(())
        })();
        ends.store(true, Relaxed);
        for reader in readers {
            reader.join().unwrap_or_else(|_| crate::harness::outcome::fail("a reader"))?;
        }
        killed?;
        ensure!(kills > KILLS, "only {kills} services were killed");
        Ok(())
    })
}
