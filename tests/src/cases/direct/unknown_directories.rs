//! Paths of directories that the kernel does not know, which the service goes alone, and changes of what it does not know.

use super::client::{CallAnswer, Program, settled};
use super::{Ground, SETTLED, forget, status};
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::{Cx, PATIENCE, shell};
use libc::{O_CREAT, O_EXCL, O_RDONLY, O_WRONLY};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use vellum_ring::files::{
    ASK_KERNEL, FOLLOW, LOOK, SET_ACCESSED, SET_GROUP, SET_MODE, SET_MODIFIED, SET_OWNER,
};

const EXIST: u32 = libc::EEXIST as u32;
const ALL: u64 = SET_MODE | SET_OWNER | SET_GROUP | SET_ACCESSED | SET_MODIFIED;
const NOBODYS: [u32; 2] = [0, 0];

fn make_file(program: &Program, dir: u64, name: &str) -> Outcome {
    program.opened(dir, name, O_CREAT | O_EXCL | O_WRONLY, 0o600)?.write_all(b"by ring")?;
    Ok(())
}

fn set_mode(program: &Program, dir: u64, name: &str, mode: u32) -> Outcome<CallAnswer<()>> {
    program.set(dir, name, (SET_MODE, mode), NOBODYS, [0; 2])
}

/// Has the kernel know what is at a path until this is dropped: it forgets what nobody holds, whenever anybody on the host has it do so.
fn keep_known(path: &Path) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Asks until the answer is another than that the kernel knows the path, which it is made to forget. The service hears of that later, and somebody
/// else on the host may just have looked.
fn forgotten<T>(mut ask: impl FnMut() -> Outcome<CallAnswer<T>>) -> Outcome<CallAnswer<T>> {
    let begin = Instant::now();
    loop {
        forget()?;
        let answered = ask()?;
        if !matches!(answered, Err(LOOK)) || begin.elapsed() > PATIENCE {
            return Ok(answered);
        }
    }
}

/// A tree that the kernel has not heard of, until it does.
pub(super) fn unseen(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let program = ground.program()?;
    let new = ground.path("new");
    let dir = program.enter(&new)?.or_else(status)?;
    std::thread::sleep(SETTLED);
    for name in ["t", "t/a", "t/a/b"] {
        program.made_dir(dir, name, 0o700)?;
    }
    make_file(&program, dir, "t/a/b/f")?;
    settled(|| program.make_link(dir, "t/a/l", "b/f"))?.or_else(status)?;
    let times = [1_000_000_005, (-3_000_000_000_i64).cast_unsigned()];
    for (name, mode) in [("t/a/b/f", 0o640), ("t/a/b", 0o2755), ("t/a", 0o755)] {
        program.set(dir, name, (ALL, mode), NOBODYS, times)?.or_else(status)?;
    }
    program.set(dir, "t/a/l", (ALL & !SET_MODE, 0), NOBODYS, times)?.or_else(status)?;
    wrong(&program, dir)?;
    let held = program.open_existing(dir, "t/a/b/f")?.metadata()?;
    for (name, mode) in [("t/a", 0o40_755), ("t/a/b", 0o42_755), ("t/a/b/f", 0o100_640), ("t/a/l", 0o120_777)]
    {
        let _kept = keep_known(&new.join(name))?;
        let seen = fs::symlink_metadata(new.join(name))?;
        let found = (seen.mode(), seen.atime(), seen.atime_nsec(), seen.mtime());
        ensure_eq!(found, (mode, 1, 5, -3), "{name}, as it is seen through the mount");
        if name == "t/a/b/f" {
            ensure_eq!((held.ino(), held.size()), (seen.ino(), seen.size()), "number and size");
        }
        // From now on it is the kernel's.
        ensure_eq!(set_mode(&program, dir, name, 0o700)?, Err(LOOK), "{name}, which the kernel knows");
    }
    ensure_eq!(fs::read(new.join("t/a/l"))?, b"by ring", "where the link leads");
    let kept = keep_known(&new.join("t/a/b/f"))?;
    ensure_eq!(program.find(dir, "t/a/b/f")?.err(), Some(LOOK), "by a path that the kernel knows");
    drop(kept);
    forgotten(|| settled(|| program.find(dir, "t/a/b/f")))?.or_else(status)?;
    moved(&ground, &program, dir)?;
    closed(&ground, &program, dir)?;
    // Of what another program has entered nothing can be had.
    let other = ground.program()?;
    let theirs = other.enter(&new)?.or_else(status)?;
    std::thread::sleep(SETTLED);
    program.made_dir(dir, "mine", 0o755)?;
    ensure_eq!(other.make_dir(theirs, "mine/x", 0o755)?, Err(LOOK), "in a directory of another program");
    program.made_dir(dir, "mine/x", 0o755)?;
    kill_process(ground.mount.service()?, Signal::KILL)?;
    ensure!(new.join("mine/x").is_dir(), "after a kill");
    forget()?;
    let program = ground.program()?;
    let dir = program.enter(&new)?.or_else(status)?;
    ensure_eq!(program.make_dir(dir, "mine/y", 0o755)?, Err(LOOK), "in one that was made before a kill");
    Ok(())
}

/// What is not done: by a path that is none, or because it is the kernel's to judge.
fn wrong(program: &Program, dir: u64) -> Outcome {
    for path in ["/t/x", "t//x", "t/./x", "t/../x", "../new/t/x", "t/a/b/", "t/.."] {
        ensure_eq!(program.make_dir(dir, path, 0o700)?, Err(ASK_KERNEL), "{path}");
    }
    let deep = format!("{}x", "t/".repeat(200));
    for path in ["t/a/b/f/x", "t/a/l/x", "t/none/x", &deep] {
        ensure_eq!(program.make_dir(dir, path, 0o700)?, Err(LOOK), "{path}");
    }
    ensure_eq!(settled(|| program.make_link(dir, "t/a/l", "x"))?, Err(EXIST), "a link in place of one");
    ensure_eq!(program.make_link(dir, "t/a/none", "")?, Err(ASK_KERNEL), "a link to nothing");
    ensure_eq!(program.make_link(dir, "t/a/none", "a\0b")?, Err(ASK_KERNEL), "a link to no string");
    let set = |name, which, mode, owners| program.set(dir, name, (which, mode), owners, [0; 2]);
    ensure_eq!(set("t/a/none", SET_MODE, 0, NOBODYS)?, Err(ASK_KERNEL), "of nothing");
    ensure_eq!(set("t/a/l", SET_MODE, 0, NOBODYS)?, Err(ASK_KERNEL), "the mode of a link");
    ensure_eq!(set("t/a/l", SET_MODIFIED | FOLLOW, 0, NOBODYS)?, Err(ASK_KERNEL), "through a link");
    ensure_eq!(set("t/a/b/f", SET_OWNER, 0, [5, 5])?, Err(ASK_KERNEL), "a file given away");
    ensure_eq!(set("t/a/b/f", SET_MODE, 0o4755, NOBODYS)?, Err(ASK_KERNEL), "a program with set-id bits");
    ensure_eq!(set("t/a/b/f", 1 << 20, 0, NOBODYS)?, Err(ASK_KERNEL), "what is not known");
    Ok(())
}

/// A directory that goes elsewhere is not found where it was, nor is what comes in its place taken for it.
fn moved(ground: &Ground<'_>, program: &Program, dir: u64) -> Outcome {
    let t = ground.path("new/t");
    fs::rename(t.join("a"), t.join("z"))?;
    forget()?;
    ensure_eq!(program.find(dir, "t/a/b/f")?.err(), Some(LOOK), "where it was");
    forgotten(|| settled(|| program.find(dir, "t/z/b/f")))?.or_else(status)?;
    symlink("z", t.join("a"))?;
    forget()?;
    ensure_eq!(program.open(dir, "t/a/b/f", O_RDONLY, 0)?.err(), Some(LOOK), "through a link");
    fs::remove_dir_all(t.join("z/b"))?;
    fs::create_dir(t.join("z/b"))?;
    forget()?;
    ensure_eq!(program.make_dir(dir, "t/z/b/x", 0o700)?, Err(LOOK), "in another directory of that name");
    Ok(())
}

/// Directories that one may not pass through, as far as the service can tell.
fn closed(ground: &Ground<'_>, program: &Program, dir: u64) -> Outcome {
    for name in ["c", "c/d"] {
        program.made_dir(dir, name, 0o755)?;
    }
    make_file(program, dir, "c/d/f")?;
    set_mode(program, dir, "c", 0o600)?.or_else(status)?;
    // Root may, but that is the kernel's to say.
    ensure_eq!(
        program.find(dir, "c/d/f")?.err(),
        Some(ASK_KERNEL),
        "through a directory without search permission"
    );
    set_mode(program, dir, "c", 0o755)?.or_else(status)?;
    program.open_existing(dir, "c/d/f")?;
    if shell::have("setfacl") {
        shell::run(Command::new("setfacl").args(["-m", "u:1000:rwx"]).arg(ground.path("new/c")))?;
        let found = forgotten(|| program.find(dir, "c/d/f"))?;
        ensure_eq!(found.err(), Some(ASK_KERNEL), "through a directory with an ACL");
    }
    fs::set_permissions(ground.path("new/c"), fs::Permissions::from_mode(0o700))?;
    Ok(())
}
