//! Lower layers that are read through the service's cache: what is read is what is there, what the mount writes is not hidden by it, and
//! the mounts of a pool have one copy.

pub(super) mod handover;

use super::Case;
use super::monitoring::stats_of;
use super::pool::Pools;
use crate::harness::PATIENCE;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Layers, Mount};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::of(Profile::Cached, "cache/tree", 120, tree),
    Case::of(Profile::Cached, "cache/one-copy", 120, one_copy),
    Case::of(Profile::Cached, "cache/weights", 120, weights),
    Case::of(Profile::Cached, "cache/pool-limit", 60, pool_limit),
    Case::of(Profile::Cached, "cache/memory-limit", 180, memory_limit),
    Case::of(Profile::Cached, "cache/idle", 120, idle),
    Case::of(Profile::Cached, "cache/warm", 120, handover::warm),
    Case::of(Profile::Cached, "cache/warm-pool", 120, handover::warm_pool),
    Case::of(Profile::Cached, "cache/killed", 120, handover::killed),
];

const BLOCK: usize = 64 << 10;
const SIZES: [usize; 8] = [0, 1, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 3 << 20, 9 << 20];

type Contents = BTreeMap<String, Vec<u8>>;

/// Files of many sizes in a layer.
fn fill(layer: &Path) -> Outcome<Contents> {
    let mut contents = Contents::new();
    for (number, size) in SIZES.into_iter().enumerate() {
        let data: Vec<u8> = (0..size).map(|at| (at * 7 + at / BLOCK + number) as u8).collect();
        contents.insert(format!("file{number}"), data);
    }
    for (name, data) in &contents {
        fs::write(layer.join(name), data)?;
    }
    Ok(contents)
}

/// Reads all files, whatever the kernel has cached of them.
fn compare(mount: &Mount, contents: &Contents) -> Outcome {
    for (name, data) in contents {
        let mut file = File::open(mount.path(name)).doing(name)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut found = Vec::new();
        file.read_to_end(&mut found)?;
        ensure!(found == *data, "{name}: {} bytes are not the {} that were written", found.len(), data.len());
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut piece = [0; 100];
        let offset = data.len().saturating_sub(150);
        let count = file.read_at(&mut piece, offset as u64)?;
        ensure_eq!(piece.get(..count), data.get(offset..(offset + 100).min(data.len())), "the end of {name}");
    }
    Ok(())
}

fn figure(mount: &Mount, name: &str) -> Outcome<u64> {
    Ok(stats_of(mount)?["cache"][name].as_u64().unwrap_or_default())
}

fn tree(cx: &Cx) -> Outcome {
    for sharing in ["shared", "immutable"] {
        let layers = cx.layers(sharing, 1)?;
        let mut contents = fill(layers.lower())?;
        // With `shared`, what has just changed is not cached.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        let mount = cx.mount_with(&layers, &[&format!("cache={sharing}"), "cache_size=8M"])?;
        for _ in 0..2 {
            compare(&mount, &contents)?;
        }
        let (hits, misses, bytes) =
            (figure(&mount, "hits")?, figure(&mount, "misses")?, figure(&mount, "bytes")?);
        ensure!(hits > 0 && misses > 0, "{sharing}: {hits} hits, {misses} misses");
        ensure!(bytes > 0 && bytes <= 8 << 20, "{sharing}: {bytes} bytes are cached");
        // What the mount writes: into files, as new files over them, in place of removed ones, by other names.
        File::options().write(true).open(mount.path("file5"))?.write_all_at(b"rewritten", 10)?;
        contents.entry("file5".into()).and_modify(|data| data[10..19].copy_from_slice(b"rewritten"));
        File::options().write(true).open(mount.path("file7"))?.write_all_at(b"rewritten", 5 << 20)?;
        contents
            .entry("file7".into())
            .and_modify(|data| data[5 << 20..(5 << 20) + 9].copy_from_slice(b"rewritten"));
        fs::write(mount.path("new"), "new contents")?;
        fs::rename(mount.path("new"), mount.path("file4"))?;
        contents.insert("file4".into(), b"new contents".to_vec());
        fs::remove_file(mount.path("file3"))?;
        fs::write(mount.path("file3"), "again")?;
        contents.insert("file3".into(), b"again".to_vec());
        fs::rename(mount.path("file6"), mount.path("moved"))?;
        let moved = contents.remove("file6").unwrap_or_default();
        contents.insert("moved".into(), moved);
        compare(&mount, &contents)?;
        // And once more, by a service that has nothing of it.
        let mut mount = mount;
        mount.remount()?;
        compare(&mount, &contents)?;
    }
    Ok(())
}

fn one_copy(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let first = cx.layers("first", 1)?;
    let contents = fill(first.lower())?;
    let second = Layers { lowers: first.lowers.clone(), ..cx.layers("second", 1)? };
    let pool = format!("pool={}", pools.name());
    let options = [pool.as_str(), "cache=immutable", "cache_size=64M"];
    let (first, second) = (pools.mount_with(&first, &options)?, pools.mount_with(&second, &options)?);
    compare(&first, &contents)?;
    let all = figure(&first, "bytes")?;
    compare(&second, &contents)?;
    let (fetched, again) = (figure(&first, "misses")?, figure(&second, "misses")?);
    ensure!(fetched > 0, "nothing was fetched");
    ensure_eq!(again, 0, "blocks that the second mount has fetched, too");
    let (one, other) = (figure(&first, "bytes")?, figure(&second, "bytes")?);
    ensure_eq!(one + other, all, "bytes that both pay for together");
    ensure!(other >= all / 4, "the second pays for {other} bytes of {all}");
    Ok(())
}

/// Reads files of several mounts from front to back, a piece of each in turn, whatever the kernel has cached of them.
fn read_in_turn(mounts: &[&Mount]) -> Outcome {
    let open = |mount: &&Mount| -> Outcome<File> {
        let file = File::open(mount.path("large"))?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        Ok(file)
    };
    let files = mounts.iter().map(open).collect::<Outcome<Vec<File>>>()?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let mut all = 0;
        for mut file in &files {
            all += file.read(&mut piece)?;
        }
        if all == 0 {
            return Ok(());
        }
    }
}

/// Two mounts of a pool that read more than their cache holds have parts of it by weight: as asked for, by the pool's default, as
/// changed while they are used, and after another service has gone on.
fn weights(cx: &Cx) -> Outcome {
    const LARGE: usize = 24 << 20;
    const CACHE: u64 = 16 << 20;
    let pools = Pools::new(cx)?;
    pools.run("create", &["--mount-weight", "300"])?;
    let pool = format!("pool={}", pools.name());
    let mount = |name: &str, more: &[&str]| {
        let layers = cx.layers(name, 1)?;
        fs::write(layers.lower().join("large"), vec![name.len() as u8; LARGE])?;
        let options = [pool.as_str(), "cache=immutable", "cache_size=16M"];
        pools.mount_with(&layers, &[options.as_slice(), more].concat())
    };
    let (light, heavy) = (mount("light", &["weight=100"])?, mount("heavy", &[])?);
    let check = |light_part: u64| -> Outcome {
        read_in_turn(&[&light, &heavy])?;
        let (one, other) = (figure(&light, "bytes")?, figure(&heavy, "bytes")?);
        ensure!(
            one + other <= CACHE && one + other >= CACHE - (1 << 20),
            "{one} and {other} of {CACHE} are used"
        );
        let ideal = CACHE * light_part / 4;
        ensure!(one.abs_diff(ideal) <= 2 * BLOCK as u64, "the light one has {one} bytes, not {ideal}");
        Ok(())
    };
    ensure_eq!((figure(&light, "weight")?, figure(&heavy, "weight")?), (100, 300), "weights");
    check(1)?;
    pools.weigh(&light, "900")?;
    check(3)?;
    pools.run("restart", &[])?;
    ensure_eq!((figure(&light, "weight")?, figure(&heavy, "weight")?), (900, 300), "a successor's weights");
    check(3)?;
    for bad in ["0", "10001", "much"] {
        ensure!(pools.weigh(&light, bad).is_err(), "weight {bad} was taken");
    }
    let without = pools.mount_with(&cx.layers("without", 1)?, &[&pool, "weight=7"])?;
    ensure!(pools.weigh(&without, "8").is_err(), "a mount without a cache has a weight");
    Ok(())
}

/// A pool's cache holds no more than the pool says, whatever its mounts ask for; one that asks for less gets that.
fn pool_limit(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &["--cache", "2M"])?;
    ensure_eq!(pools.show()?["cache"], serde_json::json!("2M"), "what the pool says");
    let layers = cx.layers("l", 1)?;
    let contents = fill(layers.lower())?;
    let pool = format!("pool={}", pools.name());
    for (options, most) in
        [(vec!["cache_size=1M"], 1 << 20), (vec![], 2 << 20), (vec!["cache_size=64M"], 2 << 20)]
    {
        let options = [vec![pool.as_str(), "cache=immutable"], options].concat();
        let mount = pools.mount_with(&layers, &options)?;
        compare(&mount, &contents)?;
        let bytes = figure(&mount, "bytes")?;
        ensure!(bytes > most - 2 * BLOCK as u64 && bytes <= most, "{options:?}: {bytes} bytes, not {most}");
    }
    for bad in ["1M1", "4k"] {
        ensure!(pools.run("set", &["--cache", bad]).is_err(), "{bad} was taken");
    }
    pools.run("set", &["--cache", "none"])?;
    let mount = pools.mount_with(&layers, &[&pool, "cache=immutable", "cache_size=64M"])?;
    compare(&mount, &contents)?;
    let bytes = figure(&mount, "bytes")?;
    ensure!(bytes > 8 << 20, "without a limit: {bytes} bytes");
    Ok(())
}

/// A mount that reads nothing lends its share, also to one that opens nothing new, and has it back as soon as it reads.
fn idle(cx: &Cx) -> Outcome {
    const LARGE: usize = 24 << 20;
    const CACHE: u64 = 16 << 20;
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let pool = format!("pool={}", pools.name());
    let mount = |name: &str| {
        let layers = cx.layers(name, 1)?;
        fs::write(layers.lower().join("large"), vec![name.len() as u8; LARGE])?;
        pools.mount_with(&layers, &[&pool, "cache=immutable", "cache_size=16M"])
    };
    let (sleeps, works) = (mount("sleeps")?, mount("works")?);
    read_in_turn(&[&sleeps, &works])?;
    let held = |mount: &Mount| figure(mount, "bytes");
    ensure!(held(&sleeps)?.abs_diff(CACHE / 2) <= 2 * BLOCK as u64, "it has {} at first", held(&sleeps)?);
    // It is lent within 10 s, by the other one's reads, which are few on a busy machine.
    let begin = Instant::now();
    while begin.elapsed().as_secs() < 12 || held(&sleeps)? > CACHE / 20 && begin.elapsed() < PATIENCE {
        read_in_turn(&[&works])?;
    }
    ensure!(held(&sleeps)? <= CACHE / 20, "after {:?} it still has {}", begin.elapsed(), held(&sleeps)?);
    read_in_turn(&[&sleeps, &works])?;
    ensure!(held(&sleeps)?.abs_diff(CACHE / 2) <= 2 * BLOCK as u64, "it has {} again", held(&sleeps)?);
    Ok(())
}

/// Reads a large file through a mount, and compares it with what is in the layer.
fn compare_large(mount: &Mount, lower: &Path) -> Outcome {
    let (mut file, mut original) = (File::open(mount.path("large"))?, File::open(lower.join("large"))?);
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let (mut piece, mut expected) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for number in 0.. {
        let count = file.read(&mut piece).doing("a read of more than the pool's memory")?;
        if count == 0 {
            break;
        }
        let expected = expected.get_mut(..count).unwrap_or_default();
        original.read_exact(expected)?;
        ensure!(piece.get(..count) == Some(&*expected), "piece {number} is not what is in the layer");
    }
    ensure_eq!(original.read(&mut piece)?, 0, "bytes that were not read");
    Ok(())
}

/// A cache that is told to hold more than the pool's memory holds what there is room for: reads go on, and nobody is killed, also when
/// others in the pool need memory.
fn memory_limit(cx: &Cx) -> Outcome {
    const LIMIT: u64 = 64 << 20;
    const OTHERS: u64 = 24 << 20;
    let pools = Pools::new(cx)?;
    pools.run("create", &["--memory", "64M"])?;
    let layers = cx.layers("l", 1)?;
    let data: Vec<u8> = (0..160_usize << 20).map(|at| (at / 97) as u8 ^ (at >> 20) as u8).collect();
    fs::write(layers.lower().join("large"), data)?;
    let pool = format!("pool={}", pools.name());
    let mount = pools.mount_with(&layers, &[&pool, "cache=immutable", "cache_size=512M"])?;
    let before = pools.show()?["service"]["service"].clone();
    for _ in 0..3 {
        compare_large(&mount, layers.lower())?;
    }
    let bytes = figure(&mount, "bytes")?;
    ensure!((LIMIT / 4..LIMIT).contains(&bytes), "{bytes} bytes are cached where {LIMIT} are allowed");
    // Somebody else takes memory in the pool within some seconds, and holds it for some, and until its input ends.
    let groups = pools.show()?["control_groups"].clone();
    let groups = groups.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
    let script = format!(
        "for g; do echo $$ > $g/cgroup.procs || exit 1; done; mib() {{ head -c 1M /dev/zero; sleep 0.1; }}
         (for n in $(seq {}); do mib; done; sleep 3; read -r _) | tail -c {OTHERS} > /dev/null",
        OTHERS >> 20
    );
    let mut other = Command::new("sh");
    let mut other = other.args(["-c", &script, "sh"]).args(groups).stdin(Stdio::piped()).spawn()?;
    let mut least = bytes;
    let begin = Instant::now();
    while least + OTHERS / 2 > bytes && begin.elapsed() < PATIENCE && other.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(100));
        least = least.min(figure(&mount, "bytes")?);
    }
    drop(other.stdin.take());
    let begin = Instant::now();
    while other.try_wait()?.is_none() {
        ensure!(begin.elapsed() < PATIENCE, "the other one does not end");
        std::thread::sleep(Duration::from_millis(100));
        least = least.min(figure(&mount, "bytes")?);
    }
    ensure!(other.wait()?.success(), "the other one was killed");
    ensure!(least + OTHERS / 2 <= bytes, "of {bytes} bytes {least} stayed while others needed {OTHERS}");
    compare_large(&mount, layers.lower())?;
    let now = pools.show()?["service"].clone();
    ensure_eq!(
        (&now["service"], now["restarts"].as_u64()),
        (&before, Some(0)),
        "the service and its restarts"
    );
    // A successor that finds so much has no more room than that.
    handover::kill(&mount)?;
    compare_large(&mount, layers.lower())?;
    let bytes = figure(&mount, "bytes")?;
    ensure!((LIMIT / 4..LIMIT).contains(&bytes), "{bytes} bytes are cached where {LIMIT} are allowed");
    ensure_eq!(pools.show()?["service"]["restarts"].as_u64(), Some(1), "restarts");
    Ok(())
}
