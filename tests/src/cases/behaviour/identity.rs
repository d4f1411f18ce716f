//! One file stays one file: hard links, inode numbers, handles.

use super::filled;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::raw::{name_to_handle, open_by_handle};
use crate::harness::{Cx, Layers, Mount, MountKind, PATIENCE, shell, tree};
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

fn append(path: &Path, text: &str) -> Outcome {
    use std::io::Write;
    Ok(fs::OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())?)
}

pub(super) fn hard_links(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| {
        fs::write(dir.join("a"), "0")?;
        fs::create_dir(dir.join("d"))?;
        fs::hard_link(dir.join("a"), dir.join("d/b"))?;
        Ok(fs::hard_link(dir.join("a"), dir.join("c"))?)
    })?;
    let check = |root: &Path, names: &[&str], text: &str, when: &str| {
        let first = fs::metadata(root.join(names[0]))?.ino();
        for name in names {
            let meta = fs::metadata(root.join(name)).doing(format!("{when}: {name}"))?;
            ensure_eq!(fs::read_to_string(root.join(name))?, text, "{when}: text of {name}");
            ensure_eq!(meta.nlink(), names.len() as u64, "{when}: links of {name}");
            ensure_eq!(meta.ino(), first, "{when}: inode of {name}");
        }
        Ok(())
    };
    check(mount.root(), &["a", "d/b", "c"], "0", "at first")?;
    append(&mount.path("a"), "1")?;
    check(mount.root(), &["a", "d/b", "c"], "01", "after a write to a")?;
    mount.remount()?;
    check(mount.root(), &["a", "d/b", "c"], "01", "after remount")?;
    append(&mount.path("d/b"), "2")?;
    fs::hard_link(mount.path("c"), mount.path("e"))?;
    check(mount.root(), &["a", "d/b", "c", "e"], "012", "after a write to b and a link of c")?;
    fs::remove_file(mount.path("a"))?;
    fs::rename(mount.path("c"), mount.path("d/f"))?;
    check(mount.root(), &["d/b", "d/f", "e"], "012", "after removing and renaming")?;
    mount.crash()?;
    check(mount.root(), &["d/b", "d/f", "e"], "012", "after kill -9")?;
    append(&mount.path("d/f"), "3")?;
    fs::set_permissions(mount.path("e"), fs::Permissions::from_mode(0o600))?;
    check(mount.root(), &["d/b", "d/f", "e"], "0123", "after a write to f")?;
    mount.unmount()?;
    let other = cx.mount(&layers.as_lowers("again")?)?;
    check(other.root(), &["d/b", "d/f", "e"], "0123", "the upper as a lower")?;
    drop(other);
    mount.mount()?;
    for name in ["d/b", "d/f", "e"] {
        fs::remove_file(mount.path(name))?;
    }
    ensure_eq!(tree::take(mount.root(), 0)?.len(), 2, "entries after removing all names");
    mount.unmount()
}

/// What is done for each name of a file costs the same however many there are: else this takes minutes.
pub(super) fn many_links(cx: &Cx) -> Outcome {
    const COUNT: usize = 20_000;
    let (_layers, mut mount) = filled(cx, |dir| {
        fs::create_dir(dir.join("d"))?;
        fs::create_dir(dir.join("e"))?;
        fs::write(dir.join("d/0"), "text")?;
        for n in 1..COUNT {
            fs::hard_link(dir.join("d/0"), dir.join(format!("{}/{n}", ["d", "e"][n % 2])))?;
        }
        Ok(())
    })?;
    let check = |root: &Path, left: usize, when: &str| {
        let (mut names, mut numbers) = (0, BTreeSet::new());
        for entry in fs::read_dir(root.join("d"))?.chain(fs::read_dir(root.join("e"))?) {
            let meta = entry?.metadata()?;
            ensure_eq!(meta.nlink(), left as u64, "{when}: links");
            numbers.insert(meta.ino());
            names += 1;
        }
        ensure_eq!((names, numbers.len()), (left, 1), "{when}: names and inodes");
        Ok(())
    };
    check(mount.root(), COUNT, "at first")?;
    fs::set_permissions(mount.path("d/0"), fs::Permissions::from_mode(0o600))?;
    check(mount.root(), COUNT, "after copy-up")?;
    for n in 0..COUNT / 2 {
        let name = format!("{}/{n}", ["d", "e"][n % 2]);
        if n % 4 == 0 {
            fs::rename(mount.path(&name), mount.path(&format!("{name}-renamed")))?;
        } else {
            fs::remove_file(mount.path(&name))?;
        }
    }
    let left = COUNT / 2 + COUNT / 8;
    check(mount.root(), left, "after removing and renaming")?;
    mount.remount()?;
    check(mount.root(), left, "after remount")?;
    mount.unmount()
}

fn inodes(root: &Path) -> Outcome<BTreeMap<String, u64>> {
    let tree = tree::take(root, 0)?;
    tree::inodes_are_unique(&tree)?;
    Ok(tree.into_iter().map(|(path, node)| (path, node.ino)).collect())
}

pub(super) fn inode_numbers(cx: &Cx) -> Outcome {
    let (_layers, mut mount) = filled(cx, |dir| {
        for sub in ["one", "two", "one/deep"] {
            fs::create_dir(dir.join(sub))?;
            for n in 0..5 {
                fs::write(dir.join(sub).join(n.to_string()), format!("{n}"))?;
            }
        }
        Ok(std::os::unix::fs::symlink("one", dir.join("link"))?)
    })?;
    fs::write(mount.path("new"), "made in the upper")?;
    let before = inodes(mount.root())?;
    append(&mount.path("one/0"), "more")?;
    fs::set_permissions(mount.path("one/1"), fs::Permissions::from_mode(0o600))?;
    fs::set_permissions(mount.path("two"), fs::Permissions::from_mode(0o700))?;
    std::os::unix::fs::lchown(mount.path("link"), Some(5), Some(5))?;
    fs::write(mount.path("one/deep/3"), "overwritten")?;
    ensure_eq!(inodes(mount.root())?, before, "after copy-up");
    mount.remount()?;
    ensure_eq!(inodes(mount.root())?, before, "after remount");
    fs::rename(mount.path("one"), mount.path("renamed"))?;
    fs::rename(mount.path("two/4"), mount.path("renamed/from-two"))?;
    let mut expected: BTreeMap<String, u64> = before
        .into_iter()
        .map(|(path, ino)| {
            let rest = path.strip_prefix("one").filter(|rest| rest.is_empty() || rest.starts_with('/'));
            (rest.map_or(path.clone(), |rest| format!("renamed{rest}")), ino)
        })
        .collect();
    if let Some(ino) = expected.remove("two/4") {
        expected.insert("renamed/from-two".into(), ino);
    }
    ensure_eq!(inodes(mount.root())?, expected, "after renames");
    mount.crash()?;
    ensure_eq!(inodes(mount.root())?, expected, "after renames and kill -9");
    let device = fs::metadata(mount.root())?.dev();
    for path in expected.keys() {
        ensure_eq!(fs::symlink_metadata(mount.path(path))?.dev(), device, "device of {path}");
    }
    mount.unmount()
}

pub(super) fn handles(cx: &Cx) -> Outcome {
    let (_layers, mut mount) = filled(cx, |dir| {
        fs::create_dir(dir.join("dir"))?;
        Ok(fs::write(dir.join("dir/file"), "0")?)
    })?;
    fs::write(mount.path("upper"), "u")?;
    let root = rustix::fs::open(mount.root(), OFlags::DIRECTORY, Mode::empty())?;
    let read = |handle: &_, when: &str| {
        let mut text = String::new();
        let fd = open_by_handle(root.as_fd(), handle).doing(format!("open_by_handle_at {when}"))?;
        fs::File::from(fd).read_to_string(&mut text)?;
        Ok::<_, crate::harness::Stop>(text)
    };
    let file = name_to_handle(&mount.path("dir/file")).doing("name_to_handle_at")?;
    let upper = name_to_handle(&mount.path("upper")).doing("name_to_handle_at")?;
    ensure_eq!(read(&file, "at first")?, "0", "text");
    append(&mount.path("dir/file"), "1")?;
    ensure_eq!(read(&file, "after copy-up")?, "01", "text after copy-up");
    fs::rename(mount.path("dir"), mount.path("moved"))?;
    fs::rename(mount.path("upper"), mount.path("moved/upper"))?;
    // Makes the kernel forget what it need not remember.
    let _ = shell::run(&mut shell::bash("sync; echo 2 > /proc/sys/vm/drop_caches"));
    ensure_eq!(read(&file, "after a rename")?, "01", "text after a rename");
    ensure_eq!(read(&upper, "of a file of the upper after a rename")?, "u", "text");
    fs::remove_file(mount.path("moved/upper"))?;
    let _ = shell::run(&mut shell::bash("echo 2 > /proc/sys/vm/drop_caches"));
    ensure!(open_by_handle(root.as_fd(), &upper).is_err(), "a removed file opens by its handle");
    drop(root);
    mount.unmount()
}

/// Whether the service has something open that has no name any more.
fn holds_removed(service: rustix::process::Pid) -> Outcome<bool> {
    let mut held = false;
    for entry in fs::read_dir(format!("/proc/{}/fd", service.as_raw_nonzero()))? {
        // A descriptor may be closed meanwhile.
        let target = fs::read_link(entry?.path()).unwrap_or_default();
        held |=
            target.to_string_lossy().contains("/upper/") && target.to_string_lossy().ends_with(" (deleted)");
    }
    Ok(held)
}

pub(super) fn handles_of_links(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 1)?;
    for dir in [layers.lower(), layers.upper()] {
        let side = if dir == layers.lower() { "lower" } else { "upper" };
        for when in ["never", "before", "after"] {
            for removed in ["a", "b"] {
                let base = dir.join(format!("{side}-{when}-{removed}"));
                fs::create_dir(&base)?;
                fs::write(base.join("a"), "text")?;
                fs::hard_link(base.join("a"), base.join("b"))?;
            }
        }
    }
    let mut mount = cx.mount(&layers)?;
    let forget = || shell::run(&mut shell::bash("sync; echo 2 > /proc/sys/vm/drop_caches"));
    let root = rustix::fs::open(mount.root(), OFlags::DIRECTORY, Mode::empty())?;
    let look = |handle: &_| {
        let mut file = fs::File::from(open_by_handle(root.as_fd(), handle)?);
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok::<_, crate::harness::Stop>((text, file.metadata()?.nlink()))
    };
    for side in ["lower", "upper"] {
        for when in ["never", "before", "after"] {
            for removed in ["a", "b"] {
                let what = format!("{side}-{when}-{removed}");
                let (gone, stays) = (
                    mount.path(&what).join(removed),
                    mount.path(&what).join(if removed == "a" { "b" } else { "a" }),
                );
                let handle = name_to_handle(&mount.path(&what).join("a")).doing("name_to_handle_at")?;
                if when == "before" {
                    forget()?;
                }
                fs::remove_file(&gone)?;
                if when == "after" {
                    forget()?;
                }
                for again in 0..2 {
                    let seen = look(&handle).doing(format!("{what}: open_by_handle_at, {again}"))?;
                    ensure_eq!(seen, ("text".to_owned(), 1), "{what}: text and links, {again}");
                    forget()?;
                }
                // Both are one file.
                append(&stays, "+")?;
                ensure_eq!(look(&handle)?.0, "text+", "{what}: text after an append by name");
                ensure_eq!(fs::metadata(&stays)?.len(), 5, "{what}: size by name");
                fs::remove_file(&stays)?;
                forget()?;
                ensure!(
                    open_by_handle(root.as_fd(), &handle).is_err(),
                    "{what}: a removed file opens by its handle"
                );
            }
        }
    }
    if crate::harness::MountKind::under_test().is_vellum() {
        // The kernel's word that it has forgotten a file comes after the call.
        let until = Instant::now() + PATIENCE;
        while holds_removed(mount.service()?)? {
            ensure!(Instant::now() < until, "the service holds files that have been removed");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    drop(root);
    mount.unmount()
}

/// A lower file with more names than the upper's filesystem gives to one: what is changed by one name is another file from then on, at once, as
/// with the kernel's overlayfs. And one that is larger than files can be there is refused by the first call that asks.
pub(super) fn more_than_the_upper_takes(cx: &Cx) -> Outcome {
    const NAMES: usize = 65_010;
    let (lower, image) = (cx.dir.join("memory"), cx.dir.join("ext4"));
    fs::create_dir_all(&lower)?;
    fs::create_dir_all(&image)?;
    let make =
        "mount -t tmpfs -o nr_inodes=0 tmpfs \"$0\"; truncate -s 64M \"$1.image\"; mkfs.ext4 -q \"$1.image\"
        mount -o loop \"$1.image\" \"$1\"";
    if let Err(stop) = shell::run(shell::bash(make).arg(&lower).arg(&image)) {
        return crate::harness::skip(format!("no ext4 in a file here: {stop}"));
    }
    fs::write(lower.join("0"), "below")?;
    for name in 1..NAMES {
        fs::hard_link(lower.join("0"), lower.join(name.to_string()))?;
    }
    fs::File::create(lower.join("huge"))?.set_len(1 << 45)?;
    let layers = |name: &str| -> Outcome<Layers> {
        let layers = Layers::new(&image.join(name), 1)?;
        Ok(Layers { lowers: vec![lower.clone()], merged: cx.layers(name, 0)?.merged, ..layers })
    };
    // It knows three names of the file already.
    let change = |root: &Path| -> Outcome<Vec<String>> {
        let at = |name: &str| root.join(name);
        for name in ["5", "6", "12"] {
            ensure_eq!(fs::metadata(at(name))?.nlink(), NAMES as u64, "links");
        }
        append(&at("5"), " more")?;
        fs::OpenOptions::new().write(true).open(at("5"))?.sync_all()?;
        fs::set_permissions(at("7"), fs::Permissions::from_mode(0o600))?;
        fs::hard_link(at("8"), at("new"))?;
        fs::remove_file(at("9"))?;
        fs::rename(at("10"), at("moved"))?;
        let removed = fs::File::open(at("11"))?;
        fs::remove_file(at("11"))?;
        ensure_eq!(std::io::read_to_string(&removed)?, "below", "a removed one that is open");
        look(root)
    };
    let expected = {
        let mut mount = Mount::new(MountKind::Kernel, None, &layers("kernel")?, &["index=off"])?;
        let expected = change(mount.root())?;
        mount.unmount()?;
        expected
    };
    let mut mount = cx.mount(&layers("union")?)?;
    super::same("changed", &expected, &change(mount.root())?)?;
    let number = fs::metadata(mount.path("5"))?.ino();
    ensure!(number != fs::metadata(mount.path("6"))?.ino(), "two files of one number");
    rustix::process::kill_process(mount.service()?, rustix::process::Signal::KILL)?;
    super::same("by a successor", &expected, &look(mount.root())?)?;
    ensure_eq!(fs::metadata(mount.path("5"))?.ino(), number, "the number, by a successor");
    mount.remount()?;
    super::same("mounted again", &expected, &look(mount.root())?)?;
    ensure_eq!(fs::metadata(mount.path("5"))?.ino(), number, "the number, mounted again");
    too_large(cx, &mount.path("huge"))?;
    mount.unmount()
}

/// What the names are like that were changed, and one that was not.
fn look(root: &Path) -> Outcome<Vec<String>> {
    let mut said = Vec::new();
    for name in ["5", "6", "7", "8", "new", "9", "moved", "11", "12"] {
        said.push(match fs::metadata(root.join(name)) {
            Ok(meta) => {
                let text = fs::read_to_string(root.join(name))?;
                format!("{name} {:o} of {} links: {text}", meta.mode(), meta.nlink())
            }
            Err(error) => format!("{name}: {error}"),
        });
    }
    Ok(said)
}

fn too_large(cx: &Cx, huge: &Path) -> Outcome {
    let refused = |done: std::io::Result<()>| done.err().and_then(|e| e.raw_os_error()) == Some(27);
    ensure!(refused(fs::set_permissions(huge, fs::Permissions::from_mode(0o600))), "chmod: not EFBIG");
    let open = fs::OpenOptions::new().write(true).open(huge);
    if cx.profile == Some(crate::harness::Profile::Passthrough) {
        ensure!(refused(open.map(drop)), "open: not EFBIG");
    } else {
        // There is no request for an open.
        let file = open?;
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0)?;
        ensure!(refused(file.sync_all()), "fsync: not EFBIG");
    }
    Ok(())
}
