//! Marks that a program puts on a file of its own, which it was given over a ring: no later mount of the layer believes them.

use super::{Ground, status};
use crate::harness::mount::{MountKind, Profile};
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Layers, Mount};
use libc::{O_CREAT, O_EXCL, O_RDWR};
use rustix::fs::{XattrFlags, fsetxattr, getxattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const SECRET: &[u8] = b"root:$6$secret$hash:19000::::::";

/// Everything that users can set on a file and that means something in some format of a layer.
const MARKS: &[(&str, &[u8])] = &[
    ("user.overlay.metacopy", b""),
    ("user.overlay.redirect", b"/etc/shadow"),
    ("user.overlay.opaque", b"y"),
    ("user.overlay.whiteout", b""),
    ("user.overlay.origin", b"x"),
    ("user.fuseoverlayfs.opaque", b"y"),
    ("user.fuseoverlayfs.override_stat", b"0:0:4755"),
    ("user.containers.override_stat", b"0:0:4755"),
    ("user.vellum.format", b"1"),
    ("user.vellum.o", b"1"),
    ("user.vellum.p", b"1"),
];

pub(super) fn forged(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| {
        fs::create_dir(lower.join("etc"))?;
        fs::write(lower.join("etc/shadow"), SECRET)?;
        Ok(fs::set_permissions(lower.join("etc/shadow"), fs::Permissions::from_mode(0o600))?)
    };
    let mut ground = Ground::new(cx, fill)?;
    // Through the mount nobody sets them, on whatever it is: the layer has them under another name, or not at all.
    for (name, value) in MARKS {
        for path in ["", "new", "etc/shadow"] {
            let set = setxattr(ground.path(path), *name, value, XattrFlags::empty());
            ensure!(matches!(set, Ok(()) | Err(Errno::OPNOTSUPP)), "{name} on {path}: {set:?}");
            let stored = getxattr(ground.layers.upper().join(path), *name, &mut [0; 64]);
            ensure!(stored.is_err(), "{name} on {path} is in the layer");
        }
    }
    let program = ground.program()?;
    let dir = program.enter(&ground.path("new"))?.or_else(status)?;
    // Only a file without any block may be without data; more than these marks would take one.
    for (name, marks) in [("mine", &MARKS[..2]), ("other", MARKS)] {
        let file = program.opened(dir, name, O_CREAT | O_EXCL | O_RDWR, 0o640)?;
        rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(1000)), None)?;
        file.set_len(SECRET.len() as u64)?;
        for (name, value) in marks {
            fsetxattr(&file, *name, value, XattrFlags::empty())?;
        }
    }
    drop(program);
    looks_right(&ground.mount, "the same mount")?;
    ground.0.mount.unmount()?;
    let layers = ground.layers.clone();
    // An upper of the layers, and other layers on top of it.
    let above = cx.layers("above", 0)?;
    let on_top = Layers { lowers: layers.as_lowers("on-top")?.lowers, ..above.clone() };
    for (what, layers, profile) in [
        ("cached", &layers, Profile::Cached),
        ("passthrough, in no pool", &layers, Profile::Passthrough),
        ("a lower", &on_top, Profile::Cached),
        ("a lower of a read-only mount", &layers.as_lowers("read")?, Profile::Cached),
    ] {
        let mut mount = Mount::new(MountKind::under_test(), Some(profile), layers, &[])?;
        looks_right(&mount, what)?;
        mount.unmount()?;
    }
    // The records of owners are no owners either, and to make them some is refused before anything is changed.
    let recorded = Mount::new(MountKind::under_test(), cx.profile, &layers, &["xattr_permissions=2"]);
    let refusal = format!("{:?}", recorded.err());
    ensure!(refusal.contains("xattr_permissions"), "with owners in attributes: {refusal}");
    Ok(())
}

fn looks_right(mount: &Mount, what: &str) -> Outcome {
    for name in ["mine", "other"] {
        let path = mount.path("new").join(name);
        let seen = fs::metadata(&path)?;
        ensure_eq!((seen.uid(), seen.mode() & 0o7777), (1000, 0o640), "{what}: owner and mode of {name}");
        ensure_eq!(fs::read(&path)?, vec![0; SECRET.len()], "{what}: a forged mark of {name} is believed");
    }
    let secret = mount.path("etc/shadow");
    ensure_eq!(fs::read(&secret)?, SECRET, "{what}: what has marks under other names");
    ensure_eq!(fs::metadata(&secret)?.mode() & 0o7777, 0o600, "{what}: its mode");
    Ok(())
}
