//! Mounts of a mount that map ids (mount_setattr(2), MOUNT_ATTR_IDMAP).

use crate::cases::handover::kill_service;
use crate::cases::pool::Pools;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::raw::AsUser;
use crate::harness::{Cx, MountKind, Profile, Stop, shell};
use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};
use vellum_ring::files::{TOKEN, TOKEN_BYTES};

/// Acts on a tree through an idmapped mount, and says what comes out.
const SCRIPT: &str = include_str!("idmapped.py");

fn script(cx: &Cx, tree: &Path, name: &str) -> Outcome<Output> {
    let at = cx.dir.join(name);
    fs::create_dir_all(&at)?;
    Ok(Command::new("python3").arg("-c").arg(SCRIPT).arg(tree).arg(&at).output()?)
}

/// The lines that the script prints for a tree.
fn lines(cx: &Cx, tree: &Path, name: &str) -> Outcome<Vec<String>> {
    let output = script(cx, tree, name)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: the script ended with {}: {errors}", tree.display(), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn fill(dir: &Path) -> Outcome {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    fs::create_dir(dir.join("lower"))?;
    for (name, id, mode) in
        [("of-root", 0, 0o644), ("of-user", 1000, 0o644), ("outside", 70_000, 0o644), ("secret", 1000, 0o600)]
    {
        let path = dir.join("lower").join(name);
        fs::write(&path, name)?;
        chown(&path, Some(id), Some(id))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// What comes out on a plain directory, or why the kernel does not do that here.
fn plain(cx: &Cx) -> Outcome<Vec<String>> {
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    fill(&plain)?;
    let lines = lines(cx, &plain, "plain-mapped").doing("idmapped mounts of the filesystem below")?;
    ensure!(lines.len() > 60, "the script says little: {lines:?}");
    Ok(lines)
}

/// As on a plain directory that is mounted in the same way, for users inside and outside of the namespace.
pub(super) fn idmapped(cx: &Cx) -> Outcome {
    let expected = plain(cx)?;
    let layers = cx.layers("union", 1)?;
    fill(layers.lower())?;
    let mut mount = cx.mount(&layers)?;
    let seen = lines(cx, mount.root(), "mapped")?;
    crate::cases::behaviour::same("through the mount", &expected, &seen)?;
    mount.unmount()
}

/// Who is told about layers is asked for, since requests name nobody any more.
pub(super) fn questions(cx: &Cx) -> Outcome {
    let MountKind::Program(program, _) = MountKind::under_test() else {
        return crate::harness::skip("only Vellum answers questions");
    };
    let layers = cx.layers("union", 1)?;
    let mut mount = cx.mount(&layers)?;
    fs::set_permissions(mount.root(), fs::Permissions::from_mode(0o777))?;
    let told = shell::run(Command::new(&program).arg("inspect").arg(mount.root()))?;
    ensure!(told.contains(&layers.lower().display().to_string()), "root is told: {told}");
    let ask = |user: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(user).args(["getfattr", "--only-values", "-n", "vellum.instance"]).arg(mount.root());
        Ok::<_, crate::harness::Stop>(command.output()?)
    };
    let root = ask(&["--reuid=0"])?;
    ensure!(root.status.success() && !root.stdout.is_empty(), "root asks himself");
    let other = ask(&["--reuid=1000", "--regid=1000", "--clear-groups"])?;
    ensure!(!other.status.success() && other.stdout.is_empty(), "another user is told");
    mount.unmount()
}

/// What somebody without privilege may change loses its set-id bits, though requests do not say who it is; what root opens and
/// writes keeps them.
pub(super) fn set_ids(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 1)?;
    let names = ["write", "open", "allocate", "copy"];
    for name in names {
        fs::write(layers.lower().join(name), "lower")?;
    }
    fs::write(layers.lower().join("source"), "source")?;
    let mut mount = cx.mount(&layers)?;
    let change = |user: Option<u32>| -> Outcome<Vec<bool>> {
        for name in names {
            fs::set_permissions(mount.path(name), fs::Permissions::from_mode(0o6777))?;
        }
        let open = |name: &str| fs::OpenOptions::new().write(true).open(mount.path(name));
        {
            let _user = user.map(|id| AsUser::new(id, id));
            open("write")?.write_all_at(b"new", 0)?;
            drop(open("open")?);
            rustix::fs::fallocate(&open("allocate")?, FallocateFlags::empty(), 0, 4096)?;
            let (mut from, mut to) = (0, 0);
            let source = fs::File::open(mount.path("source"))?;
            copy_file_range(&source, Some(&mut from), &open("copy")?, Some(&mut to), 6)?;
        }
        let kept = |name| -> Outcome<bool> {
            Ok(fs::metadata(layers.upper().join(name))?.permissions().mode() & 0o6000 != 0)
        };
        names.into_iter().map(kept).collect()
    };
    ensure_eq!(change(Some(1000))?, [false, true, false, false], "kept for a user");
    ensure_eq!(change(None)?, [true; 4], "kept for root");
    mount.unmount()
}

/// Whether the descriptor of the upper's own mount, by which files are given out, is a directory; None: the record of the pool's only mount
/// names none.
fn recorded_handouts(pools: &Pools<'_>) -> Outcome<Option<bool>> {
    let shown = pools.show()?;
    let open = Path::new("/proc").join(shown["service"]["service"].to_string()).join("fd");
    for entry in fs::read_dir(&open)? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|link| link == Path::new("/memfd:vellum-card (deleted)")) {
            // The text is behind a page.
            let memory = fs::read(&path)?;
            let text = memory.get(4096..).unwrap_or_default();
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            let record = serde_json::from_slice::<serde_json::Value>(text);
            let record = record.map_err(|error| Stop::Fail(format!("the record: {error}")))?;
            return Ok(match &record["handouts"] {
                serde_json::Value::Null => None,
                number => Some(fs::metadata(open.join(number.to_string())).is_ok_and(|found| found.is_dir())),
            });
        }
    }
    Err(Stop::Fail("the service has no record of its mount".into()))
}

/// Where programs are given files there are no idmapped mounts; with `idmap` it is the other way round.
pub(super) fn in_a_pool(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let expected = plain(cx)?;
    for idmap in [false, true] {
        let layers = cx.layers(if idmap { "with" } else { "without" }, 1)?;
        fill(layers.lower())?;
        let pool = format!("pool={}", pools.name());
        let profile = format!("profile={}", Profile::Passthrough);
        let options = [&*pool, &*profile, "idmap"];
        let mut mount = pools.mount_with(&layers, &options[..if idmap { 3 } else { 2 }])?;
        ensure_eq!(
            recorded_handouts(&pools)?,
            (!idmap).then_some(true),
            "the upper's own mount in the record"
        );
        // Programs show by this that they may write to a directory.
        let shown = rustix::fs::setxattr(mount.root(), TOKEN, &[7; TOKEN_BYTES], XattrFlags::empty());
        ensure_eq!(shown.is_ok(), !idmap, "programs may ask for files: {shown:?}");
        if idmap {
            let seen = lines(cx, mount.root(), "mapped")?;
            crate::cases::behaviour::same("through the mount", &expected, &seen)?;
            fs::write(mount.path("left"), "left")?;
            // A successor finds what it is left, twice.
            for time in ["first", "second"] {
                kill_service(&pools)?;
                let found = fs::read(mount.path("left")).doing("after a service was killed")?;
                ensure_eq!(found, b"left", "after the {time} service was killed");
            }
        } else {
            let refused = script(cx, mount.root(), "refused")?;
            ensure_eq!(refused.status.code(), Some(1), "exit status of the script");
            let errors = String::from_utf8_lossy(&refused.stderr);
            ensure!(
                errors.contains("system call 442: Invalid argument"),
                "not refused as expected: {errors}"
            );
        }
        mount.unmount()?;
    }
    Ok(())
}
