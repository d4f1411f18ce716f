//! Tasks on a tree of small files.
//!
//! Their calls are the C library's, as those of other programs are, so that a library which was loaded in between sees them.

use super::task::{Env, Metric, Task};
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::programs;
use crate::testbed::{self, Lower, TREE_NAME};
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// A task on a tree of small files, with everything else as it mostly is.
pub(super) const SMALL: Task = Task {
    name: "",
    title: "",
    state: "",
    lower: Lower::Tree,
    alters: false,
    only: None,
    drops_caches: false,
    long: false,
    space: false,
    metric: Metric::Time,
    operations: |testbed| testbed.tree.files.len(),
    passes: 1,
    clones: |_| 1,
    tenants: false,
    cache: None,
    library: true,
    cores: 1,
    needs: || None,
    prepare: warm,
    run: |_| Ok(()),
};

/// Larger than any file of the tree, in bytes.
const BUFFER: usize = 512 * 1024;

/// A pattern that is in no file.
const NOWHERE: &str = "zzz-nowhere-zzz";

fn open_tree(env: &Env<'_>) -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(AT_FDCWD, &env.root.join(TREE_NAME), flags, Mode::empty()).doing(|| "opening the tree")
}

/// Opens, reads and closes every file, as a program does that does not know their sizes.
pub(super) fn open_read_close(env: &Env<'_>) -> Result<()> {
    let tree = open_tree(env)?;
    let mut buffer = vec![0; BUFFER];
    for (path, size) in &env.testbed.tree.files {
        let say = || format!("reading {}", path.display());
        let file =
            openat(tree.as_fd(), path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).doing(say)?;
        let mut got = 0;
        loop {
            match nix::unistd::read(&file, &mut buffer[..]).doing(say)? {
                0 => break,
                more => got += more,
            }
        }
        if got != *size {
            return Err(Failure::new(format!("{}: {got} bytes of {size}", path.display())));
        }
    }
    interrupt::check()
}

/// Looks every name up, then reads every file.
pub(super) fn warm(env: &Env<'_>) -> Result<()> {
    lstat_all(env)?;
    open_read_close(env)
}

/// lstat of every file.
pub(super) fn lstat_all(env: &Env<'_>) -> Result<()> {
    let tree = open_tree(env)?;
    for (path, _) in &env.testbed.tree.files {
        fstatat(tree.as_fd(), path, AtFlags::AT_SYMLINK_NOFOLLOW)
            .doing(|| format!("lstat of {}", path.display()))?;
    }
    interrupt::check()
}

/// Drops the kernel's caches.
pub(super) fn cold(_: &Env<'_>) -> Result<()> {
    testbed::drop_caches()
}

/// Sees to it that the archive exists, and drops the kernel's caches.
pub(super) fn cold_archive(env: &Env<'_>) -> Result<()> {
    env.testbed.archive()?;
    testbed::drop_caches()
}

/// Reads the archive into the page cache.
pub(super) fn read_archive(env: &Env<'_>) -> Result<()> {
    let mut archive = File::open(env.testbed.archive()?).doing(|| "opening the archive")?;
    std::io::copy(&mut archive, &mut std::io::sink()).doing(|| "reading the archive")?;
    rustix::fs::sync();
    Ok(())
}

pub(super) fn grep(env: &Env<'_>) -> Result<()> {
    let status = Command::new("grep")
        .args(["-r", NOWHERE])
        .arg(env.root.join(TREE_NAME))
        .stdout(Stdio::null())
        .status()
        .doing(|| "grep")?;
    interrupt::check()?;
    // 1: no line was found; 2: there were errors.
    if status.code() == Some(1) { Ok(()) } else { Err(Failure::new(format!("grep: {status}"))) }
}

pub(super) fn find(env: &Env<'_>) -> Result<()> {
    programs::run(Command::new("find").arg(env.root.join(TREE_NAME)).args(["-type", "f", "-size", "+1"]))
}

pub(super) fn untar(env: &Env<'_>) -> Result<()> {
    programs::run(Command::new("tar").arg("-xf").arg(env.testbed.archive()?).arg("-C").arg(env.root))
}

pub(super) fn untar_and_sync(env: &Env<'_>) -> Result<()> {
    untar(env)?;
    rustix::fs::sync();
    Ok(())
}

pub(super) fn remove(env: &Env<'_>) -> Result<()> {
    programs::run(Command::new("rm").arg("-rf").arg(env.root.join(TREE_NAME)))
}

pub(super) fn rename(env: &Env<'_>) -> Result<()> {
    programs::run(Command::new("mv").arg(env.root.join(TREE_NAME)).arg(env.root.join("moved")))
}

pub(super) fn change_mode(env: &Env<'_>) -> Result<()> {
    programs::run(Command::new("chmod").args(["-R", "g+w"]).arg(env.root.join(TREE_NAME)))
}

/// Looks up every file of the largest tree.
pub(super) fn look_up_all(env: &Env<'_>) -> Result<()> {
    let (dirs, files) = env.testbed.million();
    for number in 0..dirs {
        interrupt::check()?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = openat(AT_FDCWD, &env.root.join(number.to_string()), flags, Mode::empty())
            .doing(|| "opening a directory")?;
        for file in 0..files {
            fstatat(&dir, file.to_string().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
                .doing(|| "looking a file up")?;
        }
    }
    Ok(())
}
