//! What an ordinary user does.

use super::{Cx, Outcome, mount::MountKind, shell, skip};
use nix::unistd::{Gid, Uid, setegid, seteuid};
use std::fs;
use std::process::{Command, Stdio};

/// A command by which an ordinary user, without any capability, runs `script` in bash: `$1` is the mount program, `$2` a directory of the
/// user's with `lower/file`, which says "below", `upper`, `work` and `merged`. Mounts take fusermount3.
pub(crate) fn ordinary_user(cx: &Cx, script: &str) -> Outcome<Command> {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("only Vellum has a supervisor and a sandbox");
    };
    if !shell::have("fusermount3") {
        return skip("fusermount3 is missing (package fuse3)");
    }
    let home = cx.dir.join("home");
    for dir in ["lower", "upper", "work", "merged"] {
        fs::create_dir_all(home.join(dir))?;
    }
    fs::write(home.join("lower/file"), "below\n")?;
    // The program may lie where the user cannot go.
    let copy = home.join("vellum");
    fs::copy(program, &copy)?;
    shell::run(Command::new("chown").args(["-R", "1000:1000"]).arg(&home))?;
    let fuse = cx.dir.join("fuse");
    shell::run(
        shell::bash("mknod \"$0\" c 10 229; chmod 666 \"$0\"; mount --bind \"$0\" /dev/fuse").arg(&fuse),
    )?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "--inh-caps=-all"])
        .args(["bash", "-euo", "pipefail", "-c", script, "bash"])
        .args([&copy, &home])
        .env("HOME", &home)
        .stdin(Stdio::null());
    Ok(command)
}

/// While it is there, all of this process is an ordinary user, without capabilities in effect, and by the C library, so that the preload
/// library hears of it. [`AsUser`](super::raw::AsUser) has one thread's accesses to files alone judged as a user's.
pub(crate) struct WholeUser(());

impl WholeUser {
    /// Takes on the ids.
    pub(crate) fn new(id: u32) -> std::io::Result<Self> {
        setegid(Gid::from_raw(id))?;
        let user = Self(());
        seteuid(Uid::from_raw(id))?;
        Ok(user)
    }
}

impl Drop for WholeUser {
    fn drop(&mut self) {
        let _ = seteuid(Uid::from_raw(0));
        let _ = setegid(Gid::from_raw(0));
    }
}
