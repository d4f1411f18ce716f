//! The file of a descriptor once more, to write to: what it is given for, and what is still true of it through the mount.

use super::{Ground, SETTLED, status};
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use libc::{O_APPEND, O_CREAT, O_DIRECT, O_DSYNC, O_RDWR, O_TRUNC, O_WRONLY};
use rustix::fs::{OFlags, XattrFlags, fcntl_getfl, fgetxattr};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use vellum_ring::files::{ASK_KERNEL, TOKEN};

/// Whether the service says that a file may be read from mappings.
fn is_mappable(file: &File) -> bool {
    fgetxattr(file, "vellum.map", &mut [0; 40]) == Ok(40)
}

pub(super) fn reopened(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| {
        fs::create_dir(lower.join("d"))?;
        ["lower", "half", "linked", "single"]
            .iter()
            .try_for_each(|name| fs::write(lower.join("d").join(name), name))?;
        Ok(())
    };
    let ground = Ground::new(cx, fill)?;
    let program = ground.program()?;
    let path = ground.path("new/file");
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create(true).truncate(true).open(&path)?;
    file.write_all_at(&[1; 8192], 0)?;
    ensure!(is_mappable(&file), "it cannot be mapped");
    let Some(again) = program.reopen(&path, O_DSYNC)? else { return status(0) };
    let again = again.or_else(status)?;
    ensure_eq!(fcntl_getfl(&again)? & OFlags::RWMODE, OFlags::WRONLY, "what it may do");
    ensure!(fcntl_getfl(&again)?.bits() & O_DSYNC as u32 != 0, "not as it was asked for");
    // What is written by it is seen at once, and so is its length; and it can still be read from mappings, for it cuts nothing.
    for round in 1..50u8 {
        ensure_eq!(fs::metadata(&path)?.len(), 8192 + 100 * (u64::from(round) - 1), "length before");
        again.write_all_at(&[round; 100], 8192 + 100 * (u64::from(round) - 1))?;
        ensure_eq!(file.metadata()?.len(), 8192 + 100 * u64::from(round), "length by the descriptor");
        let mut seen = [0; 100];
        file.read_exact_at(&mut seen, 8192 + 100 * (u64::from(round) - 1))?;
        ensure_eq!(seen, [round; 100], "round {round}");
        ensure!(is_mappable(&file), "it cannot be mapped any more");
    }
    ensure_eq!(again.metadata()?.ino(), file.metadata()?.ino(), "number");
    // A program that is given the file itself may cut it.
    std::thread::sleep(SETTLED);
    let dir = program.enter(&ground.path("new"))?.or_else(status)?;
    let whole = program.opened(dir, "file", O_WRONLY, 0)?;
    ensure!(!is_mappable(&file), "it can be mapped though it may be cut");
    drop((whole, again));
    // Not for more than writing.
    for flags in [O_APPEND, O_TRUNC, O_CREAT, O_DIRECT, O_RDWR, O_WRONLY, libc::O_PATH, libc::O_TMPFILE] {
        let answer = program.reopen(&path, flags)?.and_then(Result::err);
        ensure_eq!(answer, Some(ASK_KERNEL), "flags {flags:o}");
    }
    ensure_eq!(fs::metadata(&path)?.len(), 8192 + 4900, "length afterwards");
    not_for_everything(cx, &ground)
}

fn not_for_everything(cx: &Cx, ground: &Ground<'_>) -> Outcome {
    let program = ground.program()?;
    let path = |name: &str| ground.path(name);
    fs::write(path("new/set"), "set")?;
    fs::set_permissions(path("new/set"), fs::Permissions::from_mode(0o4755))?;
    shell::run(Command::new("mkfifo").arg(path("new/pipe")))?;
    // Attributes alone are in the upper layer.
    fs::set_permissions(path("d/half"), fs::Permissions::from_mode(0o600))?;
    for name in ["d/lower", "d/half", "new", "new/set", "new/pipe"] {
        let answer = program.reopen(&path(name), 0)?;
        ensure!(matches!(answer, None | Some(Err(ASK_KERNEL))), "{name}: {answer:?}");
    }
    // What is gone has no path; what has been copied up, linked or renamed has one.
    let gone = OpenOptions::new().write(true).create_new(true).open(path("new/gone"))?;
    rustix::fs::fsetxattr(&gone, TOKEN, &[5; 16], XattrFlags::empty())?;
    fs::remove_file(path("new/gone"))?;
    ensure_eq!(program.reopen_by(&[5; 16], 0)?.err(), Some(ASK_KERNEL), "a removed file");
    let copied = OpenOptions::new().write(true).open(path("d/linked"))?;
    copied.write_all_at(b"L", 0)?;
    fs::hard_link(path("d/linked"), path("new/other"))?;
    fs::rename(path("d/linked"), path("d/renamed"))?;
    let again = program.reopen(&path("new/other"), 0)?;
    let again = again.unwrap_or(Err(0)).or_else(status)?;
    again.write_all_at(b"!", 6)?;
    ensure_eq!(fs::read(path("d/renamed"))?, b"Linked!", "by the other name");
    let single = OpenOptions::new().read(true).write(true).open(path("d/single"))?;
    single.write_all_at(b"S", 0)?;
    let again = program.reopen(&path("d/single"), 0)?.unwrap_or(Err(0)).or_else(status)?;
    for round in 1..20 {
        again.write_all_at(b"more", 4 * round)?;
        let seen = (single.metadata()?.len(), fs::metadata(path("d/single"))?.len());
        ensure_eq!(seen, (4 * round + 4, 4 * round + 4), "lengths of a file that was copied up");
    }
    // A token of a file is none of a directory, nor the other way round.
    rustix::fs::setxattr(path("new/other"), TOKEN, &[6; 16], XattrFlags::empty())?;
    ensure!(program.enter_by(&[6; 16])?.is_err(), "a file was entered");
    // Through a read-only mount nothing can be shown.
    let bound = cx.dir.join("bound");
    fs::create_dir(&bound)?;
    shell::run(Command::new("mount").arg("--bind").arg(path("new")).arg(&bound))?;
    let read_only = shell::run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&bound));
    let shown = program.reopen(&bound.join("other"), 0);
    shell::run(Command::new("umount").arg(&bound))?;
    read_only?;
    ensure!(shown?.is_none(), "shown by a read-only mount");
    Ok(())
}
