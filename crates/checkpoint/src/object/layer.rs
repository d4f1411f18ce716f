//! An upper layer in a checkpoint's object, and out of it again.
//!
//! A first pass takes all while the container runs, a second one, while it stands still, what has changed
//! since: so that moment takes as long as the layer has objects and changes, and not as long as it has bytes.
//! What the first one took in vain stays in the object, which nothing is ever taken from.

use super::format::{Contents, Piece};
use super::parse_budget;
use super::sink::Sink;
use super::unpack::ObjectBytes;
use crate::layer_walk::{
    Amount, CopyError, ObjectState, PARTIAL, Upper, XATTR_MAX, directory, entry, extents,
    first_detectable_second, listed, names, too_deep,
};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fstat, ftruncate, lgetxattr, linkat, lsetxattr, mkdirat, mknodat, openat, readlinkat, statat, symlinkat,
    utimensat,
};
use rustix::io::{Errno, pread, pwrite};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use vellum_service::Failure;

/// Bytes that are moved at once.
const PART: usize = 1 << 20;
/// Why a partial file is not restored.
const INEXACT: &str = "holes of the file are not kept exactly by the filesystem of the copy; give a directory on ext4, XFS, Btrfs or tmpfs";

/// An object of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    mode: u32,
    owner: (u32, u32),
    /// Of the last access and the last change of data: seconds and nanoseconds.
    times: [(i64, i64); 2],
    device: u64,
    /// Attributes with their values.
    #[serde(deserialize_with = "parse_budget::list")]
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of a symbolic link.
    target: Vec<u8>,
    /// Another path of the same object, of which only that has the rest.
    same_as: Option<Vec<u8>>,
    /// Holes show the file below, and have to be kept exactly.
    is_partial: bool,
    contents: Contents,
}

impl Item {
    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }
}

/// A layer that is taken.
#[derive(Debug)]
pub(crate) struct LayerWriter {
    from: OwnedFd,
    display: PathBuf,
    tells: bool,
    sink: Sink,
    seen: HashMap<PathBuf, ObjectState>,
    items: BTreeMap<Vec<u8>, Item>,
    /// What was changed in this second or later may have changed after it was looked at; None: nothing was taken yet.
    since: Option<i64>,
}

/// One pass over it.
struct Pass<'a> {
    packed: &'a LayerWriter,
    still: bool,
    seen: HashMap<PathBuf, ObjectState>,
    items: BTreeMap<Vec<u8>, Item>,
    names: HashMap<(u64, u64), Vec<u8>>,
    dirs: Vec<PathBuf>,
    amount: Amount,
}

impl LayerWriter {
    /// The layer in a directory.
    pub(crate) fn new<'a>(from: impl Into<Upper<'a>>, sink: Sink) -> Result<Self, Failure> {
        let Upper { path: from, tells } = from.into();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(from, flags, Mode::empty()).map_err(|e| Failure::at(from, e))?;
        let (seen, items) = (HashMap::new(), BTreeMap::new());
        Ok(Self { from: dir, display: from.to_owned(), tells, sink, seen, items, since: None })
    }

    /// Takes all that is there while it is being changed. Nothing happens where the filesystem does not tell of all changes.
    pub(crate) fn first_pass(&mut self) -> Result<Amount, Failure> {
        let Some(since) = first_detectable_second(&self.from, &self.display, self.tells)? else {
            return Ok(Amount::default());
        };
        let amount = self.pass(false)?;
        self.since = Some(since);
        Ok(amount)
    }

    /// Takes what has changed since. Nothing may change it meanwhile.
    pub(crate) fn final_pass(&mut self) -> Result<Amount, Failure> {
        self.pass(true)
    }

    /// The layer, by path.
    pub(crate) fn items(&self) -> &BTreeMap<Vec<u8>, Item> {
        &self.items
    }

    fn pass(&mut self, still: bool) -> Result<Amount, Failure> {
        let mut pass = Pass {
            packed: self,
            still,
            seen: HashMap::with_capacity(self.seen.len()),
            items: BTreeMap::new(),
            names: HashMap::new(),
            dirs: vec![PathBuf::new()],
            amount: Amount::default(),
        };
        while let Some(dir) = pass.dirs.pop() {
            pass.directory(&dir)?;
        }
        let Pass { seen, items, amount, .. } = pass;
        (self.seen, self.items) = (seen, items);
        Ok(amount)
    }
}

impl Pass<'_> {
    fn unchanged(&self, path: &Path, look: &ObjectState) -> bool {
        self.packed.since.is_some_and(|since| look.changed.0 < since)
            && self.packed.seen.get(path) == Some(look)
    }

    fn copy_error(&self, e: Errno) -> CopyError {
        if CopyError::is_transient(e) && !self.still { CopyError::Gone } else { CopyError::Io(e.into()) }
    }

    fn directory(&mut self, path: &Path) -> Result<(), Failure> {
        let display = self.packed.display.join(path);
        let from = match directory(&self.packed.from, path) {
            Err(e) => match self.copy_error(e) {
                CopyError::Gone => return Ok(()),
                CopyError::Io(_) if e == Errno::NAMETOOLONG => {
                    return Err(too_deep(&self.packed.display));
                }
                CopyError::Io(e) => return Err(Failure::at(&display, e)),
            },
            Ok(from) => from,
        };
        let failed = |e: Errno| Failure::at(&display, e);
        let stat = fstat(&from).map_err(failed)?;
        let look = ObjectState::from_stat(&stat);
        let known =
            self.packed.items.get(path.as_os_str().as_bytes()).filter(|_| self.unchanged(path, &look));
        let item = match known {
            Some(item) => Ok(item.clone()),
            None => self.item(from.as_fd(), OsStr::new("."), &stat),
        };
        match item {
            Ok(item) => self.keep(path, look, item),
            Err(CopyError::Gone) => return Ok(()),
            Err(CopyError::Io(e)) => return Err(Failure::at(&display, e)),
        }
        for name in names(from.as_fd()).map_err(failed)? {
            match self.entry(from.as_fd(), path, &name) {
                Ok(()) | Err(CopyError::Gone) => {}
                Err(CopyError::Io(e)) => return Err(Failure::at(&display.join(&name), e)),
            }
        }
        Ok(())
    }

    fn keep(&mut self, path: &Path, look: ObjectState, item: Item) {
        self.seen.insert(path.to_owned(), look);
        self.items.insert(path.as_os_str().as_bytes().to_vec(), item);
    }

    fn entry(&mut self, from: BorrowedFd<'_>, dir: &Path, name: &OsStr) -> Result<(), CopyError> {
        let path = dir.join(name);
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| self.copy_error(e))?;
        let look = ObjectState::from_stat(&stat);
        self.amount.objects += 1;
        if look.kind() == FileType::Directory {
            self.dirs.push(path);
            return Ok(());
        }
        let bytes = path.as_os_str().as_bytes();
        if let Some(first) = self.names.get(&look.number).filter(|_| look.links > 1) {
            let item = Item { mode: look.mode, same_as: Some(first.clone()), ..Item::default() };
            self.keep(&path, look, item);
            return Ok(());
        }
        self.names.insert(look.number, bytes.to_vec());
        // Of an object with several names, another one may have come first before.
        let known = self.packed.items.get(bytes).filter(|item| item.same_as.is_none());
        if let Some(item) = known.filter(|_| self.unchanged(&path, &look)) {
            let item = item.clone();
            self.keep(&path, look, item);
            return Ok(());
        }
        self.amount.copied += 1;
        let mut item = self.item(from, name, &stat)?;
        match look.kind() {
            FileType::RegularFile => self.file(from, name, &look, &mut item)?,
            FileType::Symlink => {
                let target = readlinkat(from, name, Vec::new()).map_err(|e| self.copy_error(e))?;
                item.target = target.into_bytes();
            }
            _ => {}
        }
        self.keep(&path, look, item);
        Ok(())
    }

    /// What an object is, but for what it holds.
    fn item(&self, from: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Result<Item, CopyError> {
        let path = entry(from, name);
        let mut xattrs = Vec::new();
        let mut value = vec![0; XATTR_MAX];
        for one in listed(&path).map_err(|e| self.copy_error(e))? {
            match lgetxattr(&path, one.as_c_str(), &mut value) {
                // It has gone in between.
                Err(Errno::NODATA) if !self.still => {}
                Err(e) => return Err(self.copy_error(e)),
                Ok(len) => {
                    xattrs.push((one.into_bytes(), value.get(..len).unwrap_or_default().to_vec()));
                }
            }
        }
        let ObjectState { mode, owner, device, modified, .. } = ObjectState::from_stat(stat);
        #[allow(clippy::unnecessary_cast, reason = "types differ between architectures")]
        let accessed = (stat.st_atime as i64, stat.st_atime_nsec as i64);
        Ok(Item { mode, owner, times: [accessed, modified], device, xattrs, ..Item::default() })
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        look: &ObjectState,
        item: &mut Item,
    ) -> Result<(), CopyError> {
        let flags = vellum_pool::regular_file::FLAGS | OFlags::NOFOLLOW;
        let source = openat(from, name, flags, Mode::empty()).map_err(|e| self.copy_error(e))?;
        let stat = fstat(&source)?;
        if ObjectState::from_stat(&stat).number != look.number {
            return if self.still { Err(CopyError::Io(Errno::STALE.into())) } else { Err(CopyError::Gone) };
        }
        item.is_partial =
            item.xattrs.iter().any(|(name, _)| PARTIAL.iter().any(|mark| mark.to_bytes() == name));
        item.contents.size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut buffer = vec![0; PART];
        self.packed.sink.align()?;
        for (begin, end) in extents(&source, item.contents.size)? {
            let mut at = begin;
            while at < end {
                let len = usize::try_from(end - at).unwrap_or(PART).min(PART);
                let read = pread(&source, buffer.get_mut(..len).unwrap_or_default(), at)?;
                if read == 0 {
                    break;
                }
                let from = self.packed.sink.put(buffer.get(..read).unwrap_or_default())?;
                item.contents.put(Piece { at, from, len: read as u64 });
                at += read as u64;
            }
            self.amount.bytes += at - begin;
        }
        Ok(())
    }
}

/// Fills an empty directory with a layer.
pub(crate) fn unpack(
    items: &BTreeMap<Vec<u8>, Item>,
    source: &ObjectBytes,
    to: &Path,
) -> Result<(), Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(to, flags, Mode::empty()).map_err(|e| Failure::at(to, e))?;
    let failed = |path: &Path, trouble: CopyError| match trouble {
        CopyError::Io(e) => Failure::at(&to.join(path), e),
        CopyError::Gone => Failure::at(&to.join(path), Errno::NOENT),
    };
    let mut links = Vec::new();
    for (path, item) in items {
        let path = Path::new(OsStr::from_bytes(path));
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Failure::input(format!("{}: not a path in a layer", path.display())));
        }
        match &item.same_as {
            // The other path may come later.
            Some(first) => links.push((path, first)),
            None => make(&top, path, item, source).map_err(|e| failed(path, e))?,
        }
    }
    for (path, first) in links {
        link(&top, path, Path::new(OsStr::from_bytes(first))).map_err(|e| failed(path, e))?;
    }
    // What was made in a directory has changed its times.
    for (path, item) in items.iter().rev() {
        let path = Path::new(OsStr::from_bytes(path));
        if FileType::from_raw_mode(item.mode) == FileType::Directory {
            let done = directory(&top, path)
                .map_err(CopyError::from)
                .and_then(|dir| attributes(dir.as_fd(), OsStr::new("."), item));
            done.map_err(|e| failed(path, e))?;
        }
    }
    Ok(())
}

/// The directory that an object is in, and its name there.
fn place<'a>(top: &OwnedFd, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), CopyError> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    Ok((directory(top, path.parent().unwrap_or(Path::new("")))?, name))
}

fn link(top: &OwnedFd, path: &Path, first: &Path) -> Result<(), CopyError> {
    let ((to, name), (from, first)) = (place(top, path)?, place(top, first)?);
    Ok(linkat(from, first, to, name, AtFlags::empty())?)
}

fn make(top: &OwnedFd, path: &Path, item: &Item, source: &ObjectBytes) -> Result<(), CopyError> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let (dir, name) = place(top, path)?;
    match FileType::from_raw_mode(item.mode) {
        FileType::Directory => return Ok(mkdirat(&dir, name, Mode::RWXU)?),
        FileType::RegularFile => file(&dir, name, item, source)?,
        FileType::Symlink => {
            let target = CString::new(item.target.as_slice()).map_err(|_| Errno::INVAL)?;
            symlinkat(target, &dir, name)?;
        }
        FileType::Unknown => return Err(Errno::INVAL.into()),
        kind => mknodat(&dir, name, kind, Mode::RUSR, item.device)?,
    }
    attributes(dir.as_fd(), name, item)
}

fn file(dir: &OwnedFd, name: &OsStr, item: &Item, source: &ObjectBytes) -> Result<(), CopyError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut buffer = vec![0; PART];
    for piece in &item.contents.pieces {
        let mut done = 0;
        while done < piece.len {
            let len = usize::try_from(piece.len - done).unwrap_or(PART).min(PART);
            let part = buffer.get_mut(..len).unwrap_or_default();
            source.read_exact(piece.from + done, part)?;
            let mut rest = &*part;
            while !rest.is_empty() {
                let written = pwrite(&file, rest, piece.at + done)?;
                done += written as u64;
                rest = rest.get(written..).unwrap_or_default();
            }
        }
    }
    ftruncate(&file, item.contents.size)?;
    if item.is_partial {
        let mut wanted: Vec<(u64, u64)> = Vec::new();
        for piece in &item.contents.pieces {
            match wanted.last_mut() {
                Some(last) if last.1 == piece.at => last.1 = piece.at + piece.len,
                _ => wanted.push((piece.at, piece.at + piece.len)),
            }
        }
        if extents(&file, item.contents.size)? != wanted {
            return Err(CopyError::Io(std::io::Error::other(INEXACT)));
        }
    }
    Ok(())
}

fn attributes(dir: BorrowedFd<'_>, name: &OsStr, item: &Item) -> Result<(), CopyError> {
    let (uid, gid) = (Uid::from_raw(item.owner.0), Gid::from_raw(item.owner.1));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(item.mode) != FileType::Symlink {
        chmodat(dir, name, Mode::from_raw_mode(item.mode & 0o7777), AtFlags::empty())?;
    }
    let path = entry(dir, name);
    for (name, value) in &item.xattrs {
        let name = CString::new(name.as_slice()).map_err(|_| Errno::INVAL)?;
        lsetxattr(&path, name.as_c_str(), value, XattrFlags::empty())?;
    }
    #[allow(clippy::unnecessary_cast, reason = "types differ between architectures")]
    let [last_access, last_modification] =
        item.times.map(|(secs, nanos)| Timespec { tv_sec: secs, tv_nsec: nanos as _ });
    Ok(utimensat(dir, name, &Timestamps { last_access, last_modification }, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
#[path = "layer_test.rs"]
pub(super) mod tests;
