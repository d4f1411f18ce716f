//! Mappings, holes and copies: every way to the data shows the same.

use super::filled;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{Outcome, Stop, ensure, ensure_eq};
use crate::harness::raw::Mapping;
use crate::harness::{Cx, Mount, Profile, rng};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, Timespec, Timestamps,
};
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const PAGE: usize = 4096;

/// Files of a lower layer as `passthrough` gives them to the kernel, by which size.
const SIZES: [(&str, usize); 2] = [("small", 4 * PAGE), ("large", 32 * PAGE)];

pub(super) fn before_copy_up(cx: &Cx) -> Outcome {
    let (_layers, mut mount) = filled(cx, |dir| {
        for (size, len) in SIZES {
            fs::write(dir.join(format!("mapped-{size}")), vec![b'a'; len])?;
            fs::write(dir.join(format!("read-{size}")), vec![b'a'; len])?;
        }
        Ok(())
    })?;
    for (size, len) in SIZES {
        let open = |name: &str, flags| rustix::fs::open(mount.path(name), flags, Mode::empty());
        let (mapped, read) = (format!("mapped-{size}"), format!("read-{size}"));
        let early = open(&mapped, OFlags::RDONLY)?;
        let map = Mapping::shared(early.as_fd(), len, false)?;
        ensure_eq!(map.read(0, 2), b"aa", "mapped before");
        let reader = open(&read, OFlags::RDONLY)?;
        for name in [&mapped, &read] {
            let writer = open(name, OFlags::RDWR)?;
            rustix::io::pwrite(&writer, b"bb", PAGE as u64)?;
        }
        // What the kernel was given stays what old descriptors have; else there is one file for it.
        let given = cx.profile == Some(Profile::Passthrough) && size == "large";
        let shown: &[u8] = if given { b"aa" } else { b"bb" };
        let mut seen = vec![0; len];
        let mut whole = vec![b'a'; len];
        whole[PAGE..PAGE + 2].copy_from_slice(shown);
        ensure_eq!(rustix::io::pread(&reader, &mut seen[..], 0)?, len, "bytes of an open descriptor");
        ensure!(seen == whole, "an open descriptor after copy-up: {}", seen[PAGE..PAGE + 2].escape_ascii());
        let mapped_now = map.read(0, len);
        let found = mapped_now[PAGE..PAGE + 2].escape_ascii();
        ensure!(mapped_now == whole, "a mapping made before copy-up: {found}");
        whole[PAGE..PAGE + 2].copy_from_slice(b"bb");
        for (name, old) in [(&mapped, &early), (&read, &reader)] {
            ensure!(fs::read(mount.path(name))? == whole, "{name}: opened after copy-up");
            let again = format!("/proc/self/fd/{}", old.as_raw_fd());
            let again = rustix::fs::open(again, OFlags::RDONLY, Mode::empty());
            if given {
                ensure_eq!(again.err(), Some(Errno::STALE), "{name}: the old descriptor, opened again");
            } else {
                ensure_eq!(rustix::io::pread(again?, &mut seen[..], 0)?, len, "{name}: bytes");
            }
        }
    }
    mount.remount()?;
    for (size, len) in SIZES {
        let mut whole = vec![b'a'; len];
        whole[PAGE..PAGE + 2].copy_from_slice(b"bb");
        for name in [format!("mapped-{size}"), format!("read-{size}")] {
            ensure!(fs::read(mount.path(&name))? == whole, "{name}: after a remount");
        }
    }
    mount.unmount()
}

/// What somebody sees who has opened small files of a lower layer before others change them for the first time: the same as in the kernel's
/// overlayfs.
pub(super) fn one_file(cx: &Cx) -> Outcome {
    let mut seen = Vec::new();
    for (name, kind) in [("union", MountKind::under_test()), ("kernel", MountKind::Kernel)] {
        let layers = cx.layers(name, 1)?;
        for name in ["lock", "log", "cut", "mode", "gone", "replaced", "other"] {
            fs::write(layers.lower().join(name), "as it was\n")?;
        }
        let profile = if kind == MountKind::Kernel { None } else { cx.profile };
        let mut mount = Mount::new(kind, profile, &layers, &[])?;
        seen.push(look_on(&mount)?);
        mount.unmount()?;
    }
    ensure_eq!(seen[0], seen[1], "what is seen, and what is seen in the kernel's overlayfs");
    Ok(())
}

fn look_on(mount: &Mount) -> Outcome<Vec<String>> {
    let open = |name: &str, flags| rustix::fs::open(mount.path(name), flags, Mode::empty());
    let mut said = Vec::new();
    let mut say = |what: &str, seen: &dyn Debug| said.push(format!("{what}: {seen:?}"));
    let exclusive = |of: &OwnedFd| rustix::fs::flock(of, FlockOperation::NonBlockingLockExclusive);
    let old = open("lock", OFlags::RDONLY)?;
    say("the first lock", &exclusive(&old));
    let new = open("lock", OFlags::RDWR)?;
    say("the second lock", &exclusive(&new));
    rustix::fs::flock(&old, FlockOperation::Unlock)?;
    say("the second lock, later", &exclusive(&new));
    say("the first lock again", &exclusive(&old));

    let mut log = fs::File::from(open("log", OFlags::RDONLY)?);
    let mut all = String::new();
    log.read_to_string(&mut all)?;
    for line in ["more\n", "and more\n"] {
        let by_name = open("log", OFlags::WRONLY | OFlags::APPEND)?;
        rustix::io::write(&by_name, line.as_bytes())?;
        log.read_to_string(&mut all)?;
    }
    say("a log that is followed", &all);
    say("its size", &log.metadata()?.len());

    let cut = open("cut", OFlags::RDONLY)?;
    drop(open("cut", OFlags::WRONLY | OFlags::TRUNC)?);
    say("a file that was cut", &rustix::io::pread(&cut, &mut [0; 16], 0));
    fs::write(mount.path("cut"), "new")?;
    let mut bytes = [0; 16];
    say("and written", &(rustix::io::pread(&cut, &mut bytes, 0), bytes));

    let old = open("mode", OFlags::RDONLY)?;
    fs::write(mount.path("mode"), "written")?;
    rustix::fs::fchmod(&old, Mode::from_raw_mode(0o600))?;
    say("a mode that was set by the old descriptor", &(fs::metadata(mount.path("mode"))?.mode() & 0o7777));
    fs::write(mount.path("mode"), "written again")?;
    say("the old descriptor's size", &rustix::fs::fstat(&old)?.st_size);

    let gone = open("gone", OFlags::RDONLY)?;
    drop(open("gone", OFlags::RDWR)?);
    fs::remove_file(mount.path("gone"))?;
    let again = |of: &OwnedFd, flags| {
        rustix::fs::open(format!("/proc/self/fd/{}", of.as_raw_fd()), flags, Mode::empty())
    };
    let by_number = again(&gone, OFlags::RDWR);
    let wrote = by_number.as_ref().map(|file| rustix::io::pwrite(file, b"W", 0));
    let mut bytes = [0; 4];
    say(
        "a removed file, by its number",
        &(wrote.map_err(|e| *e), rustix::io::pread(&gone, &mut bytes, 0), bytes),
    );

    let replaced = open("replaced", OFlags::RDONLY)?;
    fs::write(mount.path("replaced"), "written")?;
    fs::rename(mount.path("other"), mount.path("replaced"))?;
    let mut bytes = [0; 7];
    say("a file that another one replaced", &(rustix::io::pread(&replaced, &mut bytes, 0), bytes));
    say(
        "by its number",
        &again(&replaced, OFlags::RDONLY).map(|file| rustix::fs::fstat(&file).map(|s| s.st_nlink)),
    );
    Ok(said)
}

pub(super) fn agree(cx: &Cx) -> Outcome {
    const LEN: usize = 16 * PAGE;
    let (_layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("f"), vec![0; LEN])?))?;
    let seed = rng::seed();
    println!("seed {seed}");
    let mut rng = rng::Rng::new(seed);
    let writer = rustix::fs::open(mount.path("f"), OFlags::RDWR, Mode::empty())?;
    let reader = rustix::fs::open(mount.path("f"), OFlags::RDONLY, Mode::empty())?;
    let map = Mapping::shared(writer.as_fd(), LEN, true)?;
    let view = Mapping::shared(reader.as_fd(), LEN, false)?;
    let mut model = vec![0_u8; LEN];
    for step in 0..2000 {
        let at = rng.below(LEN as u64 - 1) as usize;
        let len = 1 + rng.below(((LEN - at) as u64).min(9000)) as usize;
        let len = len.min(LEN - at);
        let data = rng.bytes(len);
        match rng.below(6) {
            0 | 1 => {
                map.write(at, &data);
                model[at..at + len].copy_from_slice(&data);
            }
            2 | 3 => {
                rustix::io::pwrite(&writer, &data, at as u64)?;
                model[at..at + len].copy_from_slice(&data);
            }
            4 => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&writer, mode, at as u64, len as u64)?;
                model[at..at + len].fill(0);
            }
            _ => {
                let to = rng.below((LEN - len + 1) as u64) as usize;
                // The ranges of one file must not overlap.
                if to + len <= at || at + len <= to {
                    let (mut from_at, mut to_at) = (at as u64, to as u64);
                    let mut left = len;
                    while left > 0 {
                        let done = rustix::fs::copy_file_range(
                            &reader,
                            Some(&mut from_at),
                            &writer,
                            Some(&mut to_at),
                            left,
                        )?;
                        ensure!(done > 0, "copy_file_range stops within the file");
                        left -= done;
                    }
                    model.copy_within(at..at + len, to);
                }
            }
        }
        let at = rng.below(LEN as u64) as usize;
        let len = ((LEN - at) as u64).min(5000) as usize;
        let mut seen = vec![0; len];
        rustix::io::pread(&reader, &mut seen[..], at as u64)?;
        ensure!(seen == model[at..at + len], "step {step}: read() shows something else at {at}");
        ensure!(map.read(at, len) == model[at..at + len], "step {step}: the mapping shows something else");
        ensure!(
            view.read(at, len) == model[at..at + len],
            "step {step}: the reader's mapping shows something else"
        );
    }
    map.sync()?;
    drop((map, view, writer, reader));
    mount.remount()?;
    ensure!(fs::read(mount.path("f"))? == model, "after remount there is something else");
    mount.unmount()
}

pub(super) fn holes(cx: &Cx) -> Outcome {
    const MIB: u64 = 1 << 20;
    let (_layers, mut mount) = filled(cx, |dir| {
        let file = fs::File::create(dir.join("sparse"))?;
        rustix::io::pwrite(&file, &[1; PAGE], 4 * MIB)?;
        file.set_len(8 * MIB)?;
        Ok(fs::write(dir.join("full"), vec![7; MIB as usize])?)
    })?;
    let file = rustix::fs::open(mount.path("sparse"), OFlags::RDONLY, Mode::empty())?;
    let data = rustix::fs::seek(&file, SeekFrom::Data(0))?;
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(4 * MIB))?;
    if cx.profile == Some(Profile::Cached) {
        // The kernel may hold data that it has not written back: all of the file counts as data.
        ensure_eq!((data, hole), (0, 8 * MIB), "SEEK_DATA and SEEK_HOLE in the cached profile");
    } else {
        ensure_eq!((data, hole), (4 * MIB, 4 * MIB + PAGE as u64), "SEEK_DATA and SEEK_HOLE of a lower file");
        let none = rustix::fs::seek(&file, SeekFrom::Data(5 * MIB));
        ensure!(none == Err(rustix::io::Errno::NXIO), "SEEK_DATA behind all data: {none:?}");
    }
    drop(file);
    let file = rustix::fs::open(mount.path("full"), OFlags::RDWR, Mode::empty())?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 100, 200_000)?;
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 500_000, 1000)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), MIB, 5000)?;
    // Shrunk and grown again: zeros, never what was there.
    rustix::fs::ftruncate(&file, 900_000)?;
    rustix::fs::ftruncate(&file, 2 * MIB)?;
    let mut model = vec![7_u8; MIB as usize];
    model[100..200_100].fill(0);
    model[500_000..501_000].fill(0);
    model.truncate(900_000);
    model.resize(2 * MIB as usize, 0);
    let mut seen = vec![0; 3 * MIB as usize];
    let got = rustix::io::pread(&file, &mut seen[..], 0)?;
    ensure!(
        got >= PAGE && seen[..got] == model[..got],
        "{got} bytes read are not those that should be there"
    );
    drop(file);
    ensure!(fs::read(mount.path("full"))? == model, "another descriptor shows something else");
    mount.remount()?;
    ensure!(fs::read(mount.path("full"))? == model, "after remount there is something else");
    mount.unmount()
}

/// Whether writes append is the descriptor's to change.
pub(super) fn append_flag(cx: &Cx) -> Outcome {
    let (_layers, mut mount) = filled(cx, |_| Ok(()))?;
    let write = |file: &OwnedFd, name: &str| -> Outcome<Vec<u8>> {
        rustix::io::pwrite(file, b"at 0", 0)?;
        Ok(fs::read(mount.path(name))?)
    };
    let open = |name: &str, flags: OFlags| {
        fs::write(mount.path(name), b"before")?;
        Ok::<_, Stop>(rustix::fs::open(mount.path(name), OFlags::RDWR | flags, Mode::empty())?)
    };
    let set = open("set", OFlags::empty())?;
    rustix::fs::fcntl_setfl(&set, OFlags::APPEND)?;
    ensure_eq!(write(&set, "set")?, b"beforeat 0", "set by F_SETFL");
    rustix::fs::fcntl_setfl(&set, OFlags::empty())?;
    ensure_eq!(write(&set, "set")?, b"at 0reat 0", "and taken back");
    let opened = open("opened", OFlags::APPEND)?;
    ensure_eq!(write(&opened, "opened")?, b"beforeat 0", "opened so");
    rustix::fs::fcntl_setfl(&opened, OFlags::empty())?;
    let seen = write(&opened, "opened")?;
    let appends = seen == b"beforeat 0at 0" && cx.profile == Some(Profile::Passthrough);
    ensure!(appends || seen == b"at 0reat 0", "opened so and taken back: {}", seen.escape_ascii());
    drop((set, opened));
    mount.unmount()
}

/// Longest time for which times may be old that a store to a mapping has changed, several times over.
const SHOWN: Duration = Duration::from_millis(150);
const OLD: i64 = 1_000_000_000;

/// Stores to a mapping show in the file's times without msync, also when the descriptor by which it was mapped is closed.
pub(super) fn times(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("mapped"), vec![b'a'; 4 * PAGE])?))?;
    fs::write(mount.path("made"), vec![b'a'; 4 * PAGE])?;
    for name in ["mapped", "made"] {
        let path = mount.path(name);
        let age = || -> Outcome<i64> {
            let old = Timespec { tv_sec: OLD, tv_nsec: 0 };
            let times = Timestamps { last_access: old, last_modification: old };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
            let meta = fs::metadata(&path)?;
            ensure_eq!(meta.mtime(), OLD, "{name}: set mtime");
            Ok(meta.ctime())
        };
        let shows = |what: &str| -> Outcome {
            std::thread::sleep(SHOWN);
            let meta = fs::metadata(&path)?;
            ensure!(meta.mtime() > OLD, "{name}: mtime is old after {what}");
            ensure!(meta.ctime() >= meta.mtime(), "{name}: ctime is old after {what}");
            Ok(())
        };
        // Known to the kernel, and for long, before anybody opens it to write.
        age()?;
        let file = rustix::fs::open(&path, OFlags::RDWR, Mode::empty())?;
        let map = Mapping::shared(file.as_fd(), 4 * PAGE, true)?;
        map.write(0, b"b");
        shows("a store")?;
        map.sync()?;
        age()?;
        map.write(PAGE, b"b");
        shows("another store")?;
        map.sync()?;
        drop(file);
        age()?;
        map.write(2 * PAGE, b"b");
        shows("a store without a descriptor")?;
        map.sync()?;
        age()?;
        map.write(3 * PAGE, b"b");
        drop(map);
        shows("a mapping has gone")?;
    }
    mount.unmount()?;
    for name in ["mapped", "made"] {
        ensure!(fs::metadata(layers.upper().join(name))?.mtime() > OLD, "{name}: mtime in the upper is old");
    }
    Ok(())
}
