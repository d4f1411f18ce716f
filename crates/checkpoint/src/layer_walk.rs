//! Walking an upper layer that a container may be changing: which objects are there, and which have changed since an earlier walk.
//!
//! The layer's contents are hostile: containers make names and links while we walk. So directories are opened
//! by openat2 beneath the layer's root, following no link, and everything in one by its descriptor and one
//! name.

use rustix::fs::{
    Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, fstatfs, llistxattr, openat2, seek, syncfs,
};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vellum_service::Failure;

/// What was changed as late as this before the first pass may change again with the same times: clocks of filesystems are coarse.
const SLACK: Duration = Duration::from_secs(2);
/// Filesystems of which a store to a mapped page shows in the file's times, once it is written back: ext4, XFS, Btrfs.
const TELLING: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
/// The marks of a partial file, whose holes show the file below.
pub(super) const PARTIAL: [&CStr; 2] = [c"trusted.vellum.p", c"user.vellum.p"];
/// Longest value of an attribute, and longest list of names: the kernel's limit.
pub(super) const XATTR_MAX: usize = 64 << 10;

/// An upper layer that is to be walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upper<'a> {
    /// A directory.
    pub(crate) path: &'a Path,
    /// Whatever its filesystem is, every change shows in an object's time of change.
    pub(crate) tells: bool,
}

impl<'a> From<&'a Path> for Upper<'a> {
    fn from(path: &'a Path) -> Self {
        Self { path, tells: false }
    }
}

impl<'a> From<&'a PathBuf> for Upper<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Self::from(&**path)
    }
}

/// What a pass has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) objects: u64,
    /// Objects that were copied.
    pub(crate) copied: u64,
    /// Bytes of data that were read and written for them.
    pub(crate) bytes: u64,
}

/// What an object looked like before it was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectState {
    pub(super) number: (u64, u64),
    pub(super) mode: u32,
    pub(super) links: u64,
    pub(super) owner: (u32, u32),
    size: i64,
    pub(super) device: u64,
    pub(super) modified: (i64, i64),
    pub(super) changed: (i64, i64),
}

impl ObjectState {
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "types differ between architectures"
    )]
    pub(super) fn from_stat(stat: &Stat) -> Self {
        Self {
            number: (stat.st_dev as u64, stat.st_ino as u64),
            mode: stat.st_mode,
            links: stat.st_nlink as u64,
            owner: (stat.st_uid, stat.st_gid),
            size: stat.st_size,
            device: stat.st_rdev as u64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// A directory beneath one, by no link.
pub(crate) fn directory(top: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    retry_on_intr(|| openat2(top, path, flags, Mode::empty(), resolve))
}

/// The path of an entry, for calls that take no descriptor. It is not followed at its end.
pub(super) fn entry(dir: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

pub(crate) fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for one in Dir::read_from(dir)? {
        let one = one?;
        let name = one.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    Ok(names)
}

/// From which second on changes of a layer show in the times of its objects, so that a pass over it may come
/// before the one that counts. None: its filesystem does not tell of all changes.
pub(super) fn first_detectable_second(
    layer: &OwnedFd,
    display: &Path,
    tells: bool,
) -> Result<Option<i64>, Failure> {
    let kind = fstatfs(layer).map_err(|e| Failure::at(display, e))?.f_type;
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "signed on some architectures")]
    if !tells && !TELLING.contains(&(kind as u64)) {
        return Ok(None);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = i64::try_from(now.saturating_sub(SLACK).as_secs()).unwrap_or(0);
    // From here on every store to a mapped page shows: the kernel makes pages read-only when it writes them back.
    syncfs(layer).map_err(|e| Failure::at(display, e))?;
    Ok(Some(since))
}

/// Why a directory of a layer cannot be reached.
pub(super) fn too_deep(display: &Path) -> Failure {
    Failure::input(format!(
        "{}: directories lie in each other so deep that no path leads there; have the container remove them",
        display.display()
    ))
}

/// Why an object was not copied.
pub(super) enum CopyError {
    /// It is not there any more.
    Gone,
    Io(io::Error),
}

impl CopyError {
    /// Whether an object that is being changed looks like this for a moment.
    pub(super) fn is_transient(e: Errno) -> bool {
        matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::NXIO | Errno::ISDIR)
    }
}

impl From<Errno> for CopyError {
    fn from(e: Errno) -> Self {
        Self::Io(e.into())
    }
}

impl From<io::Error> for CopyError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

pub(super) fn listed(path: &Path) -> rustix::io::Result<Vec<CString>> {
    let mut list = vec![0; XATTR_MAX];
    let len = match llistxattr(path, &mut list) {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let all = list.get(..len).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty());
    all.map(|name| CString::new(name).map_err(|_| Errno::INVAL)).collect()
}

/// Where a file has data: from, to, in order, none next to the other.
pub(super) fn extents(file: impl AsFd, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let file = file.as_fd();
    let (mut found, mut at): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    while at < size {
        let begin = match seek(file, SeekFrom::Data(at)) {
            // Nothing but a hole.
            Err(Errno::NXIO) => break,
            begin => begin?,
        };
        let end = seek(file, SeekFrom::Hole(begin))?.min(size);
        if end <= begin {
            break;
        }
        match found.last_mut() {
            Some(last) if last.1 == begin => last.1 = end,
            _ => found.push((begin, end)),
        }
        at = end;
    }
    Ok(found)
}
