//! stress-ng's filesystem class, each stressor for a moment, with verification.

use super::{plain_and_mount, tool};
use crate::harness::Cx;
use crate::harness::outcome::{DuringContext, Outcome, ensure};
use crate::runner::child::note;
use std::path::Path;
use std::process::{Command, Stdio};

/// The stressors that work on files of a directory. Of class filesystem are left out: bind-mount (a storm of mounts
/// on the host), and binderfs, procfs, eventfd, ioprio, rawdev, mmapfiles (no files of
/// ours).
const STRESSORS: &[&str] = &[
    "access",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "fallocate",
    "fanotify",
    "fcntl",
    "fiemap",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "io",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "mmap",
    "mmapfork",
    "mmapmany",
    "msync",
    "open",
    "readahead",
    "rename",
    "seek",
    "sendfile",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "verity",
    "xattr",
    "splice",
    "tee",
    "aio",
    "revio",
    "mmapfixed",
    "fault",
];

/// Seconds that each runs.
const SECONDS: &str = "1";

/// Exit statuses of stress-ng: 3 no resources, 4 not implemented here.
const NOT_HERE: [i32; 2] = [3, 4];

pub(super) fn all(cx: &Cx) -> Outcome {
    let program = tool("stress-ng")?;
    let (_held, plain, _layers, mut mount) = plain_and_mount(cx, |_| Ok(()))?;
    let mut failed = Vec::new();
    for name in STRESSORS {
        let (code, why) = run(&program, name, mount.root())?;
        if code == 0 {
            note("ok", name, "");
            continue;
        }
        // What the filesystem below cannot do either is nothing to ask of the mount.
        let (below, why_below) = run(&program, name, &plain)?;
        if below != 0 {
            note("skip", name, &format!("exit status {below} on the filesystem below, too: {why_below}"));
        } else if NOT_HERE.contains(&code) {
            note("skip", name, &why);
        } else {
            note("fail", name, &format!("exit status {code}: {why}"));
            failed.push(*name);
        }
    }
    let left: Vec<_> = std::fs::read_dir(mount.root())?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(failed.is_empty(), "{failed:?} failed");
    ensure!(left.is_empty(), "left over: {left:?}");
    mount.unmount()
}

/// Exit status and the first line of complaint.
fn run(program: &Path, stressor: &str, dir: &Path) -> Outcome<(i32, String)> {
    let output = Command::new(program)
        .args([&format!("--{stressor}"), "2", "--timeout", SECONDS, "--verify", "--metrics-brief"])
        .args(["--oomable", "--temp-path"])
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .doing("stress-ng")?;
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    println!("=== {stressor} on {}\n{text}", dir.display());
    let why = text
        .lines()
        .find(|line| line.contains("fail:") || line.contains("error:"))
        .or_else(|| text.lines().find(|line| line.contains("skipp") || line.contains("not ")))
        .unwrap_or_default();
    Ok((output.status.code().unwrap_or(-1), why.to_owned()))
}
