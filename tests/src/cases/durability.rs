//! What a sync has acknowledged is there after a loss of power: the image of a real filesystem is copied in the moment in
//! which the call has returned, and mounted.

use super::Case;
use crate::harness::disk::Disk;
use crate::harness::mount::{MountKind, only_vellum};
use crate::harness::outcome::{Outcome, ensure};
use crate::harness::raw::Mapping;
use crate::harness::{Cx, Layers, Mount, shell, skip};
use rustix::fs::{Mode, OFlags};
use rustix::io::{ReadWriteFlags, pwrite, pwritev2};
use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

pub(super) const CASES: &[Case] = &[
    Case::mounted("durability/data-of-copies", 120, data),
    Case::mounted("durability/copies-of-before", 60, before),
    Case::mounted("durability/vellum-sync", 60, everything),
];

const PAGE: usize = 4096;

/// Sizes of files that are copied whole and by blocks, in both profiles.
const SMALL: usize = 2 * PAGE;
const LARGE: usize = 2 << 20;

/// How a program makes durable what it has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncMethod {
    Datasync,
    Sync,
    Msync,
    /// O_DSYNC.
    Opened,
    /// RWF_DSYNC.
    Flagged,
    /// The file is cut and not written to.
    Cut,
}

/// Overwrites the first page of a file in place, and syncs.
fn overwrite(path: &Path, how: SyncMethod) -> Outcome<OwnedFd> {
    let flags = OFlags::RDWR | if how == SyncMethod::Opened { OFlags::DSYNC } else { OFlags::empty() };
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let new = [b'N'; PAGE];
    match how {
        SyncMethod::Datasync | SyncMethod::Sync | SyncMethod::Opened => {
            ensure!(pwrite(&fd, &new, 0)? == PAGE, "a short write");
        }
        SyncMethod::Flagged => {
            let n = pwritev2(&fd, &[IoSlice::new(&new)], 0, ReadWriteFlags::DSYNC)?;
            ensure!(n == PAGE, "a short write");
        }
        SyncMethod::Msync => {
            let map = Mapping::shared(fd.as_fd(), PAGE, true)?;
            map.write(0, &new);
            map.sync()?;
        }
        SyncMethod::Cut => rustix::fs::ftruncate(&fd, 100)?,
    }
    match how {
        SyncMethod::Datasync | SyncMethod::Cut => rustix::fs::fdatasync(&fd)?,
        SyncMethod::Sync => rustix::fs::fsync(&fd)?,
        SyncMethod::Msync | SyncMethod::Opened | SyncMethod::Flagged => {}
    }
    Ok(fd)
}

/// One file, and what happens to it.
struct Item {
    name: &'static str,
    size: usize,
    how: SyncMethod,
    /// Before it is written to, and made durable.
    before: fn(&Path) -> Outcome,
    /// Its name at last.
    finally: &'static str,
}

const fn item(name: &'static str, size: usize, how: SyncMethod) -> Item {
    Item { name, size, how, before: |_| Ok(()), finally: name }
}

fn chmod(path: &Path) -> Outcome {
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(0o600))?)
}

fn change_block(path: &Path) -> Outcome {
    let fd = rustix::fs::open(path, OFlags::RDWR, Mode::empty())?;
    pwrite(&fd, b"x", 5 * PAGE as u64)?;
    Ok(())
}

const ITEMS: &[Item] = &[
    item("whole", SMALL, SyncMethod::Datasync),
    item("synced", SMALL, SyncMethod::Sync),
    item("mapped", SMALL, SyncMethod::Msync),
    item("opened", SMALL, SyncMethod::Opened),
    item("flagged", SMALL, SyncMethod::Flagged),
    item("cut", SMALL, SyncMethod::Cut),
    item("in/directories/below", SMALL, SyncMethod::Datasync),
    item("linked", SMALL, SyncMethod::Datasync),
    item("blocks", LARGE, SyncMethod::Datasync),
    item("blocks-mapped", LARGE, SyncMethod::Msync),
    item("blocks-flagged", LARGE, SyncMethod::Flagged),
    item("blocks-cut", LARGE, SyncMethod::Cut),
    Item { before: chmod, ..item("attributes", SMALL, SyncMethod::Datasync) },
    Item { before: chmod, ..item("attributes-mapped", SMALL, SyncMethod::Msync) },
    Item { before: change_block, ..item("blocks-again", LARGE, SyncMethod::Datasync) },
    Item {
        before: |path| Ok(fs::rename(path, path.with_file_name("renamed"))?),
        finally: "renamed",
        ..item("moved", SMALL, SyncMethod::Datasync)
    },
];

fn fill(layers: &Layers) -> Outcome {
    for item in ITEMS {
        let path = layers.lower().join(item.name);
        fs::create_dir_all(path.parent().unwrap_or(layers.lower()))?;
        fs::write(&path, vec![b'o'; item.size])?;
    }
    Ok(fs::hard_link(layers.lower().join("linked"), layers.lower().join("linked2"))?)
}

/// Mounts what a loss of power has left, and looks at a file.
fn check(cx: &Cx, image: &Path, item: &Item) -> Outcome {
    let left = Disk::of(image.to_path_buf(), "left", "loop")?;
    let layers = Layers::new(left.at(), 1)?;
    let mut mount = cx.mount(&layers)?;
    let content = fs::read(mount.path(item.finally))?;
    let (len, first) = if item.how == SyncMethod::Cut { (100, b'o') } else { (item.size, b'N') };
    let begins: Vec<u8> = content.iter().copied().take(PAGE.min(len)).collect();
    let (name, how) = (item.name, item.how);
    ensure!(content.len() == len, "{name}, {how:?}: {} bytes are left instead of {len}", content.len());
    ensure!(begins.iter().all(|byte| *byte == first), "{name}, {how:?}: what was acknowledged is lost");
    ensure!(
        content.get(PAGE..2 * PAGE).unwrap_or(b"o").iter().all(|byte| *byte == b'o'),
        "{name}: beyond it"
    );
    if item.name == "linked" {
        ensure!(fs::read(mount.path("linked2"))? == content, "the other name is another file");
    }
    mount.unmount()
}

/// Overwriting in place a file that is copied up for it, and the sync that databases commit with.
fn data(cx: &Cx) -> Outcome {
    only_vellum("need not be better than the kernel's overlayfs, which loses such data")?;
    let disk = Disk::ext4(&cx.dir, "disk")?;
    let layers = Layers::new(disk.at(), 1)?;
    fill(&layers)?;
    let mut mount = cx.mount(&layers)?;
    for (number, item) in ITEMS.iter().enumerate() {
        (item.before)(&mount.path(item.name))?;
        // What came before is durable, and nothing of it is written by chance from here on.
        rustix::fs::syncfs(fs::File::open(mount.root())?)?;
        disk.sync()?;
        let fd = overwrite(&mount.path(item.finally), item.how)?;
        disk.snapshot(&cx.dir.join(format!("left{number}.image")))?;
        drop(fd);
    }
    mount.unmount()?;
    drop(disk);
    for (number, item) in ITEMS.iter().enumerate() {
        check(cx, &cx.dir.join(format!("left{number}.image")), item)?;
    }
    Ok(())
}

/// Copies that another mount has made a moment before, which nobody knows of any more.
fn before(cx: &Cx) -> Outcome {
    only_vellum("need not be better than the kernel's overlayfs, which loses such data")?;
    for (number, (size, how)) in
        [(SMALL, SyncMethod::Datasync), (SMALL, SyncMethod::Msync), (LARGE, SyncMethod::Datasync)]
            .into_iter()
            .enumerate()
    {
        let disk = Disk::ext4(&cx.dir, &format!("disk{number}"))?;
        let layers = Layers::new(disk.at(), 1)?;
        fs::write(layers.lower().join("file"), vec![b'o'; size])?;
        disk.sync()?;
        let mut mount = cx.mount(&layers)?;
        disk.sync()?;
        change_last(&mount)?;
        mount.remount()?;
        let fd = overwrite(&mount.path("file"), how)?;
        let image = cx.dir.join("left.image");
        disk.snapshot(&image)?;
        drop(fd);
        mount.unmount()?;
        drop(disk);
        check(cx, &image, &Item { finally: "file", ..item("file", size, how) })?;
    }
    Ok(())
}

/// Copies a file up, by writing to its second block.
fn change_last(mount: &Mount) -> Outcome {
    let fd = rustix::fs::open(mount.path("file"), OFlags::RDWR, Mode::empty())?;
    pwrite(&fd, b"o", PAGE as u64)?;
    Ok(())
}

/// `vellum sync`: everything, also what lies in the kernel's cache of the mount, and what nobody has synced.
fn everything(cx: &Cx) -> Outcome {
    const FILES: usize = 3;
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("only Vellum has such a command");
    };
    let sync = |path: &Path| {
        let mut command = Command::new(&program);
        command.arg("sync").arg(path);
        command
    };
    let disk = Disk::ext4(&cx.dir, "disk")?;
    let layers = Layers::new(disk.at(), 1)?;
    for name in ["small", "large"] {
        fs::write(layers.lower().join(name), vec![b'o'; if name == "small" { SMALL } else { LARGE }])?;
    }
    // Maps of blocks are written as the files are synced.
    let options = ["block_map=sidecar"];
    let mut mount = cx.mount_with(&layers, &options)?;
    disk.sync()?;
    fs::create_dir(mount.path("dir"))?;
    let new = |number: usize| vec![number as u8 + 1; 6 << 20];
    // Closing a file would write its pages.
    let mut open = Vec::new();
    for number in 0..FILES {
        let mut file = fs::File::create(mount.path(&format!("dir/{number}")))?;
        std::io::Write::write_all(&mut file, &new(number))?;
        open.push(file);
    }
    for name in ["small", "large"] {
        let fd = rustix::fs::open(mount.path(name), OFlags::RDWR, Mode::empty())?;
        pwrite(&fd, &[b'N'; PAGE], 0)?;
    }
    // Asked of something in the mount, be it a directory or not.
    shell::run(&mut sync(&mount.path("dir/0")))?;
    let image = cx.dir.join("left.image");
    disk.snapshot(&image)?;
    drop(open);
    shell::refused(&mut sync(&cx.dir), "not in a vellum mount")?;
    mount.unmount()?;
    drop(disk);
    let left = Disk::of(image, "left", "loop")?;
    let layers = Layers::new(left.at(), 1)?;
    let mut mount = cx.mount_with(&layers, &options)?;
    for number in 0..FILES {
        let found = fs::read(mount.path(&format!("dir/{number}"))).unwrap_or_default();
        ensure!(found == new(number), "file {number} has {} bytes, or others", found.len());
    }
    for name in ["small", "large"] {
        let found = fs::read(mount.path(name))?;
        ensure!(found.starts_with(&[b'N'; PAGE]), "{name}: what was written is lost");
        ensure!(found.get(PAGE..).unwrap_or_default().iter().all(|byte| *byte == b'o'), "{name}: beyond it");
    }
    mount.unmount()
}
