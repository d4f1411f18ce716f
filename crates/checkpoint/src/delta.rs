//! A copy of an upper layer as it is at one moment, of which that moment costs as little as possible.
//!
//! The first pass copies while the layer is being changed. The second one, when nothing changes it any more, looks at every object again and
//! copies what has changed since: so that moment takes as long as the layer has objects and changes, and not as long as it has bytes.
//!
//! The layer's contents are hostile: containers make names and links while we walk. So directories are opened by openat2 beneath the layer's root,
//! following no link, and everything in one by its descriptor and one name.

use super::data;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chmodat, chownat, fstatfs, lgetxattr, linkat, llistxattr, lremovexattr, lsetxattr, mkdirat, mknodat,
    openat, openat2, readlinkat, statat, symlinkat, syncfs, utimensat,
};
use rustix::io::{Errno, retry_on_intr};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vellum_service::Failure;
use vellum_sys::remove_tree_at;

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
    /// Objects in the layer.
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

/// A layer, and its copy so far.
#[derive(Debug)]
pub(crate) struct Delta {
    from: OwnedFd,
    to: OwnedFd,
    display: PathBuf,
    tells: bool,
    /// By path: what has been copied.
    seen: HashMap<PathBuf, ObjectState>,
    /// What was changed in this second or later may have changed after it was looked at; None: nothing was copied yet.
    since: Option<i64>,
}

/// One pass over it.
struct Pass<'a> {
    delta: &'a Delta,
    /// Nothing changes any more, so what cannot be read is an error.
    still: bool,
    seen: HashMap<PathBuf, ObjectState>,
    /// Objects with several names: the one under which each was copied.
    names: HashMap<(u64, u64), PathBuf>,
    dirs: Vec<PathBuf>,
    amount: Amount,
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

/// From which second on changes of a layer show in the times of its objects, so that a pass over it may come before the one that counts. None: its
/// filesystem does not tell of all changes.
pub(super) fn tells_from(layer: &OwnedFd, display: &Path, tells: bool) -> Result<Option<i64>, Failure> {
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

impl Delta {
    /// Of the layer in one directory, to another one that is empty.
    pub(crate) fn new<'a>(from: impl Into<Upper<'a>>, to: &Path) -> Result<Self, Failure> {
        let Upper { path: from, tells } = from.into();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open =
            |path: &Path| rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Failure::at(path, e));
        Ok(Self {
            from: open(from)?,
            to: open(to)?,
            display: from.to_owned(),
            tells,
            seen: HashMap::new(),
            since: None,
        })
    }

    /// Copies all that is there while it is being changed. Nothing happens where the filesystem does not tell of all changes.
    pub(crate) fn first_pass(&mut self) -> Result<Amount, Failure> {
        let Some(since) = tells_from(&self.from, &self.display, self.tells)? else {
            return Ok(Amount::default());
        };
        let amount = self.pass(false)?;
        self.since = Some(since);
        Ok(amount)
    }

    /// Makes the copy what the layer is now. Nothing may change it meanwhile.
    pub(crate) fn final_pass(&mut self) -> Result<Amount, Failure> {
        self.pass(true)
    }

    /// Makes the copy durable, with all that is on its filesystem.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        syncfs(&self.to).map_err(|e| Failure::at(&self.display, e))
    }

    /// Bytes that the copy takes.
    pub(crate) fn bytes(&self) -> Result<u64, Failure> {
        let failed = |e: Errno| Failure::at(&self.display, e);
        let mut bytes = 0;
        for dir in
            self.seen.iter().filter(|(_, look)| look.kind() == FileType::Directory).map(|(path, _)| path)
        {
            let dir = directory(&self.to, dir).map_err(failed)?;
            for name in names(dir.as_fd()).map_err(failed)? {
                let stat = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            }
        }
        Ok(bytes)
    }

    fn pass(&mut self, still: bool) -> Result<Amount, Failure> {
        let mut pass = Pass {
            delta: self,
            still,
            seen: HashMap::with_capacity(self.seen.len()),
            names: HashMap::new(),
            dirs: vec![PathBuf::new()],
            amount: Amount::default(),
        };
        let mut touched = Vec::new();
        while let Some(dir) = pass.dirs.pop() {
            if pass.directory(&dir)? {
                touched.push(dir);
            }
        }
        // What was made in a directory has changed its times.
        for dir in touched.iter().rev() {
            pass.finish(dir)?;
        }
        let Pass { seen, amount, .. } = pass;
        self.seen = seen;
        Ok(amount)
    }
}

impl Pass<'_> {
    /// Whether an object is as it was when it was copied.
    fn unchanged(&self, path: &Path, look: &ObjectState) -> bool {
        self.delta.since.is_some_and(|since| look.changed.0 < since)
            && self.delta.seen.get(path) == Some(look)
    }

    /// What is gone, or has become something else, while the layer is being changed. The second pass sees to it.
    fn passing(&self, e: Errno) -> bool {
        !self.still && CopyError::is_passing(e)
    }

    /// Copies what is in a directory, but for what is in directories in it. False: it is gone, or is as it was copied before.
    fn directory(&mut self, path: &Path) -> Result<bool, Failure> {
        let display = self.delta.display.join(path);
        let from = match directory(&self.delta.from, path) {
            Err(e) if self.passing(e) => return Ok(false),
            Err(Errno::NAMETOOLONG) => {
                return Err(too_deep(&self.delta.display));
            }
            from => from.map_err(|e| Failure::at(&display, e))?,
        };
        let to = directory(&self.delta.to, path).map_err(|e| Failure::at(&display, e))?;
        let look = ObjectState::from_stat(&rustix::fs::fstat(&from).map_err(|e| Failure::at(&display, e))?);
        let known = self.unchanged(path, &look);
        let all = names(from.as_fd()).map_err(|e| Failure::at(&display, e))?;
        // Of a layer that is shown the directory itself may be late to say that names have gone.
        if self.delta.since.is_some() && (!known || self.delta.tells) {
            let there: HashSet<&OsString> = all.iter().collect();
            for name in names(to.as_fd()).map_err(|e| Failure::at(&display, e))? {
                if !there.contains(&name) {
                    remove(to.as_fd(), &name).map_err(|e| Failure::at(&display.join(&name), e))?;
                }
            }
        }
        let before = self.amount.copied;
        for name in &all {
            match self.entry(from.as_fd(), to.as_fd(), path, name) {
                Err(CopyError::Gone) => {}
                Err(CopyError::Io(e)) => return Err(Failure::at(&display.join(name), e)),
                Ok(()) => {}
            }
        }
        self.seen.insert(path.to_owned(), look);
        Ok(!known || self.amount.copied > before)
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        dir: &Path,
        name: &OsStr,
    ) -> Result<(), CopyError> {
        let path = dir.join(name);
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW);
        let look = ObjectState::from_stat(&stat.map_err(|e| self.trouble(e))?);
        self.amount.objects += 1;
        if look.kind() == FileType::Directory {
            match mkdirat(to, name, Mode::RWXU) {
                Err(Errno::EXIST) if is_directory(to, name) => {}
                Err(Errno::EXIST) => {
                    remove(to, name)?;
                    mkdirat(to, name, Mode::RWXU)?;
                }
                made => made?,
            }
            self.dirs.push(path);
            return Ok(());
        }
        if self.unchanged(&path, &look) {
            self.seen.insert(path, look);
            return Ok(());
        }
        if self.delta.since.is_some() {
            remove(to, name)?;
        }
        self.amount.copied += 1;
        let first = self.names.get(&look.number).filter(|_| look.links > 1);
        let linked = match first.map(|first| linkat(&self.delta.to, first, to, name, AtFlags::empty())) {
            // More names than the filesystem of the copy can give to one object, or the first one is gone again.
            None | Some(Err(Errno::MLINK | Errno::NOENT)) => false,
            Some(linked) => linked.map(|()| true)?,
        };
        if !linked {
            self.object(from, to, name, &look)?;
            self.names.insert(look.number, path.clone());
        }
        self.seen.insert(path, look);
        Ok(())
    }

    fn trouble(&self, e: Errno) -> CopyError {
        if self.passing(e) { CopyError::Gone } else { CopyError::Io(e.into()) }
    }

    /// Copies an object that is no directory.
    fn object(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        look: &ObjectState,
    ) -> Result<(), CopyError> {
        match look.kind() {
            FileType::RegularFile => self.file(from, to, name, look)?,
            FileType::Symlink => {
                let target = readlinkat(from, name, Vec::new()).map_err(|e| self.trouble(e))?;
                symlinkat(target, to, name)?;
            }
            kind => mknodat(to, name, kind, Mode::RUSR, look.device)?,
        }
        self.attributes(from, to, name, look, true)
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        look: &ObjectState,
    ) -> Result<(), CopyError> {
        let flags = vellum_pool::regular_file::FLAGS | OFlags::NOFOLLOW;
        let source = openat(from, name, flags, Mode::empty()).map_err(|e| self.trouble(e))?;
        if ObjectState::from_stat(&rustix::fs::fstat(&source)?).number != look.number {
            return if self.still { Err(CopyError::Io(Errno::STALE.into())) } else { Err(CopyError::Gone) };
        }
        // Before the data: a mark that is gone afterwards goes with more data than it needs.
        let partial =
            PARTIAL.iter().any(|mark| rustix::fs::fgetxattr(&source, *mark, &mut [0_u8; 0]).is_ok());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
        // While it is being written to, extents come and go.
        let copied = data::copy(&source, &target, partial && self.still)?;
        self.amount.bytes += copied.bytes;
        Ok(())
    }

    /// Gives the copy of an object its owner, mode, attributes and times.
    fn attributes(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        look: &ObjectState,
        fresh: bool,
    ) -> Result<(), CopyError> {
        let (uid, gid) = (Uid::from_raw(look.owner.0), Gid::from_raw(look.owner.1));
        chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if look.kind() != FileType::Symlink {
            chmodat(to, name, Mode::from_raw_mode(look.mode & 0o7777), AtFlags::empty())?;
        }
        let (source, target) = (entry(from, name), entry(to, name));
        let wanted = listed(&source).map_err(|e| self.trouble(e))?;
        if !fresh {
            for other in listed(&target)?.iter().filter(|one| !wanted.contains(one)) {
                lremovexattr(&target, other.as_c_str())?;
            }
        }
        let mut value = vec![0; XATTR_MAX];
        for one in &wanted {
            match lgetxattr(&source, one.as_c_str(), &mut value) {
                // It has gone in between.
                Err(Errno::NODATA) if !self.still => {}
                Err(e) => return Err(self.trouble(e)),
                Ok(len) => {
                    let value = value.get(..len).unwrap_or_default();
                    lsetxattr(&target, one.as_c_str(), value, XattrFlags::empty())?;
                }
            }
        }
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| self.trouble(e))?;
        utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// What a directory looks like, once all is in it.
    fn finish(&self, path: &Path) -> Result<(), Failure> {
        let Some(look) = self.seen.get(path) else { return Ok(()) };
        let display = self.delta.display.join(path);
        let from = match directory(&self.delta.from, path) {
            Err(e) if self.passing(e) => return Ok(()),
            from => from.map_err(|e| Failure::at(&display, e))?,
        };
        let to = directory(&self.delta.to, path).map_err(|e| Failure::at(&display, e))?;
        match self.attributes(from.as_fd(), to.as_fd(), OsStr::new("."), look, false) {
            Err(CopyError::Io(e)) => Err(Failure::at(&display, e)),
            Ok(()) | Err(CopyError::Gone) => Ok(()),
        }
    }
}

/// Why an object was not copied.
pub(super) enum CopyError {
    /// It is not there any more.
    Gone,
    Io(io::Error),
}

impl CopyError {
    /// Whether an object that is being changed looks like this for a moment.
    pub(super) fn is_passing(e: Errno) -> bool {
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

fn is_directory(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn remove(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    remove_tree_at(dir, &CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?, u64::MAX)
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

#[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "types differ between architectures")]
fn times(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime as i64, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: stat.st_mtime as i64, tv_nsec: stat.st_mtime_nsec as _ },
    }
}

#[cfg(test)]
#[path = "delta_test.rs"]
pub(super) mod tests;
