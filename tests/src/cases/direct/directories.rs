//! Directories that programs make over rings.

use super::client::{Program, settled};
use super::{Ground, SETTLED, status};
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use libc::{O_CREAT, O_EXCL, O_WRONLY};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use vellum_ring::files::{ASK_KERNEL, STALE};

const EXIST: u32 = libc::EEXIST as u32;

/// Makes a file in a directory by its number.
fn make_file(program: &Program, dir: u64, name: &str) -> Outcome {
    program.opened(dir, name, O_CREAT | O_EXCL | O_WRONLY, 0o644)?.write_all(b"by ring")?;
    Ok(())
}

/// What is made is seen by all, is entered at once, and stays the same directory wherever it goes.
pub(super) fn directories(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| {
        fs::create_dir_all(lower.join("d/below"))?;
        fs::write(lower.join("d/below/file"), "below")?;
        fs::write(lower.join("d/lower"), "lower")?;
        Ok(())
    };
    let ground = Ground::new(cx, fill)?;
    let program = ground.program()?;
    let new = ground.path("new");
    let dir = program.enter(&new)?.or_else(status)?;
    // The kernel knows what there is, what is not, and how many links the directory has.
    ensure!(!new.join("missed").exists() && fs::read_dir(&new)?.count() == 0, "something is there");
    ensure_eq!(
        program.make_dir(dir, "missed", 0o700)?,
        Err(ASK_KERNEL),
        "what the kernel believes not to be there"
    );
    let links = fs::metadata(&new)?.nlink();
    let (made, ino) = program.made_dir(dir, "made", 0o750)?;
    let seen = fs::symlink_metadata(new.join("made"))?;
    ensure_eq!((seen.ino(), seen.mode(), seen.uid()), (ino, 0o40_750, 0), "number, mode and owner");
    ensure_eq!(fs::metadata(&new)?.nlink(), links + 1, "links of the parent");
    ensure_eq!(fs::read_dir(&new)?.count(), 1, "names");
    // Entered, without anything having been shown to the kernel; and so are those in it, which the kernel has never heard of.
    make_file(&program, made, "file")?;
    let (inner, _) = program.made_dir(made, "inner", 0o700)?;
    let (innermost, ino) = program.made_dir(inner, "innermost", 0o700)?;
    make_file(&program, innermost, "file")?;
    ensure_eq!(fs::read(new.join("made/inner/innermost/file"))?, b"by ring", "the innermost file");
    ensure_eq!(fs::metadata(new.join("made/inner/innermost"))?.ino(), ino, "its directory's number");
    in_the_way(&ground, &program, dir)?;
    inherited(&ground, &program)?;
    // It may move, and go.
    fs::rename(new.join("made/inner"), ground.path("moved"))?;
    std::thread::sleep(SETTLED);
    make_file(&program, innermost, "after")?;
    ensure!(ground.path("moved/innermost/after").exists(), "it has moved, and is not found");
    fs::write("/proc/sys/vm/drop_caches", "2")?;
    make_file(&program, innermost, "forgotten")?;
    ensure!(ground.path("moved/innermost/forgotten").exists(), "the kernel has forgotten it");
    fs::remove_dir_all(ground.path("moved"))?;
    ensure_eq!(program.make_dir(innermost, "x", 0o700)?, Err(STALE), "in one that has gone");
    fs::remove_dir_all(new.join("made"))?;
    std::thread::sleep(SETTLED);
    let (again, _) = program.made_dir(dir, "made", 0o700)?;
    make_file(&program, again, "again")?;
    ensure_eq!(fs::read_dir(new.join("made"))?.count(), 1, "names in the second one");
    many(&ground, &program, dir)?;
    // The next service knows what the last one has made.
    kill_process(ground.mount.service()?, Signal::KILL)?;
    ensure_eq!(fs::read(new.join("made/again"))?, b"by ring", "after a kill");
    let program = ground.program()?;
    let dir = program.enter(&new.join("made"))?.or_else(status)?;
    std::thread::sleep(Duration::from_millis(100));
    let (made, _) = program.made_dir(dir, "by-the-next", 0o700)?;
    make_file(&program, made, "file")?;
    ensure!(new.join("made/by-the-next/file").exists(), "the next service's");
    removed(&ground, program, dir)
}

/// Directories that the kernel removes and forgets while the program has entered them.
fn removed(ground: &Ground<'_>, program: Program, dir: u64) -> Outcome {
    let made = ground.path("new/made");
    for n in 0..50 {
        program.made_dir(dir, &format!("removed-{n}"), 0o700)?;
        fs::metadata(made.join(format!("removed-{n}")))?;
        fs::remove_dir(made.join(format!("removed-{n}")))?;
    }
    fs::write("/proc/sys/vm/drop_caches", "2")?;
    std::thread::sleep(SETTLED);
    drop(program);
    // Now the service notices.
    std::thread::sleep(Duration::from_millis(1500));
    for n in 0..3000 {
        fs::create_dir(made.join(format!("after-{n}")))?;
    }
    ensure_eq!(fs::read_dir(&made)?.count(), 3002, "names");
    Ok(())
}

/// Names that are taken, in whatever way, and whiteouts, which are not.
fn in_the_way(ground: &Ground<'_>, program: &Program, dir: u64) -> Outcome {
    let d = ground.path("d");
    fs::write(d.join("upper"), "upper")?;
    fs::remove_dir_all(d.join("below"))?;
    let entered = program.enter(&d)?.or_else(status)?;
    std::thread::sleep(SETTLED);
    for (at, name) in [(dir, "made"), (entered, "lower"), (entered, "upper")] {
        ensure_eq!(settled(|| program.make_dir(at, name, 0o700))?, Err(EXIST), "{name}");
    }
    for (name, mode) in
        [("", 0), (".", 0), ("..", 0), ("../b", 0), (".wh.x", 0), ("x", 0o4000), ("x", 1 << 20)]
    {
        ensure_eq!(program.make_dir(entered, name, mode)?, Err(ASK_KERNEL), "{name:?} {mode:o}");
    }
    let long = "x".repeat(256);
    ensure_eq!(program.make_dir(entered, &long, 0o700)?, Err(ASK_KERNEL), "a name that is too long");
    // In place of what was removed from a lower layer: its names stay hidden.
    let (below, _) = program.made_dir(entered, "below", 0o755)?;
    make_file(program, below, "fresh")?;
    let names: Vec<_> = fs::read_dir(d.join("below"))?.flatten().map(|entry| entry.file_name()).collect();
    ensure_eq!(names, ["fresh"], "names in place of what was removed");
    Ok(())
}

/// What a new directory has from its parent, and parents that are the kernel's.
fn inherited(ground: &Ground<'_>, program: &Program) -> Outcome {
    let group = ground.path("group");
    fs::create_dir(&group)?;
    chown(&group, None, Some(1234))?;
    fs::set_permissions(&group, fs::Permissions::from_mode(0o2775))?;
    let dir = program.enter(&group)?.or_else(status)?;
    std::thread::sleep(SETTLED);
    program.made_dir(dir, "of-the-group", 0o755)?;
    let made = fs::metadata(group.join("of-the-group"))?;
    ensure_eq!((made.mode(), made.gid()), (0o42_755, 1234), "mode and group in a set-group-id directory");
    let theirs = ground.path("theirs");
    fs::create_dir(&theirs)?;
    chown(&theirs, Some(1000), Some(1000))?;
    let dir = program.enter(&theirs)?.or_else(status)?;
    ensure_eq!(program.make_dir(dir, "x", 0o755)?, Err(ASK_KERNEL), "in another's directory");
    let with_acl = ground.path("acl");
    fs::create_dir(&with_acl)?;
    if shell::have("setfacl") {
        shell::run(Command::new("setfacl").args(["-d", "-m", "u:1000:rwx"]).arg(&with_acl))?;
        let dir = program.enter(&with_acl)?.or_else(status)?;
        std::thread::sleep(SETTLED);
        ensure_eq!(program.make_dir(dir, "x", 0o755)?, Err(ASK_KERNEL), "beside a default ACL");
    }
    Ok(())
}

/// More directories than a program can have entered: who is asked for stays, and the others are entered anew.
fn many(ground: &Ground<'_>, program: &Program, dir: u64) -> Outcome {
    let mut numbers = Vec::new();
    for n in 0..100 {
        numbers.push(program.made_dir(dir, &format!("many-{n}"), 0o755)?.0);
    }
    let [first, .., last] = numbers[..] else { unreachable!() };
    make_file(program, last, "file")?;
    ensure_eq!(program.make_dir(first, "x", 0o700)?, Err(STALE), "the first of many");
    let first = program.enter(&ground.path("new/many-0"))?.or_else(status)?;
    make_file(program, first, "file")?;
    ensure!(ground.path("new/many-0/file").exists() && ground.path("new/many-99/file").exists(), "files");
    Ok(())
}
