//! What ioctl(2) asks of files: flags (chattr(1)), and blocks that files share.

use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Layers, Mount, MountKind, shell, skip};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// What is done to each of `names`, in this order, and shown after each step.
const STEPS: [&str; 5] = ["chattr +d", "chattr +AS", "chattr -d", "chattr =e", "chattr +A"];

fn fill(dir: &Path, side: &str) -> Outcome {
    fs::create_dir(dir.join(format!("{side}-dir")))?;
    fs::write(dir.join(format!("{side}-dir/inside")), "x")?;
    fs::write(dir.join(format!("{side}-file")), "text")?;
    Ok(fs::write(dir.join(format!("{side}-user")), "user's")?)
}

fn shown(root: &Path) -> Outcome<Vec<String>> {
    let list = shell::run(shell::bash("cd \"$0\"; lsattr -d * */inside").arg(root))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// What comes out of a line of the shell in the tree, as one line.
fn shell_output(root: &Path, line: &str) -> Outcome<String> {
    let output = shell::bash(line).current_dir(root).output()?;
    let err = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
    Ok(format!("{line}: {:?} {} {err}", output.status.code(), String::from_utf8_lossy(&output.stdout)))
}

fn act(root: &Path) -> Outcome<Vec<String>> {
    let mut lines = shown(root)?;
    for step in STEPS {
        for name in ["lower-file", "lower-dir", "upper-file", "upper-dir", "lower-dir/inside"] {
            shell::run(shell::words(step).arg(name).current_dir(root)).doing(format!("{step} {name}"))?;
        }
        lines.push(format!("after {step}:"));
        lines.append(&mut shown(root)?);
    }
    for name in ["lower-file", "lower-dir", "lower-user"] {
        // The numbers of projects are left out: they are the layer's own.
        let script = format!(
            "python3 -c 'import fcntl, os, struct
f = os.open(\"{name}\", os.O_RDONLY)
flags = bytearray(28)
fcntl.ioctl(f, 0x801c581f, flags)
told = struct.unpack_from(\"I\", flags)[0]
struct.pack_into(\"I\", flags, 0, told ^ 0xc0)
fcntl.ioctl(f, 0x401c5820, bytes(flags))
fcntl.ioctl(f, 0x801c581f, flags)
print(told, struct.unpack_from(\"I\", flags)[0])'; lsattr -d {name}"
        );
        lines.push(shell_output(root, &script)?);
    }
    let user = "setpriv --reuid=1000 --regid=1000 --clear-groups";
    for line in ["chattr +d lower-user", "chattr +d lower-file", "lsattr lower-user lower-file"] {
        lines.push(shell_output(root, &format!("{user} {line}"))?);
    }
    lines.push(shell_output(root, "cat lower-file lower-dir/inside; stat -c '%s %U' lower-user")?);
    Ok(lines)
}

/// As by the kernel's overlayfs; and what protects nothing is refused.
pub(super) fn flags(cx: &Cx) -> Outcome {
    let sides = [("kernel", MountKind::Kernel), ("union", MountKind::under_test())];
    let mut all = Vec::new();
    for (name, kind) in sides {
        let layers = cx.layers(name, 1)?;
        fill(layers.lower(), "lower")?;
        fill(layers.upper(), "upper")?;
        chown(layers.lower().join("lower-user"), Some(1000), Some(1000))?;
        if let Err(stop) = shown(layers.lower()) {
            return skip(format!("no flags on the filesystem of the layers: {stop}"));
        }
        let before = shown(layers.lower())?;
        let mut mount = Mount::new(kind, cx.profile, &layers, &[])?;
        let mut lines = act(mount.root())?;
        if name == "union" {
            protections(&mount)?;
        }
        mount.remount()?;
        lines.append(&mut shown(mount.root())?);
        mount.unmount()?;
        ensure_eq!(shown(layers.lower())?, before, "{name}: flags in the lower layer");
        all.push(lines);
    }
    let [kernel, union] = &*all else { return crate::harness::fail("two sides") };
    crate::cases::behaviour::same("through the mount", kernel, union)
}

fn protections(mount: &Mount) -> Outcome {
    // Of the flags that the kernel shows by statx(2), those that somebody can set here.
    shell::run(Command::new("chattr").arg("+d").arg(mount.path("upper-file")))?;
    let stat = rustix::fs::statx(CWD, mount.path("upper-file"), AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    ensure!(!stat.stx_attributes.contains(StatxAttributes::NODUMP), "FUSE passes flags on by now: say so");
    shell::run(Command::new("chattr").arg("-d").arg(mount.path("upper-file")))?;
    for (flag, name) in
        [("+i", "lower-dir/inside"), ("+a", "upper-file"), ("+i", "lower-dir"), ("+j", "upper-file")]
    {
        let output = Command::new("chattr").arg(flag).arg(mount.path(name)).output()?;
        let err = String::from_utf8_lossy(&output.stderr);
        ensure!(err.contains("Operation not supported"), "chattr {flag} {name}: {} {err}", output.status);
    }
    // Whoever has no right to it does not get further by another way.
    let user = "setpriv --reuid=1000 --regid=1000 --clear-groups";
    for flag in ["+i", "+d", "+j"] {
        let tried = shell_output(mount.root(), &format!("{user} chattr {flag} upper-file"))?;
        ensure!(!tried.contains("Some(0)"), "another user: {tried}");
    }
    Ok(())
}

/// A copy takes no space where the layers' filesystem can share blocks; the two calls that FUSE does not pass on are refused.
pub(super) fn shared_blocks(cx: &Cx) -> Outcome {
    const SIZE: u64 = 32 << 20;
    if !shell::have("mkfs.xfs") {
        return skip("mkfs.xfs is missing: run make deps");
    }
    let (image, at) = (cx.dir.join("xfs"), cx.dir.join("at"));
    fs::create_dir(&at)?;
    fs::File::create(&image)?.set_len(512 << 20)?;
    shell::run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image))?;
    if let Err(stop) = shell::run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at)) {
        return skip(format!("no XFS here: {stop}"));
    }
    let result = (|| {
        let layers = Layers::new(&at, 1)?;
        shell::run(
            shell::bash(&format!("head -c {SIZE} /dev/urandom > \"$0\"")).arg(layers.lower().join("big")),
        )?;
        let mut mount = cx.mount(&layers)?;
        let free = || -> Outcome<u64> {
            rustix::fs::sync();
            let fs = rustix::fs::statvfs(&at)?;
            Ok(fs.f_bavail * fs.f_frsize)
        };
        let before = free()?;
        for (from, to) in [("big", "copy"), ("copy", "again")] {
            let copied =
                Command::new("cp").arg("--reflink=auto").args([mount.path(from), mount.path(to)]).output()?;
            ensure!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
            shell::run(Command::new("cmp").args([mount.path("big"), mount.path(to)]))?;
        }
        let taken = before.saturating_sub(free()?);
        ensure!(taken < SIZE / 2, "two copies took {taken} bytes");
        for line in ["cp --reflink=always big refused", "xfs_io -c fiemap big"] {
            let refused = shell_output(mount.root(), line)?;
            ensure!(refused.contains("Operation not supported"), "{refused}");
        }
        mount.unmount()
    })();
    let _ = shell::run(Command::new("umount").arg(&at));
    result
}
