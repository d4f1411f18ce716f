//! Owners, modes and types that are kept in an extended attribute of each file; marks of layers that others have made.

use crate::harness::mount::only_vellum;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::user::ordinary_user;
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::fs::{CWD, FileType, Mode, makedev};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Name, owner, group, mode and device.
type Ownership = (String, u32, u32, u32, u64);

/// Of everything in the tree.
fn seen(root: &Path) -> Outcome<Vec<Ownership>> {
    ["", "file", "below", "dir", "device", "pipe"]
        .into_iter()
        .map(|name| {
            let path = if name.is_empty() { root.to_owned() } else { root.join(name) };
            let attr = fs::symlink_metadata(path)?;
            Ok((name.to_owned(), attr.uid(), attr.gid(), attr.mode(), attr.rdev()))
        })
        .collect()
}

/// What a mount with the option has recorded is seen by every later mount of the layer, and by fuse-overlayfs.
pub(super) fn in_attributes(cx: &Cx) -> Outcome {
    only_vellum("has other records")?;
    for (option, attribute) in [
        ("xattr_permissions=1", "security.fuseoverlayfs.override_stat"),
        ("xattr_permissions=2", "user.fuseoverlayfs.override_stat"),
    ] {
        let layers = cx.layers(option, 1)?;
        fs::write(layers.lower().join("below"), "below")?;
        // Whole in the end, or fuse-overlayfs would not take it.
        let mut mount = cx.mount_with(&layers, &[option, "fill_at_end=1G"])?;
        let path = |name: &str| mount.path(name);
        fs::write(path("file"), "x")?;
        fs::create_dir(path("dir"))?;
        rustix::fs::mknodat(
            CWD,
            path("device"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o660),
            makedev(1, 3),
        )?;
        rustix::fs::mknodat(CWD, path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        for (name, uid, mode) in
            [("file", 1000, 0o4750), ("below", 1001, 0o640), ("dir", 1002, 0o2711), ("device", 1003, 0o660)]
        {
            chown(path(name), Some(uid), Some(uid + 1))?;
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode))?;
        }
        chown(mount.root(), Some(7), Some(8))?;
        let before = seen(mount.root())?;
        mount.unmount()?;
        let real = fs::symlink_metadata(layers.upper().join("file"))?;
        ensure_eq!((real.uid(), real.gid()), (0, 0), "{option}: the inode's own owner");
        let mut value = [0; 64];
        for name in ["", "file", "below", "dir"] {
            let read = rustix::fs::lgetxattr(layers.upper().join(name), attribute, &mut value);
            ensure!(read.is_ok(), "{option}: {name:?} has no {attribute}: {read:?}");
        }
        let above = cx.layers("above", 0)?;
        let on_top = Layers { lowers: layers.as_lowers("x")?.lowers, ..above };
        for (what, layers, options) in [
            ("without the option", &layers, &[][..]),
            ("with the option", &layers, &[option][..]),
            ("as a lower", &on_top, &[][..]),
            ("read-only", &layers.as_lowers("read")?, &[][..]),
        ] {
            let mut mount = cx.mount_with(layers, options)?;
            // The root is the uppermost layer's.
            let from = usize::from(what == "as a lower");
            ensure_eq!(seen(mount.root())?[from..], before[from..], "{option}: {what}");
            mount.unmount()?;
        }
        read_by_others(&layers.as_lowers("others")?, &before, option)?;
    }
    refused(cx)
}

/// fuse-overlayfs reads what it writes itself; of special files it knows no records.
fn read_by_others(layers: &Layers, before: &[Ownership], option: &str) -> Outcome {
    let program = PathBuf::from("/usr/bin/fuse-overlayfs");
    if !program.is_file() {
        return Ok(());
    }
    let mut mount = Mount::new(MountKind::Program(program, false), None, layers, &[])?;
    for (name, uid, gid, mode, _) in
        before.iter().filter(|(name, ..)| ["file", "below", "dir"].contains(&&**name))
    {
        let attr = fs::symlink_metadata(mount.path(name))?;
        ensure_eq!(
            (attr.uid(), attr.gid(), attr.mode()),
            (*uid, *gid, *mode),
            "{option}: {name} by fuse-overlayfs"
        );
    }
    mount.unmount()
}

/// One layer has one kind of record, and files of a layer without records get none afterwards.
fn refused(cx: &Cx) -> Outcome {
    let layers = cx.layers("refused", 1)?;
    let mut mount = cx.mount(&layers)?;
    fs::write(mount.path("file"), "x")?;
    mount.unmount()?;
    let said = format!("{:?}", cx.mount_with(&layers, &["xattr_permissions=2"]).err());
    ensure!(said.contains("in the inode") && said.contains("status: 2"), "owners in inodes: {said}");
    cx.mount_with(&layers, &["xattr_permissions=1"])?.unmount()?;
    let said = format!("{:?}", cx.mount_with(&layers, &["xattr_permissions=2"]).err());
    ensure!(said.contains("other kind") && said.contains("status: 2"), "the other kind: {said}");
    Ok(())
}

/// What others have marked in an upper before it became ours keeps its meaning, and so do the marks of an ordinary user's upper in
/// the hands of root.
pub(super) fn adopted(cx: &Cx) -> Outcome {
    only_vellum("reads other formats")?;
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    let layers = cx.layers("adopted", 1)?;
    for name in ["dir", "other"] {
        fs::create_dir(layers.lower().join(name))?;
        fs::write(layers.lower().join(name).join("hidden"), "below")?;
        fs::create_dir(layers.upper().join(name))?;
    }
    set(&layers.upper().join("dir"), "user.overlay.opaque", b"y")?;
    fs::write(layers.upper().join("other/.wh.hidden"), "")?;
    for round in 0..2 {
        let mut mount = cx.mount(&layers)?;
        for name in ["dir", "other"] {
            ensure_eq!(fs::read_dir(mount.path(name))?.count(), 0, "{name} in mount {round}");
        }
        mount.unmount()?;
    }
    let layers = cx.layers("users", 1)?;
    let data = vec![7; 300 << 10];
    fs::write(layers.lower().join("attributes"), &data)?;
    fs::write(layers.lower().join("blocks"), &data)?;
    set(layers.upper(), "user.vellum.format", b"1")?;
    let mut mount = cx.mount(&layers)?;
    fs::set_permissions(mount.path("attributes"), fs::Permissions::from_mode(0o600))?;
    std::os::unix::fs::FileExt::write_all_at(
        &fs::OpenOptions::new().write(true).open(mount.path("blocks"))?,
        &[9],
        100 << 10,
    )?;
    let mut changed = data.clone();
    changed[100 << 10] = 9;
    for round in 0..2 {
        ensure!(fs::read(mount.path("attributes"))? == data, "attributes alone in mount {round}");
        ensure!(fs::read(mount.path("blocks"))? == changed, "blocks in mount {round}");
        mount.remount()?;
    }
    Ok(())
}

/// A user's service cannot give a copy to root; where another owner is shown in any case, it need not.
pub(super) fn squashed_by_a_user(cx: &Cx) -> Outcome {
    let script = "cd \"$2\"
        \"$1\" -o lowerdir=lower,upperdir=upper,workdir=work,squash_to_uid=1000,squash_to_gid=1000 merged
        cd merged
        chmod 600 a; touch b; mv c moved; ln d again; rm e; echo more >> f; echo new > dir/new; mkdir dir/deep
        rm -r gone; ln -s a link; mkfifo pipe; setfattr -n user.x -v y g; touch program; mv dir away
        stat -c '%n %a %u %g %h' a b moved again f away/new away/deep link pipe g program away; ls away
        cd ..; fusermount3 -u merged
        while ! flock -n upper true; do sleep 0.05; done; stat -c '%n %a %u' upper/program";
    let mut command = ordinary_user(cx, script)?;
    let lower = cx.dir.join("home/lower");
    let fill = "cd \"$0\"; mkdir dir gone; echo in > dir/in; echo in > gone/in
        for name in a b c d e f g program; do echo below > $name; done; chmod 6755 program; chown -R 0:0 .";
    shell::run(shell::bash(fill).arg(&lower))?;
    let said = shell::run(&mut command)?;
    let expected = "a 600 1000 1000 1\nb 644 1000 1000 1\nmoved 644 1000 1000 1\nagain 644 1000 1000 2\n\
        f 644 1000 1000 1\naway/new 644 1000 1000 1\naway/deep 755 1000 1000 1\nlink 777 1000 1000 1\n\
        pipe 644 1000 1000 1\ng 644 1000 1000 1\nprogram 755 1000 1000 1\naway 755 1000 1000 1\n\
        deep\nin\nnew\nupper/program 755 1000\n";
    let links = |text: &str| text.replace("away/deep 755 1000 1000 2", "away/deep 755 1000 1000 1");
    ensure_eq!(links(&said), expected, "what is changed");
    Ok(())
}
