//! Layers in all their formats, and who may mount them when.

use super::filled;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::tree::{self, Ignore};
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn names(root: &Path) -> Outcome<Vec<String>> {
    let paths = tree::take(root, 0)?.into_keys().filter(|path| !path.is_empty()).collect();
    Ok(paths)
}

fn set(path: &Path, name: &str, value: &[u8]) -> Outcome {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
        .doing(format!("{name} on {}", path.display()))
}

pub(super) fn whiteout_formats(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 2)?;
    let (above, below) = (&layers.lowers[0], &layers.lowers[1]);
    const OPAQUE: [&str; 4] = ["trusted-overlay", "user-overlay", "fuseoverlayfs", "aufs"];
    for name in ["device", "aufs", "xattr", "kept", "aufs-dir"] {
        fs::create_dir_all(below.join("white"))?;
        fs::write(below.join("white").join(name), "below")?;
    }
    for name in OPAQUE {
        fs::create_dir(below.join(name))?;
        fs::write(below.join(name).join("hidden"), "below")?;
        fs::create_dir(above.join(name))?;
        fs::write(above.join(name).join("shown"), "above")?;
    }
    fs::create_dir(above.join("white"))?;
    let none = Mode::empty();
    rustix::fs::mknodat(CWD, above.join("white/device"), FileType::CharacterDevice, none, 0)?;
    fs::write(above.join("white/.wh.aufs"), "")?;
    fs::write(above.join("white/.wh.aufs-dir"), "")?;
    // The kernel's other form: an empty file with a mark, in a directory that says that it has such.
    fs::write(above.join("white/xattr"), "")?;
    set(&above.join("white/xattr"), "trusted.overlay.whiteout", b"y")?;
    set(&above.join("white"), "trusted.overlay.opaque", b"x")?;
    set(&above.join("trusted-overlay"), "trusted.overlay.opaque", b"y")?;
    set(&above.join("user-overlay"), "user.overlay.opaque", b"y")?;
    set(&above.join("fuseoverlayfs"), "user.fuseoverlayfs.opaque", b"y")?;
    fs::write(above.join("aufs/.wh..wh..opq"), "")?;
    let mut mount = cx.mount(&layers)?;
    let mut expected: Vec<String> =
        OPAQUE.iter().flat_map(|name| [(*name).to_owned(), format!("{name}/shown")]).collect();
    expected.extend(["white".to_owned(), "white/kept".to_owned()]);
    expected.sort();
    ensure_eq!(names(mount.root())?, expected, "names");
    for name in
        ["white/device", "white/aufs", "white/xattr", "aufs/hidden", "aufs/.wh..wh..opq", "white/.wh.aufs"]
    {
        ensure!(fs::symlink_metadata(mount.path(name)).is_err(), "{name} is found by its name");
    }
    // A name that is hidden can be made again, and removed again.
    for name in ["white/device", "white/aufs", "white/xattr", "aufs/hidden"] {
        fs::write(mount.path(name), "new")?;
        ensure_eq!(fs::read_to_string(mount.path(name))?, "new", "{name} made again");
    }
    mount.remount()?;
    for name in ["white/device", "white/aufs", "white/xattr", "aufs/hidden"] {
        ensure_eq!(fs::read_to_string(mount.path(name))?, "new", "{name} after remount");
        fs::remove_file(mount.path(name))?;
    }
    mount.remount()?;
    ensure_eq!(names(mount.root())?, expected, "names after all");
    mount.unmount()
}

pub(super) fn upper_as_lower(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| {
        for sub in ["gone", "replaced", "renamed/deep", "plain"] {
            fs::create_dir_all(dir.join(sub))?;
            fs::write(dir.join(sub).join("file"), sub)?;
        }
        fs::write(dir.join("link1"), "linked")?;
        fs::hard_link(dir.join("link1"), dir.join("link2"))?;
        Ok(fs::write(dir.join("chmod-only"), vec![b'c'; 100_000])?)
    })?;
    fs::remove_dir_all(mount.path("gone"))?;
    fs::remove_dir_all(mount.path("replaced"))?;
    fs::create_dir(mount.path("replaced"))?;
    fs::write(mount.path("replaced/new"), "new")?;
    fs::rename(mount.path("renamed"), mount.path("plain/moved"))?;
    fs::write(mount.path("link1"), "changed")?;
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(mount.path("chmod-only"), fs::Permissions::from_mode(0o600))?;
    fs::write(mount.path("own"), "own")?;
    let seen = tree::take(mount.root(), i64::MAX)?;
    mount.unmount()?;

    // Moved elsewhere, with its xattrs: nothing in it may depend on its path.
    let moved = cx.dir.join("moved-upper");
    fs::rename(layers.upper(), &moved)?;
    let mut again = layers.as_lowers("again")?;
    again.lowers[0] = moved;
    let ignore = Ignore { mtime: false, nlink: false };
    let mut read_only = cx.mount(&again)?;
    tree::same(
        "left: the mount, right: its upper as a lower",
        &seen,
        &tree::take(read_only.root(), i64::MAX)?,
        ignore,
    )?;
    read_only.unmount()?;

    // And writable, with a new upper above.
    let top = Layers::new(&cx.dir.join("top"), 0)?;
    let stacked = Layers { lowers: again.lowers.clone(), ..top };
    let mut mount = cx.mount(&stacked)?;
    // The root is now another directory, with times of its own.
    let (mut seen, mut now) = (seen, tree::take(mount.root(), i64::MAX)?);
    seen.remove("");
    now.remove("");
    tree::same("left: the mount, right: below a new upper", &seen, &now, ignore)?;
    fs::write(mount.path("plain/moved/deep/file"), "third")?;
    fs::rename(mount.path("plain/moved"), mount.path("back"))?;
    fs::write(mount.path("chmod-only"), "written")?;
    fs::write(mount.path("link2"), "again")?;
    let check = |mount: &Mount| -> Outcome {
        ensure_eq!(fs::read_to_string(mount.path("back/deep/file"))?, "third", "text");
        ensure_eq!(fs::read_to_string(mount.path("link1"))?, "again", "text of the other link");
        ensure!(!mount.path("plain/moved").exists() && !mount.path("gone").exists(), "what is gone is back");
        Ok(())
    };
    check(&mount)?;
    mount.remount()?;
    check(&mount)?;
    mount.unmount()
}

pub(super) fn many(cx: &Cx) -> Outcome {
    const COUNT: usize = 500;
    let layers = cx.layers("u", COUNT)?;
    for (at, dir) in layers.lowers.iter().enumerate() {
        fs::create_dir(dir.join("dir"))?;
        fs::write(dir.join(format!("dir/only-{at}")), "x")?;
        fs::write(dir.join("same"), at.to_string())?;
    }
    let mut mount = cx.mount(&layers)?;
    ensure_eq!(fs::read_dir(mount.path("dir"))?.count(), COUNT, "entries of the merged directory");
    ensure_eq!(fs::read_to_string(mount.path("same"))?, "0", "the topmost layer wins");
    fs::write(mount.path(&format!("dir/only-{}", COUNT - 1)), "changed")?;
    fs::remove_file(mount.path("dir/only-7"))?;
    mount.remount()?;
    ensure_eq!(fs::read_dir(mount.path("dir"))?.count(), COUNT - 1, "entries after a removal");
    mount.unmount()
}

pub(super) fn read_only(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("f"), "x")?))?;
    mount.unmount()?;
    let mut mount = cx.mount(&layers.as_lowers("ro")?)?;
    let refused = |result: std::io::Result<()>, what: &str| {
        ensure!(
            result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EROFS)),
            "{what} on a tree without an upper: {result:?}"
        );
        Ok(())
    };
    refused(fs::write(mount.path("f"), "y"), "write")?;
    refused(fs::write(mount.path("new"), "y"), "create")?;
    refused(fs::remove_file(mount.path("f")), "unlink")?;
    refused(fs::rename(mount.path("f"), mount.path("g")), "rename")?;
    refused(fs::create_dir(mount.path("d")), "mkdir")?;
    ensure_eq!(fs::read_to_string(mount.path("f"))?, "x", "text");
    mount.unmount()
}

pub(super) fn over_own_lower(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 1)?;
    fs::create_dir(layers.lower().join("dir"))?;
    fs::write(layers.lower().join("dir/file"), "below")?;
    let over = Layers { merged: layers.lower().to_owned(), ..layers.clone() };
    let mut mount = cx.mount(&over)?;
    fs::write(mount.path("dir/file"), "changed")?;
    fs::rename(mount.path("dir"), mount.path("renamed"))?;
    fs::write(mount.path("new"), "x")?;
    ensure_eq!(names(mount.root())?, ["new", "renamed", "renamed/file"], "names");
    mount.unmount()?;
    ensure_eq!(names(layers.lower())?, ["dir", "dir/file"], "names of the lower itself");
    Ok(())
}

pub(super) fn statfs(cx: &Cx) -> Outcome {
    /// Container engines look for it, to see that a union is not the kernel's.
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    let (layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("f"), "x")?))?;
    let (below, here) = (rustix::fs::statfs(layers.upper())?, rustix::fs::statfs(mount.root())?);
    if MountKind::under_test() != MountKind::Kernel {
        ensure_eq!(here.f_type, FUSE_SUPER_MAGIC, "type");
    }
    ensure_eq!(here.f_namelen, below.f_namelen, "longest name");
    ensure_eq!(
        (here.f_bsize, here.f_blocks),
        (below.f_bsize, below.f_blocks),
        "size of blocks and their number"
    );
    ensure_eq!(here.f_files, below.f_files, "inodes");
    mount.unmount()
}

pub(super) fn volatile(cx: &Cx) -> Outcome {
    let layers = cx.layers("union", 1)?;
    fs::write(layers.lower().join("f"), "x")?;
    let mut mount = cx.mount_with(&layers, &["volatile"])?;
    let file = fs::OpenOptions::new().write(true).open(mount.path("f"))?;
    rustix::io::pwrite(&file, b"y", 0)?;
    rustix::fs::fsync(&file)?;
    drop(file);
    let dir = rustix::fs::open(mount.root(), rustix::fs::OFlags::DIRECTORY, Mode::empty())?;
    rustix::fs::fsync(&dir)?;
    rustix::fs::syncfs(&dir)?;
    drop(dir);
    mount.unmount()?;
    // What was written is there nevertheless, as long as the machine stays up.
    ensure_eq!(fs::read_to_string(layers.upper().join("f"))?, "y", "text in the upper");
    Ok(())
}

pub(super) fn kill_nine(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| {
        fs::create_dir(dir.join("dir"))?;
        Ok(fs::write(dir.join("dir/lower"), vec![b'l'; 300_000])?)
    })?;
    for round in 0..5_u8 {
        let path = mount.path("dir/lower");
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        rustix::io::pwrite(&file, &[round], 1000)?;
        rustix::fs::fsync(&file)?;
        drop(file);
        fs::rename(mount.path("dir"), mount.path("other"))?;
        fs::rename(mount.path("other"), mount.path("dir"))?;
        fs::write(mount.path(&format!("new-{round}")), "x")?;
        fs::remove_file(mount.path(&format!("new-{round}")))?;
        mount.crash()?;
        let data = fs::read(mount.path("dir/lower"))?;
        ensure_eq!((data.len(), data[1000]), (300_000, round), "after kill -9, round {round}");
        ensure_eq!(names(mount.root())?, ["dir", "dir/lower"], "names");
    }
    mount.unmount()?;
    no_leftovers(&layers)
}

/// Nothing half done may stay in the work directory: no file with data, no directory with entries.
pub(in crate::cases) fn no_leftovers(layers: &Layers) -> Outcome {
    for (path, node) in tree::take(&layers.work, 0)? {
        let kind = node.mode & libc::S_IFMT;
        ensure!(
            kind == libc::S_IFDIR || kind == libc::S_IFCHR || node.size == 0,
            "left over in the work directory: {path} {node:?}"
        );
    }
    Ok(())
}

pub(super) fn one_writer(cx: &Cx) -> Outcome {
    crate::harness::mount::only_vellum("locks nothing")?;
    let (layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("f"), "x")?))?;
    let merged = layers.merged.with_file_name("second");
    fs::create_dir(&merged)?;
    let second = Layers { merged: merged.clone(), ..layers.clone() };
    let begin = Instant::now();
    let refused = cx.mount(&second);
    let took = begin.elapsed();
    let why = match refused {
        Ok(_) => return crate::harness::fail("a second mount of the same upper is allowed"),
        Err(stop) => stop.to_string(),
    };
    println!("refused after {took:?}: {why}");
    let upper = layers.upper().display().to_string();
    ensure!(why.contains(&upper), "the refusal does not name the upper {upper}: {why}");
    ensure!(took < Duration::from_secs(15), "refused only after {took:?}");
    ensure_eq!(fs::read_to_string(mount.path("f"))?, "x", "the first mount");
    // The lowers are free for a mount with another upper.
    let other = Layers::new(&cx.dir.join("other"), 0)?;
    let mut third = cx.mount(&Layers { lowers: layers.lowers.clone(), ..other })?;
    fs::write(third.path("f"), "y")?;
    ensure_eq!(fs::read_to_string(mount.path("f"))?, "x", "the first mount");
    third.unmount()?;
    mount.unmount()
}

pub(super) fn again_at_once(cx: &Cx) -> Outcome {
    let (_layers, mut mount) = filled(cx, |dir| Ok(fs::write(dir.join("f"), "x")?))?;
    for round in 0..20 {
        fs::write(mount.path("f"), round.to_string())?;
        // Without waiting for the old daemon's end.
        rustix::mount::unmount(mount.root(), rustix::mount::UnmountFlags::empty())?;
        mount.mount().doing(format!("round {round}"))?;
        ensure_eq!(fs::read_to_string(mount.path("f"))?, round.to_string(), "text");
    }
    mount.unmount()
}

/// After `vellum umount` nobody has the layers, however long the service takes to let go of them.
pub(super) fn umount_waits(cx: &Cx) -> Outcome {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return crate::harness::skip("only Vellum has such a command");
    };
    let mut held_up = 0;
    for round in 0..8 {
        let layers = cx.layers(&format!("l{round}"), 1)?;
        let mut mount = cx.mount(&layers)?;
        let service = mount.service()?;
        let point = mount.root().to_owned();
        let brake = std::thread::spawn(move || {
            let begin = Instant::now();
            while vellum_fuse::is_mounted(&point) && begin.elapsed() < Duration::from_secs(20) {
                std::hint::spin_loop();
            }
            let is_held = kill_process(service, Signal::STOP).is_ok();
            std::thread::sleep(Duration::from_millis(300));
            is_held && kill_process(service, Signal::CONT).is_ok()
        });
        shell::run(Command::new(&program).arg("umount").arg(mount.root()))?;
        let upper = rustix::fs::open(layers.upper(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let free = rustix::fs::flock(&upper, FlockOperation::NonBlockingLockExclusive);
        held_up += u32::from(brake.join().unwrap_or(false));
        free.doing(format!("the lock of the upper after vellum umount, round {round}"))?;
        mount.poll_gone()?;
    }
    println!("the service was held up in {held_up} rounds");
    Ok(())
}

pub(super) fn mount_t(cx: &Cx) -> Outcome {
    crate::harness::mount::only_vellum("has another name")?;
    let layers = cx.layers("union", 1)?;
    fs::write(layers.lower().join("f"), "x")?;
    let MountKind::Program(program, _) = MountKind::under_test() else { return Ok(()) };
    // mount(8) gives its helpers a search path of its own; nobody else sees this directory.
    shell::run(&mut shell::words("mount -t tmpfs tmpfs /usr/local/sbin"))?;
    fs::copy(&program, "/usr/local/sbin/vellum")?;
    let options = format!(
        "rw,dev,suid,nofail,noauto,x-systemd.automount,lowerdir={},upperdir={},workdir={}",
        layers.lowerdir(),
        layers.upper().display(),
        layers.work.display()
    );
    if !Path::new("/sbin/mount.fuse").exists() && !Path::new("/sbin/mount.fuse.vellum").exists() {
        return crate::harness::skip("mount.fuse is missing (package fuse3)");
    }
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "fuse.vellum", "vellum"]).arg(&layers.merged).args(["-o", options]);
        shell::run(command.stdin(Stdio::null()))
    };
    mount(&options)?;
    ensure_eq!(fs::read_to_string(layers.merged.join("f"))?, "x", "text");
    fs::write(layers.merged.join("g"), "y")?;
    let table = fs::read_to_string("/proc/self/mounts")?;
    let line =
        table.lines().find(|line| line.contains(&layers.merged.display().to_string())).unwrap_or_default();
    ensure!(line.contains("fuse.vellum"), "the table of mounts says: {line}");
    shell::run(Command::new("umount").arg(&layers.merged))?;
    // As a line of fstab.
    let fstab = cx.dir.join("fstab");
    fs::write(&fstab, format!("vellum {} fuse.vellum {options} 0 0\n", layers.merged.display()))?;
    shell::run(Command::new("mount").arg("-T").arg(&fstab).arg(&layers.merged))?;
    ensure_eq!(fs::read_to_string(layers.merged.join("g"))?, "y", "text after fstab's mount");
    shell::run(Command::new("umount").arg(&layers.merged))?;
    // Through mount(8) and its helper, which shows vellum the options of the mount there is.
    mount(&options)?;
    shell::run(shell::words("mount -o remount,ro").arg(&layers.merged))?;
    ensure!(fs::write(layers.merged.join("g"), "z").is_err(), "remounted read-only, and a write succeeds");
    shell::run(shell::words("mount -o remount,rw").arg(&layers.merged))?;
    fs::write(layers.merged.join("g"), "z")?;
    shell::run(Command::new("umount").arg(&layers.merged))?;
    let table = fs::read_to_string("/proc/self/mounts")?;
    ensure!(!table.contains(&layers.merged.display().to_string()), "something is still mounted: {table}");
    let unknown = mount(&format!("{options},no_such_option=1"));
    ensure!(
        matches!(&unknown, Err(stop) if stop.to_string().contains("no_such_option")),
        "an unknown option is not refused by name: {unknown:?}"
    );
    Ok(())
}
