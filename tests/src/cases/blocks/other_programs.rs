//! A layer with files that take data from others, in the hands of those who know nothing of that.

use super::lifecycle::{content, expect, is_partial, mounted, write};
use crate::cases::pool::PoolMount;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, skip};
use crate::harness::{Cx, Layers, Mount, MountKind, PATIENCE};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the root of an upper says while some of its files need other layers.
fn says_so(upper: &Path) -> [bool; 2] {
    ["trusted.vellum.lowers", "security.fuseoverlayfs.override_stat"]
        .map(|name| rustix::fs::lgetxattr(upper, name, &mut [0; 4096]).is_ok())
}

fn set_mode(path: &Path) -> Outcome {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o604))?)
}

/// When the mount has ended, what its files take from below is copied, up to a size, and a next mount does not wait for it.
pub(super) fn at_the_end(cx: &Cx) -> Outcome {
    only_vellum("completes nothing")?;
    let (layers, mut mount) = mounted(cx, &["fill_at_end=1G"])?;
    fs::write(layers.lower().join("attributes"), content())?;
    ensure_eq!(says_so(layers.upper()), [false; 2], "what a new upper says");
    write(&mount.path("big"), 10, b"x")?;
    set_mode(&mount.path("attributes"))?;
    ensure!(is_partial(&layers, "big"), "it was copied whole");
    ensure_eq!(says_so(layers.upper()), [true; 2], "what the upper says");
    mount.unmount()?;
    expect(&layers.upper().join("big"), &[(10, b"x")])?;
    expect(&layers.upper().join("attributes"), &[])?;
    ensure!(!is_partial(&layers, "big"), "the mark stays");
    ensure_eq!(says_so(layers.upper()), [false; 2], "what the whole upper says");
    // Up to a size: the small one, and not the large one.
    fs::write(layers.lower().join("large"), vec![1; 4 << 20])?;
    fs::write(layers.lower().join("small"), vec![1; 1 << 20])?;
    let mut mount = cx.mount_with(&layers, &["fill_at_end=2M"])?;
    write(&mount.path("large"), 10, b"x")?;
    write(&mount.path("small"), 10, b"x")?;
    mount.unmount()?;
    ensure!(is_partial(&layers, "large") && !is_partial(&layers, "small"), "not the size that was asked for");
    ensure_eq!(says_so(layers.upper()), [true; 2], "what the upper says of the one that is left");
    // A next mount is there at once, and goes on with what is there.
    let mut mount = cx.mount_with(&layers, &["fill_at_end=1G", "background_fill=64k"])?;
    write(&mount.path("large"), 20, b"y")?;
    unmount(mount.root(), UnmountFlags::empty())?;
    mount.mount()?;
    ensure!(is_partial(&layers, "large"), "64 KiB a second were more than 4 MiB");
    let seen = fs::read(mount.path("large"))?;
    ensure_eq!((seen[10], seen[20], seen[4 << 19], seen.len()), (b'x', b'y', 1, 4 << 20), "the adopted file");
    drop(mount);
    in_a_pool(cx)
}

fn in_a_pool(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| Ok(fs::write(lower.join("big"), content())?);
    let mut pooled = PoolMount::with(cx, fill, &["fill_at_end=1G"])?;
    write(&pooled.mount.path("big"), 10, b"x")?;
    ensure!(is_partial(&pooled.layers, "big"), "it was copied whole");
    pooled.mount.unmount()?;
    let begin = Instant::now();
    while says_so(pooled.layers.upper()) != [false; 2] {
        ensure!(begin.elapsed() < PATIENCE, "not completed in {:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    expect(&pooled.layers.upper().join("big"), &[(10, b"x")])
}

/// A lower file of the same size and time is not believed to be the same, and the same file is believed to be it whatever happens to
/// its names and attributes.
pub(super) fn same_size_and_time(cx: &Cx) -> Outcome {
    only_vellum("makes no partial files")?;
    let layers = cx.layers("union", 1)?;
    let names = ["replaced", "in-place", "kept", "copied", "attributes"];
    let fill = |name: &str, byte: u8| -> Outcome {
        let path = layers.lower().join(name);
        fs::write(&path, vec![byte; 1 << 20])?;
        at_the_epoch(&path)
    };
    for name in names {
        fill(name, b'A')?;
    }
    let mut mount = cx.mount_with(&layers, &["block_copy=128k"])?;
    for name in names {
        write(&mount.path(name), 10, b"x")?;
        ensure!(is_partial(&layers, name), "{name} was copied whole");
    }
    mount.unmount()?;
    let lower = |name: &str| layers.lower().join(name);
    fs::remove_file(lower("replaced"))?;
    fill("replaced", b'B')?;
    fill("in-place", b'B')?;
    // These changes leave the data as they were.
    fs::set_permissions(lower("kept"), fs::Permissions::from_mode(0o600))?;
    fs::hard_link(lower("kept"), lower("another-name"))?;
    fs::rename(lower("copied"), lower("original"))?;
    fs::copy(lower("original"), lower("copied"))?;
    at_the_epoch(&lower("copied"))?;
    for round in 0..2 {
        mount.mount()?;
        for name in ["replaced", "in-place"] {
            let read = fs::read(mount.path(name));
            let errno = read.as_ref().err().and_then(std::io::Error::raw_os_error);
            ensure_eq!(errno, Some(libc::EIO), "{name} in mount {round}");
            ensure!(write(&mount.path(name), 0, b"y").is_err(), "{name} is written to");
            fs::rename(mount.path(name), mount.path("moved"))?;
            fs::rename(mount.path("moved"), mount.path(name))?;
        }
        for name in ["kept", "copied", "attributes"] {
            let mut expected = vec![b'A'; 1 << 20];
            expected[10] = b'x';
            ensure!(fs::read(mount.path(name))? == expected, "{name} in mount {round}");
            write(&mount.path(name), 10, b"x")?;
        }
        mount.unmount()?;
    }
    Ok(())
}

fn at_the_epoch(path: &Path) -> Outcome {
    Ok(fs::File::options().write(true).open(path)?.set_modified(std::time::UNIX_EPOCH)?)
}

/// fuse-overlayfs, which would show zeros, does not mount such a layer, whichever way; and it does when the layer is whole.
pub(super) fn fuse_overlayfs(cx: &Cx) -> Outcome {
    only_vellum("makes no partial files")?;
    let program = PathBuf::from("/usr/bin/fuse-overlayfs");
    if !program.is_file() {
        return skip("fuse-overlayfs is missing: run make deps");
    }
    let kind = MountKind::Program(program, false);
    let (layers, mut mount) = mounted(cx, &[])?;
    for change in [|path: &Path| write(path, 10, b"x"), set_mode] {
        change(&mount.path("big"))?;
        mount.unmount()?;
        for layers in [layers.clone(), layers.as_lowers("again")?] {
            let said = format!("{:?}", Mount::new(kind.clone(), None, &layers, &[]).err());
            ensure!(said.contains("cannot read"), "fuse-overlayfs mounts the layer: {said}");
        }
        super::flatten(&layers)?;
        let mut other = Mount::new(kind.clone(), None, &layers.as_lowers("again")?, &[])?;
        ensure!(
            fs::read(other.path("big"))? == fs::read(layers.upper().join("big"))?,
            "what fuse-overlayfs shows"
        );
        other.unmount()?;
        fs::remove_file(layers.upper().join("big"))?;
        mount.mount()?;
    }
    Ok(())
}

/// A store as engines have it, with layers of all kinds.
pub(super) fn flatten_store(cx: &Cx) -> Outcome {
    only_vellum("has no such command")?;
    let store = cx.dir.join("root/overlay");
    let place = |name: &str| -> Outcome<Layers> {
        let dir = store.join(name);
        fs::create_dir_all(store.join("l"))?;
        let layers = Layers {
            lowers: vec![store.join("image/diff")],
            upper: Some(dir.join("diff")),
            work: dir.join("work"),
            merged: dir.join("merged"),
        };
        for dir in [layers.upper(), &layers.work, &layers.merged] {
            fs::create_dir_all(dir)?;
        }
        fs::write(dir.join("lower"), "l/IMAGE")?;
        Ok(layers)
    };
    place("image")?;
    std::os::unix::fs::symlink("../image/diff", store.join("l/IMAGE"))?;
    let names = ["big", "other", "attributes"];
    for name in names {
        fs::write(store.join("image/diff").join(name), content())?;
    }
    let (done, used, lost) = (place("done")?, place("used")?, place("lost")?);
    let changed = |layers: &Layers, options: &[&str]| -> Outcome<Mount> {
        let mount = cx.mount_with(layers, options)?;
        write(&mount.path("big"), 10, b"x")?;
        write(&mount.path("other"), 20, b"y")?;
        set_mode(&mount.path("attributes"))?;
        Ok(mount)
    };
    changed(&done, &[])?.unmount()?;
    let mut in_use = changed(&used, &[])?;
    // Of this one the image has another file now.
    changed(&lost, &[])?.unmount()?;
    fs::create_dir_all(store.join("new/diff"))?;
    for name in names {
        fs::write(store.join("new/diff").join(name), content())?;
    }
    fs::write(store.join("new/diff/big"), b"another size")?;
    std::os::unix::fs::symlink("../new/diff", store.join("l/NEW"))?;
    fs::write(store.join("lost/lower"), "l/NEW")?;
    for name in ["other", "attributes"] {
        let times = fs::metadata(store.join("image/diff").join(name))?.modified()?;
        fs::File::options().write(true).open(store.join("new/diff").join(name))?.set_modified(times)?;
    }
    let run = |dir: &Path| -> Outcome<(Option<i32>, String)> {
        let MountKind::Program(program, _) = MountKind::under_test() else { return skip("no program") };
        let output = std::process::Command::new(program).arg("flatten").arg(dir).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
    };
    let (status, said) = run(&cx.dir.join("root"))?;
    for expected in ["done: 3 of 3 files", "used: in use", "lost: 2 of 3 files", "lost: /big: "] {
        ensure!(said.contains(expected), "not said: {expected:?} in {said}");
    }
    ensure_eq!(status, Some(1), "status with {said}");
    expect(&done.upper().join("big"), &[(10, b"x")])?;
    expect(&done.upper().join("other"), &[(20, b"y")])?;
    expect(&done.upper().join("attributes"), &[])?;
    expect(&lost.upper().join("other"), &[(20, b"y")])?;
    expect(&in_use.path("big"), &[(10, b"x")])?;
    ensure!(is_partial(&used, "big") && is_partial(&lost, "big"), "what was to be left");
    ensure_eq!(
        [says_so(done.upper()), says_so(lost.upper())],
        [[false; 2], [true; 2]],
        "what the layers say"
    );
    in_use.unmount()?;
    fs::remove_dir_all(store.join("lost"))?;
    let (status, said) = run(&store)?;
    ensure_eq!(status, Some(0), "status with {said}");
    ensure!(said.contains("used: 3 of 3 files") && said.contains("2 of 2 changed layers"), "{said}");
    expect(&used.upper().join("big"), &[(10, b"x")])?;
    // Nothing that is one: a line, and nothing else.
    let (status, said) = run(&cx.dir)?;
    ensure!(status == Some(2) && said.lines().count() == 1, "no store and no layer: {status:?} {said}");
    Ok(())
}
