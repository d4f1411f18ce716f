//! Unions whose upper layers lie in the mount under test: their marks, whiteouts and moves work there as on a filesystem of the kernel.

use crate::harness::outcome::{DuringContext, Outcome, ensure};
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with, setxattr};
use std::fs;
use std::path::Path;
use std::process::Command;

fn fill(dir: &Path) -> Outcome {
    for name in ["gone", "remade", "moved", "one", "exchanged/deep"] {
        fs::create_dir_all(dir.join(name))?;
        fs::write(dir.join(name).join("file"), name)?;
    }
    Ok(fs::write(dir.join("file"), "below")?)
}

fn change(root: &Path) -> Outcome {
    let at = |name: &str| root.join(name);
    fs::remove_dir_all(at("gone"))?;
    fs::remove_dir_all(at("remade"))?;
    fs::create_dir(at("remade"))?;
    fs::write(at("remade/new"), "new")?;
    fs::rename(at("moved"), at("away"))?;
    fs::rename(at("file"), at("other"))?;
    fs::write(at("one/file"), "changed")?;
    fs::create_dir(at("fresh"))?;
    fs::write(at("fresh/file"), "fresh")?;
    renameat_with(CWD, at("exchanged"), CWD, at("fresh"), RenameFlags::EXCHANGE)?;
    for (name, value) in [("trusted.overlay.opaque", "mine"), ("user.comment", "too")] {
        // The kernel's overlayfs has it under another name, from Linux 6.7 on.
        let _ = setxattr(at("other"), name, value.as_bytes(), XattrFlags::empty());
    }
    Ok(())
}

fn look(root: &Path) -> Outcome<Vec<String>> {
    let script = "cd \"$0\"; find . -mindepth 1 -type f -printf '%p %y: ' -exec cat {} \\; -printf '\\n' -o -mindepth 1 -printf '%p %y\\n' | sort";
    let said = shell::run(shell::bash(script).arg(root))?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Changes a union, mounts it again, and says what it shows.
fn acts(mut mount: Mount, what: &str) -> Outcome<Vec<String>> {
    change(mount.root()).doing(what)?;
    let first = look(mount.root())?;
    mount.remount()?;
    super::same(what, &first, &look(mount.root())?)?;
    mount.unmount()?;
    Ok(first)
}

pub(super) fn unions_above(cx: &Cx) -> Outcome {
    let plain = cx.layers("plain", 1)?;
    fill(plain.lower())?;
    let expected = acts(Mount::kernel(&plain)?, "on a filesystem of the kernel")?;
    let ground = cx.layers("ground", 1)?;
    let mut mount = cx.mount(&ground)?;
    let above = |name: &str| -> Outcome<Layers> {
        let (upper, work) = (mount.path(&format!("{name}-upper")), mount.path(&format!("{name}-work")));
        for dir in [&upper, &work] {
            fs::create_dir(dir)?;
        }
        let layers = cx.layers(name, 0)?;
        Ok(Layers { lowers: plain.lowers.clone(), upper: Some(upper), work, ..layers })
    };
    let kernel = Mount::kernel(&above("kernel")?)?;
    super::same("the kernel's overlayfs above", &expected, &acts(kernel, "the kernel's overlayfs above")?)?;
    if MountKind::under_test().is_vellum() {
        let itself = cx.mount(&above("itself")?)?;
        super::same("the same above", &expected, &acts(itself, "the same above")?)?;
    }
    // A name is what it was called, and no mark.
    fs::create_dir(mount.path("marked"))?;
    fs::write(mount.path("marked/file"), "there")?;
    setxattr(mount.path("marked"), "trusted.overlay.opaque", b"y", XattrFlags::empty())?;
    let list = shell::run(Command::new("getfattr").args(["-d", "-m", "-"]).arg(mount.path("marked")))?;
    ensure!(list.contains("trusted.overlay.opaque=\"y\""), "listed: {list}");
    rustix::fs::removexattr(mount.path("marked"), "trusted.overlay.opaque")?;
    ensure!(
        rustix::fs::getxattr(mount.path("marked"), "trusted.overlay.opaque", &mut [0; 8]).is_err(),
        "what was removed is there"
    );
    mount.unmount()
}
