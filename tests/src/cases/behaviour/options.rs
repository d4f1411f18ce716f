//! Options about the mount itself.

use crate::harness::outcome::{Outcome, ensure, ensure_eq, skip};
use crate::harness::{Cx, MountKind, shell};
use std::fs;
use std::process::Command;

/// Engines say how the mount is seen elsewhere, as mount(8) does.
pub(super) fn propagation(cx: &Cx) -> Outcome {
    if MountKind::under_test() == MountKind::Kernel {
        return skip("mount(8) does it for the kernel's");
    }
    let layers = cx.layers("union", 1)?;
    // In this case's own mount namespace: what is mounted below is seen elsewhere unless something else is said.
    shell::run(
        shell::bash("mkdir peer && mount --bind . . && mount --make-shared . && mount --bind . peer")
            .current_dir(&cx.dir),
    )?;
    for (word, tag) in [
        ("rw", "shared:"),
        ("private", ""),
        ("rprivate", ""),
        ("shared", "shared:"),
        ("rshared", "shared:"),
        ("slave", "master:"),
        ("rslave", "master:"),
        ("unbindable", "unbindable"),
        ("runbindable", "unbindable"),
    ] {
        let mut mount = cx.mount_with(&layers, &[word])?;
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let point = format!(" {} ", mount.root().display());
        let line = table.lines().rfind(|line| line.contains(&point)).unwrap_or_default();
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS...] - ...
        let tags = line.split(" - ").next().and_then(|first| first.splitn(7, ' ').nth(6)).unwrap_or_default();
        ensure!(tags.starts_with(tag) && (!tag.is_empty() || tags.is_empty()), "with {word}: {line}");
        mount.unmount()?;
    }
    Ok(())
}

/// The kernel knows no such thing: for root it is what root has anyway, and nobody else is promised it.
pub(super) fn allow_root(cx: &Cx) -> Outcome {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("others give allow_other");
    };
    let layers = cx.layers("union", 1)?;
    fs::write(layers.lower().join("file"), "words")?;
    let mut mount = cx.mount_with(&layers, &["allow_root"])?;
    ensure_eq!(fs::read(mount.path("file"))?, b"words", "for root");
    let as_user = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]);
        command
    };
    let output = as_user().arg("cat").arg(mount.path("file")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("Permission denied"), "for somebody else: {said}");
    mount.unmount()?;
    let mut command = as_user();
    command.arg(&program);
    command.arg("-o").arg(format!("lowerdir={},allow_root", layers.lower().display())).arg(mount.root());
    shell::refused(&mut command, "option allow_root")
}
