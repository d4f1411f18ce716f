//! Directories: renamed, very large, changing while they are read; and nobody waits for another's copy-up.

use super::filled;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail};
use crate::harness::tree;
use crate::harness::{Cx, Mount, MountKind, skip};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

pub(super) fn rename(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| {
        for sub in ["a/b/c", "merged/below", "x/y"] {
            fs::create_dir_all(dir.join(sub))?;
            fs::write(dir.join(sub).join("file"), sub)?;
        }
        Ok(())
    })?;
    fs::write(mount.path("merged/above"), "above")?;
    fs::remove_file(mount.path("merged/below/file"))?;
    fs::write(mount.path("merged/below/other"), "other")?;
    fs::rename(mount.path("a"), mount.path("lower-renamed")).doing("rename of a lower directory")?;
    fs::rename(mount.path("merged"), mount.path("merged-renamed")).doing("rename of a merged directory")?;
    fs::rename(mount.path("lower-renamed/b"), mount.path("merged-renamed/b")).doing("rename into another")?;
    // The old name is free, and what was there does not come back.
    fs::create_dir(mount.path("a"))?;
    ensure_eq!(fs::read_dir(mount.path("a"))?.count(), 0, "entries of a new directory under an old name");
    fs::create_dir(mount.path("empty"))?;
    fs::rename(mount.path("x"), mount.path("empty")).doing("rename over an empty directory")?;
    fs::rename(mount.path("empty"), mount.path("a/x")).doing("a second rename")?;
    let refused = fs::rename(mount.path("lower-renamed"), mount.path("merged-renamed"));
    ensure!(
        refused.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOTEMPTY)),
        "rename over a directory with entries: {refused:?}"
    );
    let files = |root: &Path| {
        let tree = tree::take(root, 0)?;
        Ok::<_, crate::harness::Stop>(
            tree.into_iter().map(|(path, node)| (path, node.head)).collect::<Vec<_>>(),
        )
    };
    let expected: Vec<(String, Vec<u8>)> = [
        ("", ""),
        ("a", ""),
        ("a/x", ""),
        ("a/x/y", ""),
        ("a/x/y/file", "x/y"),
        ("lower-renamed", ""),
        ("merged-renamed", ""),
        ("merged-renamed/above", "above"),
        ("merged-renamed/b", ""),
        ("merged-renamed/b/c", ""),
        ("merged-renamed/b/c/file", "a/b/c"),
        ("merged-renamed/below", ""),
        ("merged-renamed/below/other", "other"),
    ]
    .map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()))
    .to_vec();
    ensure_eq!(files(mount.root())?, expected, "tree");
    mount.remount()?;
    ensure_eq!(files(mount.root())?, expected, "tree after remount");
    fs::write(mount.path("merged-renamed/b/c/file"), "changed")?;
    mount.unmount()?;
    let other = cx.mount(&layers.as_lowers("again")?)?;
    ensure_eq!(fs::read_to_string(other.path("merged-renamed/b/c/file"))?, "changed", "upper as a lower");
    ensure_eq!(files(other.root())?.len(), expected.len(), "entries with the upper as a lower");
    Ok(())
}

/// Names of a directory with how often each is listed.
fn names(dir: &Path) -> Outcome<BTreeMap<String, u32>> {
    let mut found = BTreeMap::new();
    let fd = rustix::fs::open(dir, OFlags::DIRECTORY, Mode::empty())?;
    for entry in rustix::fs::Dir::new(fd)? {
        *found.entry(entry?.file_name().to_string_lossy().into_owned()).or_insert(0) += 1;
    }
    found.remove(".");
    found.remove("..");
    Ok(found)
}

pub(super) fn large(cx: &Cx) -> Outcome {
    const SIZES: [u32; 2] = [10_000, 100_000];
    const TRIES: usize = 5;
    let (_layers, mut mount) = filled(cx, |dir| {
        for size in SIZES {
            let sub = dir.join(size.to_string());
            fs::create_dir(&sub)?;
            for n in 0..size {
                fs::File::create(sub.join(format!("name-{n}")))?;
            }
        }
        Ok(())
    })?;
    for size in SIZES {
        let sub = mount.path(&size.to_string());
        // Merged, with a whiteout, an entry of the upper, and one that is in both.
        fs::remove_file(sub.join("name-1"))?;
        fs::write(sub.join("new"), "")?;
        fs::write(sub.join("name-2"), "changed")?;
    }
    // The shortest time of a few: others may have the processors meanwhile.
    let mut times = [Duration::MAX; 2];
    for _ in 0..TRIES {
        for (size, time) in SIZES.into_iter().zip(&mut times) {
            let sub = mount.path(&size.to_string());
            mount.remount()?;
            let begin = Instant::now();
            let found = names(&sub)?;
            *time = begin.elapsed().min(*time);
            ensure_eq!(found.len() as u32, size, "entries");
            ensure!(found.values().all(|&times| times == 1), "an entry is listed twice");
            ensure!(!found.contains_key("name-1") && found.contains_key("new"), "the wrong entries");
        }
        println!("10,000 entries: {:?}, 100,000 entries: {:?}", times[0], times[1]);
        // Ten times as many: ten times as long, with room for noise.
        if times[1] < (times[0] * 30).max(Duration::from_millis(1500)) {
            return mount.unmount();
        }
    }
    fail(format!("{:?} for 10,000 entries, {:?} for 100,000", times[0], times[1]))
}

pub(super) fn changing(cx: &Cx) -> Outcome {
    const COUNT: u32 = 20_000;
    let (_layers, mut mount) = filled(cx, |dir| {
        fs::create_dir(dir.join("d"))?;
        for n in 0..COUNT {
            fs::File::create(dir.join(format!("d/lower-{n}")))?;
        }
        Ok(())
    })?;
    for n in 0..500 {
        fs::write(mount.path(&format!("d/upper-{n}")), "")?;
    }
    let dir = mount.path("d");
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let fd = rustix::fs::open(&dir, OFlags::DIRECTORY, Mode::empty())?;
    let mut listed = 0_u32;
    for entry in rustix::fs::Dir::new(fd)? {
        *seen.entry(entry?.file_name().to_string_lossy().into_owned()).or_insert(0) += 1;
        listed += 1;
        if listed.is_multiple_of(100) {
            let n = listed / 100;
            // Some go, some come, some change; they have numbers divisible by 50.
            let _ = fs::remove_file(dir.join(format!("lower-{}", n * 50)));
            fs::write(dir.join(format!("added-{n}")), "")?;
            let _ = fs::rename(dir.join(format!("upper-{n}")), dir.join(format!("renamed-{n}")));
        }
        ensure!(listed < 3 * COUNT, "the listing does not end");
    }
    ensure!(seen.values().all(|&times| times == 1), "an entry is listed twice");
    for n in (0..COUNT).filter(|n| n % 50 != 0) {
        ensure!(
            seen.contains_key(&format!("lower-{n}")),
            "lower-{n} was there all the time and is not listed"
        );
    }
    ensure!(!names(&dir)?.contains_key("lower-50"), "a removed entry is listed by another descriptor");
    in_two_goes(&mut mount, &dir)?;
    mount.unmount()
}

/// A position is kept when a directory is read in two goes (seekdir), with changes and a new mount in between: what was there
/// all the time is listed once, in the first part or in the second.
fn in_two_goes(mount: &mut Mount, dir: &Path) -> Outcome {
    let before = names(dir)?;
    let (first, position) = part(dir, None, before.len() / 2)?;
    let (gone, kept): (Vec<_>, Vec<_>) = before.keys().enumerate().partition(|(n, _)| n % 7 == 0);
    for (_, name) in &gone {
        fs::remove_file(dir.join(name)).doing(name)?;
    }
    for n in 0..1000 {
        fs::write(dir.join(format!("between-{n}")), "")?;
    }
    mount.remount()?;
    let (second, _) = part(dir, Some(position), usize::MAX)?;
    let mut listed: BTreeMap<&str, u32> = BTreeMap::new();
    for name in first.iter().chain(&second) {
        *listed.entry(name).or_insert(0) += 1;
    }
    for (_, name) in kept {
        ensure_eq!(listed.get(name.as_str()), Some(&1), "{name} was there all the time; times it is listed");
    }
    let second: BTreeSet<&str> = second.iter().map(String::as_str).collect();
    let back = gone.iter().find(|(_, name)| second.contains(name.as_str()));
    ensure!(back.is_none(), "{back:?} has been removed and is listed afterwards");
    Ok(())
}

/// Names from a position on, about so many, and the position behind the last of them.
fn part(dir: &Path, from: Option<i64>, most: usize) -> Outcome<(Vec<String>, i64)> {
    let fd = rustix::fs::open(dir, OFlags::DIRECTORY, Mode::empty())?;
    if let Some(from) = from {
        rustix::fs::seek(&fd, SeekFrom::Start(from as u64))?;
    }
    let (mut found, mut position) = (Vec::new(), from.unwrap_or(0));
    let mut buffer = Vec::with_capacity(1 << 13);
    let mut entries = RawDir::new(&fd, buffer.spare_capacity_mut());
    while found.len() < most
        && let Some(entry) = entries.next()
    {
        let entry = entry?;
        position = entry.next_entry_cookie() as i64;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !matches!(name.as_str(), "." | "..") {
            found.push(name);
        }
    }
    Ok((found, position))
}

pub(super) fn large_copy_up(cx: &Cx) -> Outcome {
    const SIZE: usize = 768 << 20;
    const PATIENCE: Duration = Duration::from_millis(400);
    const TRIES: usize = 3;
    if !MountKind::under_test().is_vellum() {
        return skip("a stand-in has one lock");
    }
    let (layers, mut mount) = filled(cx, |dir| {
        let chunk = vec![0x5a_u8; 1 << 20];
        let file = fs::File::create(dir.join("large"))?;
        for at in 0..SIZE >> 20 {
            rustix::io::pwrite(&file, &chunk, (at << 20) as u64)?;
        }
        rustix::fs::fsync(&file)?;
        small_files(dir)
    })?;
    // Small files on the same disk without Vellum: what takes its time there is not the fault of the copy-up.
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    small_files(&plain)?;
    // A lock that is held would delay others each time.
    for tries in 1.. {
        let (took, longest, on_plain) = waits_beside_copy_up(&mount, &plain)?;
        println!(
            "copy-up took {took:?}; meanwhile the longest wait was {longest:?}, and {on_plain:?} in a plain directory"
        );
        if longest.0 < PATIENCE.max(took / 4).max(3 * on_plain.0) {
            break;
        }
        ensure!(
            tries < TRIES,
            "while a large file was copied up for {took:?}, another's {} took {:?}, and one in a plain directory {:?}",
            longest.1,
            longest.0,
            on_plain.0
        );
        mount.unmount()?;
        for dir in [layers.upper(), &layers.work] {
            fs::remove_dir_all(dir)?;
            fs::create_dir(dir)?;
        }
        mount.mount()?;
    }
    mount.unmount()
}

/// How long a copy-up takes, and the longest operations on small files meanwhile: in the mount, and in a directory beside it.
fn waits_beside_copy_up(mount: &Mount, plain: &Path) -> Outcome<(Duration, LongestWait, LongestWait)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| {
            let begin = Instant::now();
            let result = (|| -> Outcome {
                let file = fs::OpenOptions::new().write(true).open(mount.path("large"))?;
                rustix::io::pwrite(&file, b"y", 12_345)?;
                Ok(())
            })();
            done.store(true, Ordering::Relaxed);
            result.map(|()| begin.elapsed())
        });
        // It only looks on, and leaves the processors to the others in between.
        let beside = scope.spawn(|| longest_wait(plain, &done, Duration::from_millis(1)));
        let longest = longest_wait(mount.root(), &done, Duration::ZERO)?;
        let took = copy.join().unwrap_or_else(|_| fail("a thread panicked"))?;
        let on_plain = beside.join().unwrap_or_else(|_| fail("a thread panicked"))?;
        Ok((took, longest, on_plain))
    })
}

fn small_files(dir: &Path) -> Outcome {
    Ok((0..200).try_for_each(|n| fs::write(dir.join(format!("small-{n}")), "x"))?)
}

/// How long an operation took, and which.
type LongestWait = (Duration, &'static str);

/// Works with small files until `done`, with pauses; which operation took longest.
fn longest_wait(dir: &Path, done: &AtomicBool, pause: Duration) -> Outcome<LongestWait> {
    let mut longest = (Duration::ZERO, "nothing");
    for n in 0.. {
        let small = dir.join(format!("small-{}", n % 200));
        let begin = Instant::now();
        let what = match n % 4 {
            0 => fs::metadata(small).map(|_| "stat")?,
            1 => fs::write(dir.join(format!("new-{n}")), "x").map(|()| "create")?,
            2 => fs::read(small).map(|_| "read")?,
            _ => fs::write(small, "y").map(|()| "copy-up of a small file")?,
        };
        longest = longest.max((begin.elapsed(), what));
        if done.load(Ordering::Relaxed) {
            break;
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    Ok(longest)
}

/// With `timeout=0` others may change the names in a lower layer.
pub(super) fn changing_lower(cx: &Cx) -> Outcome {
    only_vellum("does not look again")?;
    let layers = cx.layers("l", 2)?;
    let [top, bottom] = [0, 1].map(|at| layers.lowers[at].clone());
    for dir in [&top, &bottom] {
        fs::create_dir(dir.join("dir"))?;
    }
    for file in ["removed", "stays"] {
        fs::write(bottom.join("dir").join(file), file)?;
    }
    let mount = cx.mount_with(&layers, &["timeout=0"])?;
    let dir = mount.path("dir");
    let list = || -> Outcome<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(&dir)?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    };
    fs::write(dir.join("written"), "above")?;
    for round in 0..3 {
        ensure_eq!(list()?, ["removed", "stays", "written"], "in the beginning of round {round}");
        ensure!(!dir.join("new").exists(), "new is not there yet");
        fs::remove_file(bottom.join("dir/removed"))?;
        fs::write(bottom.join("dir/new"), "new")?;
        ensure_eq!(fs::read_to_string(dir.join("new"))?, "new", "a new file, before a listing");
        ensure_eq!(list()?, ["new", "stays", "written"], "names in round {round}");
        ensure!(!dir.join("removed").exists(), "removed is still there");
        // Long enough for names to be believed.
        std::thread::sleep(std::time::Duration::from_millis(if round == 1 { 2500 } else { 0 }));
        ensure_eq!(list()?, ["new", "stays", "written"], "names later in round {round}");
        fs::write(bottom.join("dir/removed"), "removed")?;
        fs::remove_file(bottom.join("dir/new"))?;
    }
    // Another directory in one's place.
    let whole = mount.path("whole");
    for name in ["one", "two"] {
        fs::create_dir(bottom.join("whole"))?;
        fs::write(bottom.join("whole").join(name), name)?;
        let names: Vec<_> = fs::read_dir(&whole)?.flatten().map(|entry| entry.file_name()).collect();
        ensure_eq!(names, [name], "names in a directory that was replaced");
        ensure_eq!(fs::read_to_string(whole.join(name))?, name, "its file");
        fs::remove_dir_all(bottom.join("whole"))?;
    }
    // What the mount has removed stays away.
    fs::remove_file(dir.join("stays"))?;
    fs::write(top.join("dir/stays"), "again")?;
    ensure_eq!(list()?, ["removed", "written"], "after a removal in the mount");
    Ok(())
}

/// A directory that was removed while it is open keeps taking attributes, as the kernel's overlayfs has it: if the upper layer has it.
pub(super) fn removed(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 1)?;
    for name in ["both", "lower"] {
        fs::create_dir(layers.lower().join(name))?;
    }
    let mut mount = cx.mount(&layers)?;
    for name in ["both", "upper", "lower"] {
        let path = mount.root().join(name);
        match name {
            "both" => fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?,
            "upper" => fs::create_dir(&path)?,
            _ => {}
        }
        let open = fs::File::open(&path)?;
        fs::remove_dir(&path)?;
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(5));
        let changed = [
            open.set_permissions(fs::Permissions::from_mode(0o711)),
            open.set_times(times),
            std::os::unix::fs::fchown(&open, Some(7), Some(8)),
            rustix::fs::fsetxattr(&open, "trusted.color", b"blue", rustix::fs::XattrFlags::empty())
                .map_err(Into::into),
        ];
        let seen = open.metadata()?;
        for (number, done) in changed.into_iter().enumerate() {
            // The kernel's overlayfs says ENOTDIR.
            let is_refused = done.is_err();
            ensure_eq!(is_refused, name == "lower", "{name}, change {number}: {done:?}");
        }
        if name != "lower" {
            ensure_eq!(
                (seen.mode() & 0o7777, seen.uid(), seen.gid(), seen.mtime()),
                (0o711, 7, 8, 5),
                "{name}"
            );
        }
        ensure!(path.symlink_metadata().is_err(), "{name} is there again");
    }
    mount.unmount()
}
