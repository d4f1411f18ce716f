//! Set-id bits and capabilities of a program go when somebody without rights writes to it, and running it finds them gone.

use super::same;
use crate::harness::outcome::Outcome;
use crate::harness::raw::AsUser;
use crate::harness::{Cx, skip};
use rustix::fs::{FallocateFlags, Mode, OFlags, XattrFlags};
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Whose the programs are, and a stranger.
const OWNER: u32 = 1000;
const STRANGER: u32 = 65_534;
/// Shows the ids that it runs with.
const PROGRAM: &str = "/usr/bin/id";
const PAGE: usize = 4096;
pub(super) const CAPABILITY: &str = "security.capability";
/// cap_net_raw in the permitted set, as the kernel stores it (version 2).
pub(super) const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A way to change a program that leaves it one.
type Way = (&'static str, fn(&Path, &[u8]) -> Outcome);

const WAYS: &[Way] = &[
    ("write", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        rustix::io::pwrite(&file, &old[..100], 0)?;
        Ok(())
    }),
    ("append", |path, _| {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::APPEND, Mode::empty())?;
        rustix::io::write(&file, b"more")?;
        Ok(())
    }),
    ("direct", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::DIRECT, Mode::empty())?;
        let mut room = vec![0; 2 * PAGE];
        let start = room.as_ptr().align_offset(PAGE);
        room[start..start + PAGE].copy_from_slice(&old[..PAGE]);
        rustix::io::pwrite(&file, &room[start..start + PAGE], 0)?;
        Ok(())
    }),
    ("allocate", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, old.len() as u64 + 9999)?)
    }),
    ("punch", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&file, hole, old.len() as u64 + 9999, 100)?)
    }),
    ("zero", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        Ok(rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, old.len() as u64, 100)?)
    }),
    ("copy-range", |path, _| {
        let from = rustix::fs::open(path, OFlags::RDONLY, Mode::empty())?;
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        rustix::fs::copy_file_range(&from, Some(&mut 0), &file, Some(&mut 0x10_0000), PAGE)?;
        Ok(())
    }),
    ("truncate", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        Ok(rustix::fs::ftruncate(&file, old.len() as u64 + 1)?)
    }),
    ("cut-and-write", |path, old| {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::TRUNC, Mode::empty())?;
        write_all(file.as_fd(), old)
    }),
    // Opening it for writing changes nothing, and looking at it less.
    ("open", |path, _| {
        drop(rustix::fs::open(path, OFlags::RDWR, Mode::empty())?);
        fs::File::open(path)?.read_exact(&mut [0; 10])?;
        Ok(())
    }),
];

fn write_all(file: rustix::fd::BorrowedFd<'_>, mut data: &[u8]) -> Outcome {
    while !data.is_empty() {
        data = &data[rustix::io::write(file, data)?..];
    }
    Ok(())
}

fn names() -> impl Iterator<Item = (String, &'static Way, u32)> {
    WAYS.iter().flat_map(|way| {
        [STRANGER, OWNER, 0].into_iter().map(move |uid| (format!("{}-by-{uid}", way.0), way, uid))
    })
}

/// Gives a program the bits and the capability, as its owner's.
fn arm(path: &Path) -> Outcome {
    chown(path, Some(OWNER), Some(OWNER))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o6777))?;
    Ok(rustix::fs::setxattr(path, CAPABILITY, &NET_RAW, XattrFlags::empty())?)
}

/// What a program is like to the kernel, and with which ids it runs when a stranger starts it.
fn look(path: &Path) -> Outcome<String> {
    let mode = fs::metadata(path)?.mode();
    let capability = rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64]).is_ok();
    let ran = Command::new(path).uid(STRANGER).gid(STRANGER).output()?;
    Ok(format!("{mode:o} capability {capability} runs as {}", String::from_utf8_lossy(&ran.stdout).trim()))
}

/// Changes all programs, and runs them: first the ones that nobody has looked at since, by running them.
fn change(dir: &Path, program: &[u8]) -> Outcome<Vec<String>> {
    let mut said = Vec::new();
    for (name, (_, way), uid) in names() {
        let path = dir.join(&name);
        // The kernel knows it well by now.
        fs::metadata(&path)?;
        {
            let _user = AsUser::new(uid, uid);
            way(&path, program)?;
        }
        let ran = Command::new(&path).uid(STRANGER).gid(STRANGER).output()?;
        said.push(format!("{name}: first runs as {}", String::from_utf8_lossy(&ran.stdout).trim()));
        said.push(format!("{name}: {}", look(&path)?));
    }
    Ok(said)
}

pub(super) fn programs(cx: &Cx) -> Outcome {
    let program = fs::read(PROGRAM)?;
    let (plain, layers) = (cx.dir.join("plain"), cx.layers("union", 1)?);
    fs::create_dir(&plain)?;
    for dir in [plain.as_path(), layers.lower()] {
        for (name, ..) in names() {
            fs::write(dir.join(&name), &program)?;
            arm(&dir.join(&name))?;
        }
    }
    let expected = change(&plain, &program)?;
    if !expected.iter().any(|line| line.contains(&format!("euid={OWNER}"))) {
        return skip("the filesystem of the tests honours no set-id bits");
    }
    let mut mount = cx.mount(&layers)?;
    same("a program of the lower layer", &expected, &change(mount.root(), &program)?)?;
    // Once more, now that all of them are in the upper layer.
    for dir in [plain.as_path(), mount.root()] {
        for (name, ..) in names() {
            arm(&dir.join(&name))?;
        }
    }
    same("a program of the upper layer", &change(&plain, &program)?, &change(mount.root(), &program)?)?;
    mount.remount()?;
    let seen =
        |dir: &Path| names().map(|(name, ..)| Ok(format!("{name}: {}", look(&dir.join(&name))?))).collect();
    let (expected, seen): (Outcome<Vec<_>>, Outcome<Vec<_>>) = (seen(&plain), seen(mount.root()));
    same("after remount", &expected?, &seen?)?;
    mount.unmount()
}
