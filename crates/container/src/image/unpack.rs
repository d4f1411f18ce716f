//! A layer's archive becomes a directory tree: owners, modes, times, attributes, hard links, devices.
//!
//! Whiteouts (`.wh.NAME`) stay the files that they are: Vellum reads them in lower layers.

use super::archive::{Archive, Entry, Kind};
use super::sparse::Region;
use super::{entry_path, implicit_dirs};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use vellum_sys::remove_tree_at;

/// Bytes that are copied at once.
const PART: usize = 128 << 10;

/// Files of this prefix are AUFS's own, but for the one that makes a directory opaque.
const AUFS: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Why a layer is not unpacked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnpackError {
    /// The layer is at fault.
    Layer(String),
    System(String),
    /// Somebody wants to stop.
    Stopped,
}

/// Unpacks what `archive` holds into the directory `root`, which is empty. Between entries it is asked whether to `stop`.
pub(super) fn unpack<R: Read>(
    archive: &mut Archive<R>,
    root: &OwnedFd,
    stop: &dyn Fn() -> bool,
) -> Result<(), UnpackError> {
    let mut tree = Tree { root, times: BTreeMap::new(), part: vec![0; PART] };
    rustix::fs::fchmod(root, Mode::from_raw_mode(0o755)).map_err(|e| UnpackError::System(e.to_string()))?;
    while let Some(entry) = archive.next().map_err(|e| UnpackError::Layer(e.to_string()))? {
        if stop() {
            return Err(UnpackError::Stopped);
        }
        tree.make(&entry, archive).map_err(|why| why.at_entry(&entry.name))?;
    }
    tree.finish()
}

impl UnpackError {
    fn at_entry(self, name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name);
        match self {
            Self::Layer(why) => Self::Layer(format!("{name}: {why}")),
            Self::System(why) => Self::System(format!("{name}: {why}")),
            Self::Stopped => Self::Stopped,
        }
    }
}

impl From<Errno> for UnpackError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::EXIST
            | Errno::NAMETOOLONG
            | Errno::NOTEMPTY
            | Errno::FBIG
            | Errno::XDEV => Self::Layer(e.to_string()),
            _ => Self::System(e.to_string()),
        }
    }
}

struct Tree<'a> {
    root: &'a OwnedFd,
    /// Of directories, whose times change while something is put into them; by their parts, so that those in one follow it.
    times: BTreeMap<Vec<OsString>, (i64, u32)>,
    part: Vec<u8>,
}

impl Tree<'_> {
    fn make(&mut self, entry: &Entry, data: &mut impl Read) -> Result<(), UnpackError> {
        let parts = entry_path::parts(&entry.name).map_err(|why| UnpackError::Layer(why.to_owned()))?;
        let Some((name, above)) = parts.split_last() else {
            // No engine heeds it. A layer of a directory that was private where it was made would make all of the container's so.
            return match entry.kind {
                Kind::Directory => Ok(()),
                _ => Err(UnpackError::Layer("the root of a layer has to be a directory".to_owned())),
            };
        };
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(AUFS) && bytes != OPAQUE {
            return Ok(());
        }
        let parent = entry_path::directory(self.root, above)?;
        match entry.kind {
            Kind::Directory => self.directory(entry, &parts, &parent, name),
            Kind::HardLink => self.hard_link(entry, &parts, &parent, name),
            Kind::File => {
                self.clear(&parts, &parent, name)?;
                self.file(entry, &parent, name, data)
            }
            Kind::Symlink => {
                self.clear(&parts, &parent, name)?;
                rustix::fs::symlinkat(entry.target.as_slice(), &parent, *name)?;
                set_owner(&parent, name, entry)?;
                times(&parent, name, entry.mtime)
            }
            Kind::CharDevice | Kind::BlockDevice | Kind::Fifo => {
                self.clear(&parts, &parent, name)?;
                node(entry, &parent, name)
            }
        }
    }

    /// Takes away what is there of this name, with all that is in it; the last entry of a name counts.
    fn clear(&mut self, parts: &[&OsStr], parent: &OwnedFd, name: &OsStr) -> Result<(), UnpackError> {
        let is_below =
            |path: &[OsString]| path.len() >= parts.len() && path.iter().zip(parts).all(|(a, b)| a == b);
        let gone = self.times.range(owned(parts)..).map(|(path, _)| path).take_while(|path| is_below(path));
        for path in gone.cloned().collect::<Vec<_>>() {
            self.times.remove(&path);
        }
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        Ok(remove_tree_at(parent, &name, u64::MAX)?)
    }

    fn directory(
        &mut self,
        entry: &Entry,
        parts: &[&OsStr],
        parent: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), UnpackError> {
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Err(Errno::EXIST) if is_directory(parent, name)? => implicit_dirs::unmark(opened(parent, name)?)?,
            Err(Errno::EXIST) => {
                self.clear(parts, parent, name)?;
                rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
            }
            made => made?,
        }
        dress(&opened(parent, name)?, entry)?;
        self.times.insert(owned(parts), entry.mtime);
        Ok(())
    }

    fn file(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        name: &OsStr,
        data: &mut impl Read,
    ) -> Result<(), UnpackError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        match &entry.regions {
            None => self.copy(&mut file, data)?,
            Some(regions) => {
                rustix::fs::ftruncate(&file, entry.size)?;
                for Region { offset, len } in regions {
                    file.seek(SeekFrom::Start(*offset)).map_err(|e| UnpackError::System(e.to_string()))?;
                    self.copy(&mut file, &mut data.take(*len))?;
                }
            }
        }
        dress(&file, entry)?;
        Ok(rustix::fs::futimens(&file, &stamps(entry.mtime))?)
    }

    fn copy(&mut self, file: &mut File, data: &mut impl Read) -> Result<(), UnpackError> {
        loop {
            let len = match data.read(&mut self.part) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(UnpackError::Layer(e.to_string())),
            };
            let part = self.part.get(..len).unwrap_or_default();
            file.write_all(part).map_err(|e| UnpackError::System(e.to_string()))?;
        }
    }

    /// Another name of a file. What its header says of owner, mode, times and attributes holds for the file, as the last one's.
    fn hard_link(
        &mut self,
        entry: &Entry,
        parts: &[&OsStr],
        parent: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), UnpackError> {
        let display = String::from_utf8_lossy(&entry.target);
        let none = |why: &str| UnpackError::Layer(format!("a hard link to {display}: {why}"));
        let target = entry_path::parts(&entry.target).map_err(none)?;
        let (last, above) = target.split_last().ok_or_else(|| none("not a file"))?;
        let from = entry_path::open_beneath(self.root, above, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|e| none(&e.to_string()))?;
        let old =
            rustix::fs::statat(&from, *last, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| none(&e.to_string()))?;
        let kind = FileType::from_raw_mode(old.st_mode);
        if kind == FileType::Directory {
            return Err(none("a directory"));
        }
        let is_there = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (old.st_dev, old.st_ino));
        if !is_there {
            self.clear(parts, parent, name)?;
            rustix::fs::linkat(&from, *last, parent, name, AtFlags::empty())
                .map_err(|e| none(&e.to_string()))?;
        }
        // A change of owner would take capabilities away, which such headers do not always repeat.
        if (old.st_uid, old.st_gid) != (entry.uid, entry.gid) {
            set_owner(parent, name, entry)?;
        }
        if kind != FileType::Symlink {
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
        }
        if kind == FileType::RegularFile && !entry.xattrs.is_empty() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            attributes(&rustix::fs::openat(parent, name, flags, Mode::empty())?, entry)?;
        }
        times(parent, name, entry.mtime)
    }

    fn finish(self) -> Result<(), UnpackError> {
        for (path, mtime) in &self.times {
            let parts: Vec<&OsStr> = path.iter().map(OsString::as_os_str).collect();
            let Some((last, above)) = parts.split_last() else { continue };
            let parent = entry_path::open_beneath(self.root, above, OFlags::PATH | OFlags::DIRECTORY);
            match parent.map_err(UnpackError::from).and_then(|parent| times(&parent, last, *mtime)) {
                // It was named by a link that leads elsewhere by now.
                Err(UnpackError::Layer(_)) => {}
                done => done.map_err(|why| why.at_entry(parts.join(OsStr::new("/")).as_bytes()))?,
            }
        }
        Ok(())
    }
}

fn owned(parts: &[&OsStr]) -> Vec<OsString> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn opened(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn is_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, UnpackError> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn node(entry: &Entry, parent: &OwnedFd, name: &OsStr) -> Result<(), UnpackError> {
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
    set_owner(parent, name, entry)?;
    // Without the mask of this process.
    rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
    times(parent, name, entry.mtime)
}

fn ids(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))
}

fn chown_error(entry: &Entry, e: Errno) -> UnpackError {
    let remedy = match e {
        Errno::INVAL | Errno::PERM => {
            "; run as root, or in a user namespace that maps this owner (podman unshare)"
        }
        _ => "",
    };
    UnpackError::System(format!("cannot be owned by {}:{}: {e}{remedy}", entry.uid, entry.gid))
}

fn set_owner(parent: &OwnedFd, name: &OsStr, entry: &Entry) -> Result<(), UnpackError> {
    let (uid, gid) = ids(entry);
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| chown_error(entry, e))
}

/// Owner first, for a change of it takes set-user-ID bits and capabilities away.
fn dress(object: &impl AsFd, entry: &Entry) -> Result<(), UnpackError> {
    let (uid, gid) = ids(entry);
    rustix::fs::fchown(object, uid, gid).map_err(|e| chown_error(entry, e))?;
    rustix::fs::fchmod(object, Mode::from_raw_mode(entry.mode))?;
    attributes(object, entry)
}

fn attributes(object: &impl AsFd, entry: &Entry) -> Result<(), UnpackError> {
    for (name, value) in &entry.xattrs {
        if !is_allowed(name) {
            tracing::debug!("attribute {} is left out", String::from_utf8_lossy(name));
            continue;
        }
        match rustix::fs::fsetxattr(object, name.as_slice(), value, XattrFlags::empty()) {
            Err(e @ (Errno::PERM | Errno::NOTSUP)) => {
                let (file, name) = (String::from_utf8_lossy(&entry.name), String::from_utf8_lossy(name));
                tracing::warn!("{file}: attribute {name} cannot be kept: {e}");
            }
            set => set.map_err(|e| UnpackError::System(format!("{}: {e}", String::from_utf8_lossy(name))))?,
        }
    }
    Ok(())
}

/// Attributes that say something about a file. Others are a union's marks, which would make a layer speak for Vellum, or are made by
/// the host for itself.
fn is_allowed(name: &[u8]) -> bool {
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

fn times(parent: &OwnedFd, name: &OsStr, mtime: (i64, u32)) -> Result<(), UnpackError> {
    Ok(rustix::fs::utimensat(parent, name, &stamps(mtime), AtFlags::SYMLINK_NOFOLLOW)?)
}
