//! By what a tree is known again: a digest of all its names, and of what they are. Data are not read.
//!
//! A tree of this host and one on CephFS that are alike have the same one.

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, fstat, openat2, readlinkat, statat};
use rustix::io::retry_on_intr;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_service::layers::ceph::Visit;

/// What counts of an object.
struct Object {
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    /// When its data have changed: seconds, nanoseconds.
    changed: (i64, u64),
    /// Of a symbolic link.
    target: Vec<u8>,
}

/// A directory, and what is in it.
type DirListing = (Object, Vec<(OsString, Object)>);

trait Tree {
    /// The directory at a path below its root. No symbolic link on the way is followed.
    fn list(&self, path: &Path) -> io::Result<DirListing>;
    /// What messages call it.
    fn display(&self, path: &Path) -> String;
}

/// The digest of a directory tree of this host.
pub(super) fn of_directory(tree: &Path) -> Result<String, Failure> {
    let failed =
        |e: rustix::io::Errno| Failure::system(tree.display().to_string()).because(io::Error::from(e));
    let top = rustix::fs::open(tree, DIRECTORY, Mode::empty()).map_err(failed)?;
    digest_tree(&HostTree { top, display: tree })
}

/// That of one on CephFS.
pub(super) fn of_visit(tree: &Visit) -> Result<String, Failure> {
    digest_tree(tree)
}

/// Of each object its path, kind, mode, owner, time of change of its data, size, and for links and devices what they are. A copy that keeps
/// all that has the same one.
fn digest_tree(tree: &dyn Tree) -> Result<String, Failure> {
    let mut digest = Sha256::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let listed = tree.list(&dir).map_err(|e| Failure::system(tree.display(&dir)).because(e))?;
        let below = add(listed, &dir, &mut digest);
        dirs.extend(below.into_iter().rev().map(|name| dir.join(name)));
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Adds a directory's entries; the directories among them, in order.
fn add((own, mut entries): DirListing, path: &Path, digest: &mut Sha256) -> Vec<OsString> {
    // A text says how long it is, so that no two trees are written in one way.
    let mut text = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    text(path.as_os_str().as_bytes());
    text(format!("{} {} {} {}", own.mode, own.uid, own.gid, entries.len()).as_bytes());
    let mut below = Vec::new();
    for (name, object) in entries {
        let Object { mode, uid, gid, rdev, size, changed: (secs, nanos), target } = object;
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        text(name.as_bytes());
        match kind {
            rustix::fs::FileType::Directory => {
                below.push(name);
                continue;
            }
            rustix::fs::FileType::RegularFile => {}
            _ => {
                text(format!("{mode} {uid} {gid} {rdev} 0 {secs}.{nanos}").as_bytes());
                if kind == rustix::fs::FileType::Symlink {
                    text(&target);
                }
                continue;
            }
        }
        text(format!("{mode} {uid} {gid} {rdev} {size} {secs}.{nanos}").as_bytes());
    }
    below
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

struct HostTree<'a> {
    top: OwnedFd,
    display: &'a Path,
}

impl Tree for HostTree<'_> {
    fn list(&self, path: &Path) -> io::Result<DirListing> {
        let opened = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let dir = retry_on_intr(|| openat2(&self.top, opened, DIRECTORY, Mode::empty(), resolve))?;
        let mut entries = Vec::new();
        for one in Dir::read_from(&dir)? {
            let one = one?;
            let name = one.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = OsString::from_vec(name.to_vec());
            let mut object = object(&statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?);
            if rustix::fs::FileType::from_raw_mode(object.mode) == rustix::fs::FileType::Symlink {
                object.target = readlinkat(&dir, &name, Vec::new())?.into_bytes();
            }
            entries.push((name, object));
        }
        Ok((object(&fstat(&dir)?), entries))
    }

    fn display(&self, path: &Path) -> String {
        self.display.join(path).display().to_string()
    }
}

// The width of these fields differs between architectures.
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::useless_conversion)]
fn object(stat: &rustix::fs::Stat) -> Object {
    Object {
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        size: stat.st_size as u64,
        changed: (stat.st_mtime, stat.st_mtime_nsec as u64),
        target: Vec::new(),
    }
}

impl Tree for Visit {
    fn list(&self, path: &Path) -> io::Result<DirListing> {
        let object = |attr: vellum_vfs::Attr, target| Object {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            changed: (attr.mtime.secs, attr.mtime.nanos.into()),
            target,
        };
        let (own, entries) = Self::list(self, path)?;
        let entries = entries.into_iter().map(|one| (one.name, object(one.attr, one.target))).collect();
        Ok((object(own, Vec::new()), entries))
    }

    fn display(&self, path: &Path) -> String {
        format!("{}/{}", self.layer(), path.display())
    }
}
