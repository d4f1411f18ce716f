//! The service of a pool is killed, again and again, while programs work: none of them sees an error, nothing that was acknowledged
//! is lost, and nothing comes twice.

use super::Case;
use super::pool::Pools;
use crate::harness::outcome::{DuringContext, Outcome, Stop, ensure, ensure_eq, fail, skip};
use crate::harness::tree::{self, Ignore};
use crate::harness::{Cx, Layers, Mount, PATIENCE, Rng, rng};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::process::{Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::mounted("handover/killed-under-load", 120, killed_under_load),
    Case::mounted("handover/nameless-files", 60, nameless_files),
    Case::mounted("handover/a-new-program", 60, a_new_program),
    Case::once("handover/many-mounts", 60, many_mounts),
];

/// How long services are killed.
const SECONDS: u64 = 10;
/// Names in a worker's directory.
const NAMES: u64 = 12;

/// What workers share.
struct Work {
    root: PathBuf,
    stop: AtomicBool,
    operations: AtomicU64,
}

pub(super) fn fill(lower: &Path) -> Outcome {
    for worker in 0..5 {
        let dir = lower.join(format!("w{worker}"));
        fs::create_dir_all(dir.join("deep/er"))?;
        for name in 0..NAMES {
            fs::write(dir.join(format!("n{name}")), format!("lower {worker} {name}"))?;
        }
        fs::write(dir.join("deep/er/file"), "far below")?;
        fs::hard_link(dir.join("n0"), dir.join("twin"))?;
        fs::write(dir.join("large"), vec![b'l'; 300 << 10])?;
    }
    Ok(())
}

/// Files of one directory against what they must be.
fn files(work: &Work, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let dir = work.root.join("w0");
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for entry in fs::read_dir(&dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            model.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
        }
    }
    // Its two names are one file.
    model.remove("twin");
    model.remove("n0");
    fs::remove_file(dir.join("twin"))?;
    fs::remove_file(dir.join("n0"))?;
    while !work.stop.load(Relaxed) {
        work.operations.fetch_add(1, Relaxed);
        let name = format!("n{}", rng.below(NAMES));
        let path = dir.join(&name);
        let other = format!("n{}", rng.below(NAMES));
        let what = format!("{name} (with {other})");
        match rng.below(9) {
            0 => {
                let len = rng.below(9000) as usize;
                let data = rng.bytes(len);
                fs::write(&path, &data).doing(format!("writing {what}"))?;
                model.insert(name, data);
            }
            1 if model.contains_key(&name) => {
                let more = rng.bytes(100);
                let mut file = File::options().append(true).open(&path).doing(format!("opening {what}"))?;
                std::io::Write::write_all(&mut file, &more).doing(format!("appending to {what}"))?;
                file.sync_all().doing(format!("fsync of {what}"))?;
                model.entry(name).or_default().extend(more);
            }
            2 if model.contains_key(&name) => {
                fs::remove_file(&path).doing(format!("removing {what}"))?;
                model.remove(&name);
            }
            3 if model.contains_key(&name) && name != other => {
                fs::rename(&path, dir.join(&other)).doing(format!("renaming {what}"))?;
                let data = model.remove(&name).unwrap_or_default();
                model.insert(other, data);
            }
            4 if model.contains_key(&name) && model.contains_key(&other) && name != other => {
                let (one, two) = (&path, &dir.join(&other));
                rustix::fs::renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)
                    .doing(format!("exchanging {what}"))?;
                let (one, two) = (model.remove(&name), model.remove(&other));
                model.insert(name, two.unwrap_or_default());
                model.insert(other, one.unwrap_or_default());
            }
            5 if !model.contains_key(&name) => {
                let file = File::options().write(true).create_new(true).open(&path);
                file.doing(format!("creating {what} anew"))?;
                model.insert(name, Vec::new());
            }
            6 if model.contains_key(&name) => {
                let size = rng.below(5000);
                let file = File::options().write(true).open(&path).doing(format!("opening {what}"))?;
                file.set_len(size).doing(format!("cutting {what}"))?;
                if let Some(data) = model.get_mut(&name) {
                    data.resize(size as usize, 0);
                }
            }
            7 => {
                let listed: Result<BTreeSet<String>, std::io::Error> = fs::read_dir(&dir)
                    .doing("listing")?
                    .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                    .collect();
                let mut expected: BTreeSet<String> = model.keys().cloned().collect();
                expected.insert("deep".into());
                ensure_eq!(listed.doing("listing")?, expected, "names");
            }
            _ => match model.get(&name) {
                Some(data) => {
                    ensure!(fs::read(&path).doing(format!("reading {what}"))? == *data, "{what}: contents");
                    ensure_eq!(fs::metadata(&path)?.len(), data.len() as u64, "size of {what}");
                }
                None => ensure!(fs::symlink_metadata(&path).is_err(), "{what} is there"),
            },
        }
    }
    for (name, data) in &model {
        ensure!(fs::read(dir.join(name))? == *data, "{name}: contents at the end");
    }
    Ok(())
}

/// Directories that are made, moved, filled and removed, some of them from below.
fn directories(work: &Work, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let dir = work.root.join("w1");
    let mut deep = "deep".to_owned();
    while !work.stop.load(Relaxed) {
        work.operations.fetch_add(1, Relaxed);
        let number = rng.below(1000);
        let made = dir.join(format!("made{number}"));
        fs::create_dir(&made).doing("mkdir")?;
        fs::write(made.join("in"), "it").doing("a file in a new directory")?;
        let moved = dir.join("moved");
        fs::rename(&made, &moved).doing("renaming a directory")?;
        ensure_eq!(fs::read_to_string(moved.join("in")).doing("in a moved directory")?, "it", "contents");
        std::os::unix::fs::symlink("in", moved.join("link")).doing("symlink")?;
        ensure_eq!(fs::read_to_string(moved.join("link")).doing("by a link")?, "it", "contents");
        let next = format!("deep{number}");
        fs::rename(dir.join(&deep), dir.join(&next)).doing("renaming a lower directory")?;
        deep = next;
        let far = dir.join(&deep).join("er/file");
        ensure_eq!(fs::read_to_string(far).doing("below a moved directory")?, "far below", "contents");
        fs::remove_file(moved.join("link")).doing("removing a link")?;
        fs::remove_file(moved.join("in")).doing("removing a file")?;
        fs::remove_dir(&moved).doing("rmdir")?;
        ensure!(fs::symlink_metadata(&moved).is_err(), "a removed directory is there");
    }
    fs::rename(dir.join(&deep), dir.join("deep"))?;
    Ok(())
}

/// Files that are held open: with a name, without, from below, of which blocks are copied.
fn held_open(work: &Work, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let dir = work.root.join("w2");
    let lower = File::open(dir.join("n3"))?;
    let large = File::options().read(true).write(true).open(dir.join("large"))?;
    let mut expected = vec![b'l'; 300 << 10];
    let mut gone: Vec<(File, Vec<u8>)> = Vec::new();
    while !work.stop.load(Relaxed) {
        work.operations.fetch_add(1, Relaxed);
        if gone.len() < 8 {
            let path = dir.join("temporary");
            let file = File::options().read(true).write(true).create_new(true).open(&path).doing("create")?;
            let data = rng.bytes(5000);
            file.write_all_at(&data, 0).doing("writing what will be removed")?;
            fs::remove_file(&path).doing("removing what is open")?;
            gone.push((file, data));
        }
        let at = rng.below(gone.len() as u64) as usize;
        let (file, data) = &mut gone[at];
        let mut seen = vec![0; data.len()];
        file.read_exact_at(&mut seen, 0).doing("reading what has no name")?;
        ensure!(seen == *data, "contents of what has no name");
        ensure_eq!(file.metadata()?.nlink(), 0, "names of what has no name");
        let offset = rng.below(4000);
        let more = rng.bytes(500);
        file.write_all_at(&more, offset).doing("writing what has no name")?;
        data[offset as usize..offset as usize + 500].copy_from_slice(&more);
        if rng.one_in(5) {
            gone.swap_remove(at);
        }
        let mut words = [0; 9];
        lower.read_exact_at(&mut words, 0).doing("reading a lower file")?;
        ensure_eq!(&words, b"lower 2 3", "a lower file");
        let offset = rng.below(290 << 10);
        let bytes = rng.bytes(3000);
        large.write_all_at(&bytes, offset).doing("writing a block")?;
        expected[offset as usize..offset as usize + 3000].copy_from_slice(&bytes);
        if rng.one_in(20) {
            large.sync_data().doing("fdatasync of a partial file")?;
            let mut seen = vec![0; expected.len()];
            large.read_exact_at(&mut seen, 0).doing("reading a partial file")?;
            ensure!(seen == expected, "contents of a partial file");
        }
    }
    ensure!(fs::read(dir.join("large"))? == expected, "contents of a partial file at the end");
    Ok(())
}

/// Links, attributes, extended attributes.
fn attributes(work: &Work, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let dir = work.root.join("w3");
    let file = dir.join("n5");
    let ino = fs::metadata(&file)?.ino();
    let twins = fs::metadata(dir.join("twin"))?.ino();
    while !work.stop.load(Relaxed) {
        work.operations.fetch_add(1, Relaxed);
        let link = dir.join("link");
        fs::hard_link(&file, &link).doing("link")?;
        ensure_eq!(fs::metadata(&link).doing("stat of a link")?.nlink(), 2, "names");
        let mode = 0o600 | rng.below(0o100) as u32;
        rustix::fs::chmod(&link, Mode::from_raw_mode(mode)).doing("chmod")?;
        ensure_eq!(fs::metadata(&file).doing("stat")?.mode() & 0o777, mode, "mode by the other name");
        ensure_eq!(fs::metadata(&file)?.ino(), ino, "inode number");
        rustix::fs::setxattr(&file, c"user.once", b"value", XattrFlags::CREATE).doing("setxattr")?;
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(&link, c"user.once", &mut value).doing("getxattr")?;
        ensure_eq!(&value[..len], b"value", "an attribute");
        rustix::fs::removexattr(&file, c"user.once").doing("removexattr")?;
        fs::remove_file(&link).doing("removing a link")?;
        ensure_eq!(fs::metadata(&file).doing("stat")?.nlink(), 1, "names");
        ensure_eq!(fs::metadata(dir.join("n0"))?.ino(), twins, "inode number of two names");
        rustix::fs::accessat(CWD, dir.join("twin"), rustix::fs::Access::READ_OK, AtFlags::empty())
            .doing("access")?;
    }
    Ok(())
}

/// A file that is written through and read through a mapping at the same time.
fn mapped(work: &Work, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let path = work.root.join("w4/mapped");
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    let len = 64 << 10;
    file.write_all_at(&vec![0; len], 0)?;
    let map = vellum_sys::ReadMap::new(&file, len)?;
    while !work.stop.load(Relaxed) {
        work.operations.fetch_add(1, Relaxed);
        let (at, byte) = (rng.below(len as u64), rng.next() as u8);
        file.write_all_at(&[byte], at).doing("writing a mapped file")?;
        ensure_eq!(map.byte(at as usize), Some(byte), "what the mapping shows");
        if rng.one_in(50) {
            file.sync_data().doing("fdatasync of a mapped file")?;
        }
    }
    Ok(())
}

type Worker = fn(&Work, u64) -> Outcome;
const WORKERS: [(&str, Worker); 5] = [
    ("files", files),
    ("directories", directories),
    ("held open", held_open),
    ("attributes", attributes),
    ("mapped", mapped),
];

fn killed_under_load(cx: &Cx) -> Outcome {
    const ENOUGH: u64 = 21;
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let layers = cx.layers("l", 1)?;
    fill(layers.lower())?;
    let mount = pools.mount(&layers, true)?;
    let kills = under_load(cx, &layers, mount, (Duration::from_secs(SECONDS), ENOUGH), |rng| {
        sleep(Duration::from_millis(5 + rng.below(60)));
        kill_service(&pools)
    });
    let log = fs::read_to_string(pools.log()).unwrap_or_default();
    let usual =
        |line: &&str| !line.contains("of its predecessor") && !line.contains("a successor serves its mounts");
    log.lines().filter(usual).for_each(|line| println!("{line}"));
    let kills = kills?;
    ensure!(kills >= ENOUGH, "only {kills} services were killed");
    Ok(())
}

/// Has programs work on the mount while `kill` is called again and again, for so long and at least so often; how often it was.
pub(super) fn under_load(
    cx: &Cx,
    layers: &Layers,
    mut mount: Mount,
    (time, enough): (Duration, u64),
    mut kill: impl FnMut(&mut Rng) -> Outcome,
) -> Outcome<u64> {
    let seed = rng::seed();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let work =
        Work { root: mount.root().to_owned(), stop: AtomicBool::new(false), operations: AtomicU64::new(0) };
    let mut kills = 0;
    let outcomes: Vec<(&str, Outcome)> = std::thread::scope(|scope| {
        let threads: Vec<_> = WORKERS
            .iter()
            .zip(0..)
            .map(|((name, worker), number)| {
                let work = &work;
                (*name, scope.spawn(move || worker(work, seed + number)))
            })
            .collect();
        let begin = Instant::now();
        let mut killed = Ok(());
        // Fewer are killed in the same time on a busy machine.
        let goes_on = |kills| begin.elapsed() < time || kills < enough && begin.elapsed() < PATIENCE;
        while goes_on(kills) && !threads.iter().any(|(_, t)| t.is_finished()) {
            killed = kill(&mut rng).map(|()| kills += 1);
            if killed.is_err() {
                break;
            }
        }
        work.stop.store(true, Relaxed);
        let mut outcomes: Vec<(&str, Outcome)> = threads
            .into_iter()
            .map(|(name, thread)| (name, thread.join().unwrap_or_else(|_| fail("panic"))))
            .collect();
        outcomes.push(("killing", killed));
        outcomes
    });
    let operations = work.operations.load(Relaxed);
    println!("{operations} rounds of operations, {kills} processes killed");
    let failed: Vec<String> = outcomes
        .into_iter()
        .filter_map(|(name, outcome)| Some(format!("{name}: {}", outcome.err()?)))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    // What the layers hold is what was seen: another mount, with a service that knows nothing of all this, shows the same.
    let before = tree::take(mount.root(), i64::MAX)?;
    mount.unmount()?;
    // The one before may have the layers for longer than a mount waits.
    let begin = Instant::now();
    let fresh = loop {
        match cx.mount(layers) {
            Err(Stop::Fail(why)) if why.contains("another mount") && begin.elapsed() < PATIENCE => {
                sleep(Duration::from_millis(20))
            }
            mounted => break mounted?,
        }
    };
    let after = tree::take(fresh.root(), i64::MAX)?;
    let ignore = Ignore { mtime: true, nlink: false };
    tree::same("left: before, right: with another service", &before, &after, ignore)?;
    Ok(kills)
}

/// Kills the service of a pool, if it has one at the moment.
pub(super) fn kill_service(pools: &Pools<'_>) -> Outcome {
    let shown = pools.show()?;
    let Some(pid) = shown["service"]["service"].as_i64().and_then(|pid| i32::try_from(pid).ok()) else {
        return Ok(());
    };
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| Stop::Fail(format!("process {pid}")))?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// What only descriptors hold: files and directories without names, of both layers.
fn nameless_files(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let layers = cx.layers("l", 1)?;
    fill(layers.lower())?;
    let mount = pools.mount(&layers, true)?;
    let dir = mount.path("w0");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lower_dir = rustix::fs::open(dir.join("deep/er"), flags, Mode::empty())?;
    fs::create_dir(dir.join("new"))?;
    let upper_dir = rustix::fs::open(dir.join("new"), flags, Mode::empty())?;
    let lower = File::open(dir.join("n4"))?;
    let twin = File::open(dir.join("twin"))?;
    let replaced = File::open(dir.join("n6"))?;
    let unnamed = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RWXU);
    let unnamed = unnamed.map(File::from)?;
    unnamed.write_all_at(b"unnamed", 0)?;
    fs::remove_dir_all(dir.join("deep"))?;
    fs::remove_dir(dir.join("new"))?;
    fs::remove_file(dir.join("n4"))?;
    fs::rename(dir.join("n7"), dir.join("n6"))?;
    let numbers = [&lower, &twin, &replaced, &unnamed].map(|file| file.metadata().map(|found| found.ino()));
    for _ in 0..3 {
        kill_service(&pools)?;
        let read = |file: &File, len: usize| -> Outcome<Vec<u8>> {
            let mut data = vec![0; len];
            file.read_exact_at(&mut data, 0)?;
            Ok(data)
        };
        ensure_eq!(read(&lower, 9)?, b"lower 0 4", "a lower file without a name");
        ensure_eq!(read(&twin, 9)?, b"lower 0 0", "a file with two names");
        ensure_eq!(read(&replaced, 9)?, b"lower 0 6", "a replaced file");
        ensure_eq!(read(&unnamed, 7)?, b"unnamed", "a file that never had a name");
        unnamed.write_all_at(b"UN", 0)?;
        ensure_eq!(read(&unnamed, 7)?, b"UNnamed", "a file that never had a name, written to");
        unnamed.write_all_at(b"un", 0)?;
        for (file, known) in [&lower, &twin, &replaced, &unnamed].into_iter().zip(&numbers) {
            let found = file.metadata()?;
            ensure_eq!(Some(found.ino()), known.as_ref().ok().copied(), "inode number");
        }
        for removed in [&lower_dir, &upper_dir] {
            ensure_eq!(rustix::fs::fstat(removed)?.st_nlink, 0, "names of a removed directory");
            let listed = rustix::fs::Dir::read_from(removed)?.count();
            ensure!(listed <= 2, "{listed} names in a removed directory");
        }
        ensure_eq!(fs::read_to_string(dir.join("n6"))?, "lower 0 7", "the file in its place");
    }
    // What had no name gets one.
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
    rustix::fs::linkat(CWD, name, CWD, dir.join("named"), AtFlags::SYMLINK_FOLLOW)?;
    kill_service(&pools)?;
    ensure_eq!(fs::read_to_string(dir.join("named"))?, "unnamed", "a file that got a name");
    Ok(())
}

/// `vellum pool restart`: another process goes on, and nobody notices.
fn a_new_program(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let layers = cx.layers("l", 1)?;
    fill(layers.lower())?;
    let mount = pools.mount(&layers, true)?;
    let file = File::options().append(true).create(true).open(mount.path("log"))?;
    let mut services = BTreeSet::new();
    for number in 0..3 {
        services.insert(mount.service()?.as_raw_nonzero().get());
        std::io::Write::write_all(&mut &file, format!("{number}\n").as_bytes())?;
        pools.run("restart", &[])?;
        std::io::Write::write_all(&mut &file, b"after\n")?;
    }
    ensure_eq!(services.len(), 3, "services");
    ensure_eq!(fs::read_to_string(mount.path("log"))?, "0\nafter\n1\nafter\n2\nafter\n", "the log");
    let shown = pools.show()?;
    ensure_eq!(shown["service"]["restarts"].as_u64(), Some(3), "restarts in {shown}");
    Ok(())
}

/// One service serves all of a pool, and its end touches no mount of another.
fn many_mounts(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let mut mounts: Vec<Mount> = Vec::new();
    for number in 0..12 {
        let layers = cx.layers(&format!("l{number}"), 1)?;
        fs::write(layers.lower().join("number"), number.to_string())?;
        mounts.push(pools.mount(&layers, true)?);
    }
    let outside = cx.layers("outside", 1)?;
    let alone = cx.mount(&outside)?;
    let service = mounts.first().map(Mount::service).transpose()?;
    for mount in &mounts {
        ensure_eq!(Some(mount.service()?), service, "the service");
    }
    ensure!(Some(alone.service()?) != service, "a mount outside is served by the pool");
    kill_service(&pools)?;
    for (number, mount) in mounts.iter().enumerate() {
        ensure_eq!(fs::read_to_string(mount.path("number"))?, number.to_string(), "contents");
        fs::write(mount.path("new"), "new")?;
    }
    let last = mounts.pop();
    drop(mounts);
    let Some(last) = last else { return skip("no mounts") };
    ensure_eq!(fs::read_to_string(last.path("new"))?, "new", "contents of the mount that is left");
    Ok(())
}
