//! A layer's archive becomes a directory tree: owners, modes, times, attributes, hard links, devices.
//!
//! Whiteouts (`.wh.NAME`) stay the files that they are: Vellum reads them in lower layers.

use super::archive::{Archive, Entry, Kind};
use super::place;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that are copied at once.
const PART: usize = 128 << 10;

/// Files of this prefix are AUFS's own, but for the one that makes a directory opaque.
const AUFS: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Why a layer is not unpacked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The layer is at fault.
    Layer(String),
    /// The system is.
    System(String),
    /// Somebody wants to stop.
    Stopped,
}

/// Unpacks what `archive` holds into the directory `root`, which is empty. Between entries it is asked whether to `stop`.
pub(super) fn unpack<R: Read>(
    archive: &mut Archive<R>,
    root: &OwnedFd,
    stop: &dyn Fn() -> bool,
) -> Result<(), Trouble> {
    let mut tree = Tree { root, times: BTreeMap::new(), part: vec![0; PART] };
    // The archive may say otherwise.
    rustix::fs::fchmod(root, Mode::from_raw_mode(0o755)).map_err(|e| Trouble::System(e.to_string()))?;
    while let Some(entry) = archive.next().map_err(|e| Trouble::Layer(e.to_string()))? {
        if stop() {
            return Err(Trouble::Stopped);
        }
        tree.make(&entry, archive).map_err(|why| why.about(&entry.name))?;
    }
    tree.finish()
}

impl Trouble {
    fn about(self, name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name);
        match self {
            Self::Layer(why) => Self::Layer(format!("{name}: {why}")),
            Self::System(why) => Self::System(format!("{name}: {why}")),
            Self::Stopped => Self::Stopped,
        }
    }
}

impl From<Errno> for Trouble {
    fn from(e: Errno) -> Self {
        match e {
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::EXIST
            | Errno::NAMETOOLONG
            | Errno::NOTEMPTY
            | Errno::XDEV => Self::Layer(e.to_string()),
            _ => Self::System(e.to_string()),
        }
    }
}

struct Tree<'a> {
    root: &'a OwnedFd,
    /// Of directories, whose times change while something is put into them.
    times: BTreeMap<Vec<u8>, (i64, u32)>,
    part: Vec<u8>,
}

impl Tree<'_> {
    fn make(&mut self, entry: &Entry, data: &mut impl Read) -> Result<(), Trouble> {
        let parts = place::parts(&entry.name).map_err(|why| Trouble::Layer(why.to_owned()))?;
        let Some((name, above)) = parts.split_last() else {
            return self.top(entry);
        };
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(AUFS) && bytes != OPAQUE {
            return Ok(());
        }
        let parent = place::directory(self.root, above)?;
        match entry.kind {
            Kind::Directory => self.directory(entry, &parent, name),
            Kind::HardLink => self.hard_link(entry, &parent, name),
            Kind::File => {
                clear(&parent, name)?;
                self.file(entry, &parent, name, data)
            }
            Kind::Symlink => {
                clear(&parent, name)?;
                rustix::fs::symlinkat(entry.target.as_slice(), &parent, *name)?;
                own(&parent, name, entry)?;
                times(&parent, name, entry.mtime)
            }
            Kind::CharDevice | Kind::BlockDevice | Kind::Fifo => {
                clear(&parent, name)?;
                node(entry, &parent, name)
            }
        }
    }

    /// The root of the layer itself.
    fn top(&mut self, entry: &Entry) -> Result<(), Trouble> {
        if entry.kind != Kind::Directory {
            return Err(Trouble::Layer("the root of a layer has to be a directory".to_owned()));
        }
        dress(self.root, entry)?;
        self.times.insert(Vec::new(), entry.mtime);
        Ok(())
    }

    fn directory(&mut self, entry: &Entry, parent: &OwnedFd, name: &OsStr) -> Result<(), Trouble> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Err(Errno::EXIST) if is_directory(parent, name)? => {}
            Err(Errno::EXIST) => {
                clear(parent, name)?;
                rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
            }
            made => made?,
        }
        dress(&rustix::fs::openat(parent, name, flags, Mode::empty())?, entry)?;
        self.times.insert(entry.name.clone(), entry.mtime);
        Ok(())
    }

    fn file(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &OsStr,
        data: &mut impl Read,
    ) -> Result<(), Trouble> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        loop {
            let len = match data.read(&mut self.part) {
                Ok(0) => break,
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Trouble::Layer(e.to_string())),
            };
            let part = self.part.get(..len).unwrap_or_default();
            file.write_all(part).map_err(|e| Trouble::System(e.to_string()))?;
        }
        dress(&file, entry)?;
        Ok(rustix::fs::futimens(&file, &stamps(entry.mtime))?)
    }

    fn hard_link(&mut self, entry: &Entry, parent: &OwnedFd, name: &OsStr) -> Result<(), Trouble> {
        // Some archives write the names of targets with a slash before them; they mean the layer's root.
        let target = entry.target.strip_prefix(b"/").unwrap_or(&entry.target);
        let shown = String::from_utf8_lossy(target).into_owned();
        let none = |why: &str| Trouble::Layer(format!("a hard link to {shown}: {why}"));
        let parts = place::parts(target).map_err(none)?;
        let (last, above) = parts.split_last().ok_or_else(|| none("not a file"))?;
        let from = place::open_beneath(self.root, above, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|e| none(&e.to_string()))?;
        let old =
            rustix::fs::statat(&from, *last, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| none(&e.to_string()))?;
        if FileType::from_raw_mode(old.st_mode) == FileType::Directory {
            return Err(none("a directory"));
        }
        if let Ok(now) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            && (now.st_dev, now.st_ino) == (old.st_dev, old.st_ino)
        {
            return Ok(());
        }
        clear(parent, name)?;
        Ok(rustix::fs::linkat(&from, *last, parent, name, AtFlags::empty())?)
    }

    fn finish(self) -> Result<(), Trouble> {
        for (name, mtime) in &self.times {
            let parts = place::parts(name).map_err(|why| Trouble::Layer(why.to_owned()))?;
            let done = match parts.split_last() {
                None => Ok(rustix::fs::futimens(self.root, &stamps(*mtime))?),
                Some((last, above)) => {
                    let parent = place::open_beneath(self.root, above, OFlags::PATH | OFlags::DIRECTORY);
                    parent.map_err(Trouble::from).and_then(|parent| times(&parent, last, *mtime))
                }
            };
            done.map_err(|why| why.about(name))?;
        }
        Ok(())
    }
}

/// Takes away what is there of this name; the last entry of a name counts.
fn clear(parent: &OwnedFd, name: &OsStr) -> Result<(), Trouble> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => Err(Trouble::Layer("it is a directory with entries already".to_owned())),
            removed => Ok(removed?),
        },
        Err(e) => Err(e.into()),
    }
}

fn is_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, Trouble> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn node(entry: &Entry, parent: &OwnedFd, name: &OsStr) -> Result<(), Trouble> {
    let kind = match entry.kind {
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        _ => FileType::Fifo,
    };
    let mode = Mode::from_raw_mode(entry.mode);
    let device = rustix::fs::makedev(entry.device.0, entry.device.1);
    match rustix::fs::mknodat(parent, name, kind, mode, device) {
        // A user namespace has no devices; a container's are its runtime's in any case.
        Err(Errno::PERM) if kind != FileType::Fifo => {
            tracing::warn!("{}: devices cannot be made here", String::from_utf8_lossy(&entry.name));
            return Ok(());
        }
        made => made?,
    }
    own(parent, name, entry)?;
    // Without the mask of this process.
    rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
    times(parent, name, entry.mtime)
}

fn ids(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))
}

fn not_owned(entry: &Entry, e: Errno) -> Trouble {
    let remedy = match e {
        Errno::INVAL | Errno::PERM => {
            "; run as root, or in a user namespace that maps this owner (podman unshare)"
        }
        _ => "",
    };
    Trouble::System(format!("cannot be owned by {}:{}: {e}{remedy}", entry.uid, entry.gid))
}

fn own(parent: &OwnedFd, name: &OsStr, entry: &Entry) -> Result<(), Trouble> {
    let (uid, gid) = ids(entry);
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| not_owned(entry, e))
}

/// Owner first, for a change of it takes set-user-ID bits and capabilities away.
fn dress(object: &impl AsFd, entry: &Entry) -> Result<(), Trouble> {
    let (uid, gid) = ids(entry);
    rustix::fs::fchown(object, uid, gid).map_err(|e| not_owned(entry, e))?;
    rustix::fs::fchmod(object, Mode::from_raw_mode(entry.mode))?;
    for (name, value) in &entry.xattrs {
        if !is_welcome(name) {
            tracing::debug!("attribute {} is left out", String::from_utf8_lossy(name));
            continue;
        }
        match rustix::fs::fsetxattr(object, name.as_slice(), value, XattrFlags::empty()) {
            Err(e @ (Errno::PERM | Errno::NOTSUP)) => {
                let (file, name) = (String::from_utf8_lossy(&entry.name), String::from_utf8_lossy(name));
                tracing::warn!("{file}: attribute {name} cannot be kept: {e}");
            }
            set => set.map_err(|e| Trouble::System(format!("{}: {e}", String::from_utf8_lossy(name))))?,
        }
    }
    Ok(())
}

/// Attributes that say something about a file. Others are a union's marks, which would make a layer speak for Vellum, or are made by
/// the host for itself.
fn is_welcome(name: &[u8]) -> bool {
    const MARKS: [&[u8]; 4] =
        [b"user.overlay.", b"user.vellum.", b"user.fuseoverlayfs.", b"user.containers."];
    let user = name.starts_with(b"user.") && !MARKS.iter().any(|mark| name.starts_with(mark));
    user || [&b"security.capability"[..], b"system.posix_acl_access", b"system.posix_acl_default"]
        .contains(&name)
}

fn stamps((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn times(parent: &OwnedFd, name: &OsStr, mtime: (i64, u32)) -> Result<(), Trouble> {
    Ok(rustix::fs::utimensat(parent, name, &stamps(mtime), AtFlags::SYMLINK_NOFOLLOW)?)
}
