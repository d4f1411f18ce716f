//! What the kernel keeps to itself of data that are written, and when it tells that something went wrong.

use super::filled;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Layers, Mount, MountKind, Profile, shell, skip, source_root};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Times that a client is killed in each of the calls.
const KILLS: &str = "25";

/// How often fsync says EINTR of a file in which another client was killed.
fn interrupted(cx: &Cx, mount: &Mount) -> Outcome<u32> {
    let program = cx.dir.join("crash-clients");
    if !program.exists() {
        let source = source_root().join("tests/programs/crash-clients.c");
        shell::run(Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(source))?;
    }
    let said = shell::run(Command::new(&program).arg(mount.root()).arg(KILLS))?;
    println!("{said}");
    let sum = said.lines().find_map(|line| line.strip_prefix("sum ")?.parse().ok());
    Ok(sum.unwrap_or(u32::MAX))
}

pub(super) fn killed_clients(cx: &Cx) -> Outcome {
    if !shell::have("gcc") {
        return skip("no gcc: run make deps");
    }
    let (layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("file"), [b'x'; 8192])?))?;
    // The program fails on any other error, on one that comes twice, and on data that are not there.
    let times = interrupted(cx, &mount)?;
    let cached = cx.profile == Some(Profile::Cached);
    ensure!(cached || times == 0, "fsync was interrupted {times} times");
    mount.unmount()?;
    if cached {
        let mut mount = cx.mount_with(&layers, &["writeback=0"])?;
        ensure_eq!(interrupted(cx, &mount)?, 0, "fsync interrupted, with writeback=0");
        mount.unmount()?;
    }
    Ok(())
}

/// A filesystem of 32 MiB at `at`, until dropped.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn new(cx: &Cx, at: &'a Path) -> Outcome<Self> {
        fs::create_dir(at)?;
        let make = "truncate -s 32M \"$0\"; mkfs.ext4 -q -m 0 \"$0\"; mount -o loop \"$0\" \"$1\"";
        if let Err(stop) = shell::run(shell::bash(make).arg(cx.dir.join("small.image")).arg(at)) {
            println!("{stop:?}");
            return skip("no filesystem in a file: loop devices are not permitted here");
        }
        Ok(Self(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = shell::run(Command::new("umount").arg("--lazy").arg(self.0));
    }
}

/// Writes 64 MiB, and says which call failed first and how: a write, or the close that follows.
fn fill(path: &Path) -> Outcome<(&'static str, Option<Errno>)> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o644))?;
    for _ in 0..64 {
        if let Err(errno) = rustix::io::write(&file, &vec![b'x'; 1 << 20]) {
            return Ok(("write", Some(errno)));
        }
    }
    // close(2) itself: what a library makes of it is another matter.
    Ok(("close", crate::harness::raw::close(file).err()))
}

pub(super) fn full_disk(cx: &Cx) -> Outcome {
    let at = cx.dir.join("small");
    let _small = Small::new(cx, &at)?;
    let layers = Layers::new(&at.join("union"), 1)?;
    fs::write(layers.lower().join("big"), vec![b'l'; 2 << 20])?;
    let cached = cx.profile == Some(Profile::Cached);
    for options in [&[][..], &["writeback=0"]] {
        let mut mount = Mount::new(MountKind::under_test(), cx.profile, &layers, options)?;
        // What fsync has acknowledged before is there whatever comes.
        fs::write(mount.path("kept"), vec![b'k'; 1 << 20])?;
        let kept = fs::OpenOptions::new().read(true).write(true).open(mount.path("kept"))?;
        kept.sync_all()?;
        let (call, errno) = fill(&mount.path("full"))?;
        ensure_eq!(errno, Some(Errno::NOSPC), "the {call} that fills the disk, with {options:?}");
        if !cached || !options.is_empty() {
            ensure_eq!(call, "write", "who is told of a full disk, with {options:?}");
        }
        // dd, which nobody has taught to sync, is told.
        let dd = format!("dd if=/dev/zero of={} bs=64k count=512 status=none", mount.path("more").display());
        let output = shell::words(&dd).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && said.contains("No space left"), "dd on a full disk: {said}");
        // Once per who has the file open.
        let open = |name: &str| {
            rustix::fs::open(mount.path(name), OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o644))
        };
        let files = [open("full")?, open("full")?];
        let wrote = rustix::io::pwrite(&files[0], &vec![b'y'; 1 << 20], 60 << 20);
        if wrote.is_ok() {
            for file in &files {
                ensure_eq!(
                    rustix::fs::fsync(file),
                    Err(Errno::NOSPC),
                    "fsync on a full disk, with {options:?}"
                );
            }
        }
        drop(files);
        // Of a file that is copied block by block, too: old or new, and who wrote hears of it.
        let told = open("big").and_then(|big| {
            rustix::io::pwrite(&big, &vec![b'u'; 2 << 20], 0)?;
            rustix::fs::fsync(&big)
        });
        ensure_eq!(told, Err(Errno::NOSPC), "a file of the lower layer on a full disk, with {options:?}");
        drop(kept);
        for name in ["full", "more"] {
            fs::remove_file(mount.path(name))?;
        }
        fs::write(mount.path("after"), "there is room")?;
        fs::File::open(mount.path("after"))?.sync_all()?;
        mount.remount()?;
        ensure!(fs::read(mount.path("kept"))?.iter().all(|byte| *byte == b'k'), "what was synced is lost");
        ensure_eq!(fs::read_to_string(mount.path("after"))?, "there is room", "text");
        let big = fs::read(mount.path("big"))?;
        ensure_eq!(big.len(), 2 << 20, "length of a file that was not written whole");
        ensure!(big.chunks(4096).all(|block| block.iter().all(|byte| *byte == block[0])), "a torn block");
        mount.unmount()?;
    }
    Ok(())
}

/// A client that is killed waits until its request has been answered: none asks for much.
pub(super) fn large_copies(cx: &Cx) -> Outcome {
    const SIZE: usize = 40 << 20;
    let (_layers, mut mount) = filled(cx, |dir| {
        fs::write(dir.join("from"), "begin")?;
        Ok(fs::OpenOptions::new().write(true).open(dir.join("from"))?.set_len(SIZE as u64)?)
    })?;
    let from = fs::File::open(mount.path("from"))?;
    let to = fs::File::create(mount.path("to"))?;
    let mut copied = 0;
    while copied < SIZE {
        let at = copied as u64;
        let more = rustix::fs::copy_file_range(
            &from,
            Some(&mut at.clone()),
            &to,
            Some(&mut at.clone()),
            SIZE - copied,
        )?;
        ensure!(more > 0 && more <= 16 << 20, "{more} bytes were copied at once");
        copied += more;
    }
    drop((from, to));
    ensure!(fs::read(mount.path("from"))? == fs::read(mount.path("to"))?, "the copy differs");
    mount.unmount()
}
