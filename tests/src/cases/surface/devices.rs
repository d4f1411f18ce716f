//! Layers with files of several devices: subvolumes and their snapshots, and a mount of the kernel's overlayfs, in none of which a mount lies.

use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Layers, Mount, shell, skip};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something mounted, until dropped.
struct MountGuard(PathBuf);

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = shell::run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// A btrfs of its own; None: not here.
fn btrfs(cx: &Cx) -> Outcome<MountGuard> {
    if !shell::have("mkfs.btrfs") {
        return skip("mkfs.btrfs is missing: run make deps");
    }
    let at = cx.dir.join("btrfs");
    fs::create_dir(&at)?;
    let make = "truncate -s 256M \"$0\"; mkfs.btrfs -q \"$0\"; mount -o loop \"$0\" \"$1\"";
    if let Err(stop) = shell::run(shell::bash(make).arg(cx.dir.join("image")).arg(&at)) {
        return skip(format!("no btrfs here: {stop}"));
    }
    Ok(MountGuard(at))
}

/// Subvolume `a` with a file of two names, another one, and `b`, its snapshot, in which the file differs and the other does not.
fn subvolumes(dir: &Path) -> Outcome {
    let make = "btrfs -q subvolume create \"$0/a\"; echo one > \"$0/a/f\"; ln \"$0/a/f\" \"$0/a/g\"
        mkdir \"$0/a/d\"; echo same > \"$0/a/d/h\"; ln \"$0/a/d/h\" \"$0/a/i\"
        btrfs -q subvolume snapshot \"$0/a\" \"$0/b\"; echo two-two > \"$0/b/f\"";
    shell::run(shell::bash(make).arg(dir)).map(drop)
}

/// Inode number and contents by path, of all files below a directory. A listing names the numbers that stat does.
fn files(root: &Path) -> Outcome<BTreeMap<PathBuf, (u64, String)>> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let (path, meta) = (entry.path(), entry.metadata()?);
            if meta.is_dir() {
                dirs.push(path);
                continue;
            }
            ensure_eq!(entry.ino(), meta.ino(), "{}: number in the listing", path.display());
            let name = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            found.insert(name, (meta.ino(), fs::read_to_string(&path)?));
        }
    }
    Ok(found)
}

/// The files whose numbers are the same, by name.
fn groups(files: &BTreeMap<PathBuf, (u64, String)>) -> Vec<Vec<String>> {
    let mut by_number: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (path, (number, _)) in files {
        by_number.entry(*number).or_default().push(path.display().to_string());
    }
    let mut groups: Vec<_> = by_number.into_values().collect();
    groups.sort();
    groups
}

fn contents(files: &BTreeMap<PathBuf, (u64, String)>) -> BTreeMap<String, String> {
    files.iter().map(|(path, (_, text))| (path.display().to_string(), text.clone())).collect()
}

fn append(path: &Path, text: &str) -> Outcome {
    Ok(OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())?)
}

/// What is below is seen as it is, and a change shows under all names of its file and under no others.
fn keeps_apart(mut mount: Mount, below: &Path, expected: &[&[&str]], change: (&str, &str)) -> Outcome {
    let expected: Vec<Vec<String>> =
        expected.iter().map(|group| group.iter().map(ToString::to_string).collect()).collect();
    let plain = contents(&files(below)?);
    let first = files(mount.root())?;
    ensure_eq!(contents(&first), plain, "contents");
    ensure_eq!(groups(&first), expected, "files of one number");
    let (name, other) = change;
    append(&mount.path(name), "changed")?;
    let mut wanted = plain;
    for name in [name, other] {
        wanted.entry(name.to_owned()).or_default().push_str("changed");
    }
    let check = |mount: &Mount, when: &str| {
        let now = files(mount.root())?;
        ensure_eq!(contents(&now), wanted, "{when}: contents");
        ensure_eq!(groups(&now), expected, "{when}: files of one number");
        for (path, (number, _)) in &first {
            let same = now.get(path).map(|(number, _)| number);
            ensure_eq!(same, Some(number), "{when}: number of {}", path.display());
        }
        Ok(())
    };
    check(&mount, "after a change")?;
    // A successor finds what the kernel knows.
    let held = fs::File::open(mount.path(name))?;
    kill_process(mount.service()?, Signal::KILL)?;
    check(&mount, "by a successor")?;
    ensure_eq!(held.metadata()?.ino(), first.get(Path::new(name)).map_or(0, |file| file.0), "an open file");
    drop(held);
    mount.remount()?;
    check(&mount, "mounted again")?;
    mount.unmount()
}

const APART: [&[&str]; 4] = [&["a/d/h", "a/i"], &["a/f", "a/g"], &["b/d/h", "b/i"], &["b/f", "b/g"]];

/// A lower layer with a subvolume and its snapshot.
pub(super) fn below(cx: &Cx) -> Outcome {
    let at = btrfs(cx)?;
    let layers = cx.layers("union", 1)?;
    let layers = Layers { lowers: vec![at.0.join("lower")], ..layers };
    fs::create_dir(layers.lower())?;
    subvolumes(layers.lower())?;
    keeps_apart(cx.mount(&layers)?, layers.lower(), &APART, ("a/f", "a/g"))
}

/// An upper layer with both.
pub(super) fn above(cx: &Cx) -> Outcome {
    let at = btrfs(cx)?;
    let layers = Layers::new(&at.0, 1)?;
    subvolumes(layers.upper())?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    shell::run(Command::new("cp").arg("-a").arg(layers.upper().join(".")).arg(&plain))?;
    keeps_apart(cx.mount(&layers)?, &plain, &APART, ("a/f", "a/g"))?;
    // What was made in a subvolume is a file like any other.
    let mut mount = cx.mount(&layers)?;
    fs::write(mount.path("b/new"), "new")?;
    fs::hard_link(mount.path("b/new"), mount.path("b/again"))?;
    fs::rename(mount.path("b/new"), mount.path("b/d/moved"))?;
    append(&mount.path("b/again"), "er")?;
    ensure_eq!(fs::read_to_string(mount.path("b/d/moved"))?, "newer", "a file made in a snapshot");
    fs::remove_file(mount.path("a/f"))?;
    ensure!(fs::metadata(mount.path("a/g"))?.nlink() == 1, "links of what has lost a name");
    ensure_eq!(fs::metadata(mount.path("b/g"))?.nlink(), 2, "links of the snapshot's file");
    mount.unmount()
}

/// A mount of the kernel's overlayfs as a lower layer: files of its two layers have the same numbers, on devices of their own.
pub(super) fn stacked(cx: &Cx) -> Outcome {
    let base = cx.layers("base", 2)?;
    let base = Layers { upper: None, ..base };
    let mut filled = Vec::new();
    for (lower, name) in base.lowers.iter().zip(["a", "b"]) {
        shell::run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(lower))?;
        filled.push(MountGuard(lower.clone()));
        fs::create_dir(lower.join(name))?;
        fs::write(lower.join(name).join("f"), name)?;
        fs::hard_link(lower.join(name).join("f"), lower.join(name).join("g"))?;
        fs::write(lower.join(name).join("h"), format!("{name} alone"))?;
    }
    let mut kernel = Command::new("mount");
    let options = format!("lowerdir={},xino=off", base.lowerdir());
    kernel.args(["-t", "overlay", "overlay", "-o", &options]).arg(&base.merged);
    if let Err(stop) = shell::run(&mut kernel) {
        return skip(format!("no overlayfs here: {stop}"));
    }
    let lower = MountGuard(base.merged.clone());
    let layers = cx.layers("union", 1)?;
    let layers = Layers { lowers: vec![base.merged.clone()], ..layers };
    let apart: [&[&str]; 4] = [&["a/f", "a/g"], &["a/h"], &["b/f", "b/g"], &["b/h"]];
    keeps_apart(cx.mount(&layers)?, &base.merged, &apart, ("a/f", "a/g"))?;
    drop((lower, filled));
    Ok(())
}
