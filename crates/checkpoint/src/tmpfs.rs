//! Files in memory (tmpfs) of a container, as far as CRIU does not keep them.
//!
//! CRIU packs such a filesystem without extended attributes. So access-control lists, capabilities and users' attributes are lost, and the
//! mask of a list comes back as the rights of the group. Whoever takes a checkpoint is told.

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, makedev, open, openat2, statx,
};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vellum_service::mounts::mountpoint::{Mount, mounts};
use vellum_sys::{Real, Sys, XattrTarget};

/// Most objects of a container that are looked at.
const OBJECTS_MAX: usize = 200_000;
/// Longest list of names of attributes.
const LIST_MAX: usize = 64 << 10;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
struct UnsavedAttributes {
    files: usize,
    first: PathBuf,
}

/// Says in one line what a checkpoint of the container would lose. `init`: its first process.
pub(super) fn warn(container: &str, init: u32) {
    let Ok(root) = open(format!("/proc/{init}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let mut lost = UnsavedAttributes::default();
    let mut left = OBJECTS_MAX;
    for mount in container_mounts(mounts(&init.to_string()), &mounts("self")) {
        look(&root, &mount, &mut lost, &mut left);
    }
    if lost.files > 0 {
        tracing::warn!(
            "container {container}: files in memory (tmpfs) with access lists, capabilities or attributes: {}, such as {}; CRIU keeps none of \
             those, and a list's mask comes back as the rights of the group",
            lost.files,
            lost.first.display()
        );
    }
}

/// The filesystems in memory that are the container's alone: CRIU keeps no others.
fn container_mounts(all: Vec<Mount>, host: &[Mount]) -> Vec<Mount> {
    let of_host: Vec<&str> = host.iter().map(|mount| &*mount.device).collect();
    let is_own = |mount: &Mount| {
        mount.fs_type == "tmpfs" && mount.root == Path::new("/") && !of_host.contains(&&*mount.device)
    };
    all.into_iter().filter(is_own).collect()
}

/// Looks at all that is in a mount. What goes away meanwhile, and what another mount hides, is none of it.
fn look(root: &OwnedFd, mount: &Mount, lost: &mut UnsavedAttributes, left: &mut usize) {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let Ok(top) = openat2(root, &mount.point, DIRECTORY, Mode::empty(), within) else { return };
    let Ok(stat) = statx(&top, c"", AtFlags::EMPTY_PATH, StatxFlags::empty()) else { return };
    let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
    if Some(device) != number(&mount.device) {
        return;
    }
    look_below(&top, &mount.point, lost, left);
}

/// The number of `MAJOR:MINOR`.
fn number(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn look_below(top: &OwnedFd, point: &Path, lost: &mut UnsavedAttributes, left: &mut usize) {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let mut names = vec![0; LIST_MAX];
    let mut is_lost = |of: XattrTarget<'_>| {
        let len = Real.list_xattr(of, &mut names).unwrap_or(0);
        names.get(..len).unwrap_or_default().split(|byte| *byte == 0).any(is_unsaved_attribute)
    };
    let mut note = |path: &Path| {
        lost.files += 1;
        if lost.files == 1 {
            lost.first = point.join(path);
        }
    };
    if is_lost(XattrTarget::Dir(top.as_fd())) {
        note(Path::new(""));
    }
    let mut dirs = vec![PathBuf::from(".")];
    while let Some(path) = dirs.pop() {
        let Ok(dir) = openat2(top, &path, DIRECTORY, Mode::empty(), within) else { continue };
        let Ok(entries) = Dir::read_from(&dir) else { continue };
        for entry in entries.flatten() {
            let name: CString = entry.file_name().to_owned();
            if name.as_bytes() == b"." || name.as_bytes() == b".." {
                continue;
            }
            let Some(less) = left.checked_sub(1) else { return };
            *left = less;
            let path = path.join(OsStr::from_bytes(name.as_bytes()));
            if is_lost(XattrTarget::Name(dir.as_fd(), &name)) {
                note(path.strip_prefix(".").unwrap_or(&path));
            }
            if entry.file_type() == FileType::Directory {
                dirs.push(path);
            }
        }
    }
}

/// Labels of security modules are given anew by those.
fn is_unsaved_attribute(name: &[u8]) -> bool {
    let kinds: [&[u8]; 4] = [b"system.posix_acl_", b"security.capability", b"user.", b"trusted."];
    kinds.iter().any(|kind| name.starts_with(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{XattrFlags, setxattr};
    use vellum_service::mounts::mountpoint::parse_mounts;

    #[test]
    fn only_the_containers_own_tmpfs_mounts_are_examined() {
        let host = b"20 1 0:5 / /run rw - tmpfs tmpfs rw\n";
        let table = b"30 1 0:5 / /run rw - tmpfs tmpfs rw\n31 1 0:6 / /dev/shm rw - tmpfs shm rw\n32 1 0:7 /x /etc/hosts rw - tmpfs t rw\n\
                      33 1 8:1 / / rw - ext4 d rw\n";
        let points: Vec<PathBuf> = container_mounts(parse_mounts(table), &parse_mounts(host))
            .into_iter()
            .map(|mount| mount.point)
            .collect();
        assert_eq!(points, [PathBuf::from("/dev/shm")]);
        assert_eq!(number("0:6"), Some(makedev(0, 6)));
        assert_eq!(number("6"), None);
    }

    #[test]
    fn files_with_attributes_are_found_at_any_depth() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let deep = dir.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        for file in ["plain", "marked"] {
            std::fs::write(deep.join(file), "x").unwrap();
        }
        let found = |left: &mut usize| {
            let mut lost = UnsavedAttributes::default();
            let top = open(dir.path(), DIRECTORY, Mode::empty()).unwrap();
            look_below(&top, Path::new("/dev/shm"), &mut lost, left);
            lost
        };
        assert_eq!(found(&mut 100), UnsavedAttributes::default());
        match setxattr(deep.join("marked"), "user.color", b"blue", XattrFlags::empty()) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                return println!("SKIPPED: /var/tmp keeps no attributes of users");
            }
            set => set.unwrap(),
        }
        assert_eq!(found(&mut 100), UnsavedAttributes { files: 1, first: "/dev/shm/a/b/marked".into() });
        assert_eq!(found(&mut 1), UnsavedAttributes::default(), "bounded");
        for (name, is_it) in [
            (&b"system.posix_acl_access"[..], true),
            (b"security.capability", true),
            (b"security.selinux", false),
            (b"", false),
        ] {
            assert_eq!(is_unsaved_attribute(name), is_it);
        }
    }
}
