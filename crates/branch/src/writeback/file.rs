//! Files that are written behind, open or held.

use super::file_state::TrackedFile;
use super::limits::DATA_MAX;
use super::record::{Change, at};
use super::{ACCESS_ACL, LogAccess, now};
use std::any::Any;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Attr, BranchFile, Object, OpenMode, Result, SetTime};

/// An open file.
pub(super) struct WritebackFile {
    pub(super) inner: Arc<dyn BranchFile>,
    way: LogAccess,
    tracked: OnceLock<Arc<TrackedFile>>,
    /// Failures up to this number are known to whoever has opened the file.
    seen: AtomicU64,
}

/// Anything that is held.
pub(super) struct WritebackObject {
    pub(super) inner: Arc<dyn Object>,
    way: LogAccess,
}

pub(super) fn wrap_file(inner: Arc<dyn BranchFile>, way: &LogAccess) -> Arc<dyn BranchFile> {
    let mut seen = way.writeback.failures.load(Ordering::SeqCst);
    let tracked = OnceLock::new();
    // Rarely. One of which nobody knows is told to whoever comes.
    if seen > 0
        && let Ok(attr) = inner.stat()
    {
        let file = way.writeback.tracked(attr.ino);
        if file.has_unreported_failure() {
            seen = 0;
        }
        let _ = tracked.set(file);
    }
    Arc::new(WritebackFile { inner, way: way.clone(), tracked, seen: seen.into() })
}

pub(super) fn wrap_object(inner: Arc<dyn Object>, way: &LogAccess) -> Arc<dyn Object> {
    Arc::new(WritebackObject { inner, way: way.clone() })
}

/// Opens a file by `open`. One that is cut by that is cut at once.
pub(super) fn opened(
    way: &LogAccess,
    mode: OpenMode,
    held: impl FnOnce() -> Result<Arc<dyn Object>>,
    open: impl FnOnce() -> Result<Arc<dyn BranchFile>>,
) -> Result<Arc<dyn BranchFile>> {
    if !mode.contains(OpenMode::TRUNCATE) {
        return Ok(wrap_file(open()?, way));
    }
    let held = held()?;
    let file = way.writeback.tracked(held.stat()?.ino);
    let opened = way.writeback.past(&file, open, || held.reopen(OpenMode::READ)?.sync(false))?;
    Ok(wrap_file(opened, way))
}

impl LogAccess {
    /// The file that something is. None: it is no file.
    fn file(&self, object: &dyn Object) -> Result<Option<(Arc<TrackedFile>, Attr)>> {
        let attr = object.stat()?;
        Ok(attr.is_file().then(|| (self.writeback.tracked(attr.ino), attr)))
    }

    pub(super) fn set_mode(&self, object: &dyn Object, mode: u32) -> Result<()> {
        let Some((file, _)) = self.file(object)? else { return object.set_mode(mode) };
        let change = Change::Mode(mode & 0o7777);
        self.writeback.change(&file, object, change, || object.set_mode(mode), |()| true)
    }

    /// Set-id bits never meet another owner, whatever dies: such a change is not left to later.
    pub(super) fn set_owner(&self, object: &dyn Object, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        const SET_ID: u32 = 0o6000;
        let Some((file, attr)) = self.file(object)? else { return object.set_owner(uid, gid) };
        if attr.mode & SET_ID != 0 {
            return self.past(object, &file, || object.set_owner(uid, gid));
        }
        self.writeback.change(
            &file,
            object,
            Change::Owner(uid, gid),
            || object.set_owner(uid, gid),
            |()| true,
        )
    }

    pub(super) fn set_times(
        &self,
        object: &dyn Object,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        let Some((file, _)) = self.file(object)? else { return object.set_times(atime, mtime) };
        let now = now();
        let change = Change::Times(atime.map(|time| at(time, now)), mtime.map(|time| at(time, now)));
        self.writeback.change(&file, object, change, || object.set_times(atime, mtime), |()| true)
    }

    /// Sets an extended attribute, or removes it.
    fn change_attribute(
        &self,
        object: &dyn Object,
        (name, value): (&CStr, Option<&[u8]>),
        make: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.file(object)? {
            Some((file, _)) if name == ACCESS_ACL && value.is_none_or(|list| list.len() <= DATA_MAX) => {
                self.writeback.change(&file, object, Change::Acl(value), make, |()| true)
            }
            // The storage has it at once.
            Some((file, _)) => self.writeback.past(&file, make, || Ok(())),
            None => make(),
        }
    }

    fn past<T>(
        &self,
        object: &dyn Object,
        file: &TrackedFile,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.writeback.past(file, make, || object.reopen(OpenMode::READ)?.sync(false))
    }
}

/// Implements [`Object`] by the field `inner`.
macro_rules! impl_object {
    ($type:ident) => {
        impl Object for $type {
            fn inner(&self) -> Result<&dyn Object> {
                Ok(&*self.inner)
            }

            fn set_mode(&self, mode: u32) -> Result<()> {
                self.way.set_mode(&*self.inner, mode)
            }

            fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
                self.way.set_owner(&*self.inner, uid, gid)
            }

            fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
                self.way.set_times(&*self.inner, atime, mtime)
            }

            fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
                let set = || self.inner.set_xattr(name, value, flags);
                self.way.change_attribute(&*self.inner, (name, Some(value)), set)
            }

            fn remove_xattr(&self, name: &CStr) -> Result<()> {
                let remove = || self.inner.remove_xattr(name);
                self.way.change_attribute(&*self.inner, (name, None), remove)
            }

            fn set_flags(&self, flags: u32) -> Result<()> {
                self.way.change_attribute(&*self.inner, (c"", None), || self.inner.set_flags(flags))
            }

            fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
                opened(&self.way, mode, || self.held(), || self.inner.reopen(mode))
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }
    };
}

impl_object!(WritebackFile);
impl_object!(WritebackObject);

impl WritebackObject {
    fn held(&self) -> Result<Arc<dyn Object>> {
        Ok(Arc::clone(&self.inner))
    }
}

impl WritebackFile {
    fn held(&self) -> Result<Arc<dyn Object>> {
        Ok(Arc::clone(&self.inner) as Arc<dyn Object>)
    }

    pub(super) fn unwrapped(file: &dyn BranchFile) -> &dyn BranchFile {
        file.as_any().downcast_ref::<Self>().map_or(file, |wrapped| &*wrapped.inner)
    }

    fn tracked(&self) -> Result<&Arc<TrackedFile>> {
        if let Some(file) = self.tracked.get() {
            return Ok(file);
        }
        let file = self.way.writeback.tracked(self.inner.stat()?.ino);
        Ok(self.tracked.get_or_init(|| file))
    }

    /// Makes a change of the contents that the log does not know of.
    fn past<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        self.way.writeback.past(self.tracked()?, make, || self.inner.sync(false))
    }
}

impl BranchFile for WritebackFile {
    fn inner_file(&self) -> Result<&dyn BranchFile> {
        Ok(&*self.inner)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let end = offset.checked_add(data.len() as u64).and_then(|end| i64::try_from(end).ok());
        if data.is_empty() || end.is_none() {
            // Nothing is written, or not all of it.
            return self.past(|| self.inner.write_at(data, offset));
        }
        let file = self.tracked()?;
        let mut done = 0;
        for piece in data.chunks(DATA_MAX) {
            let at = offset + done as u64;
            let change = Change::Write(at, piece);
            let write = || self.inner.write_at(piece, at);
            match self.way.writeback.change(file, &*self.inner, change, write, |n| *n == piece.len()) {
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            if done as u64 != at - offset + piece.len() as u64 {
                break;
            }
        }
        Ok(done)
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        let file = self.tracked()?;
        self.way.writeback.write(file);
        let synced = self.inner.sync(datasync);
        match file.failure_since(self.seen.load(Ordering::SeqCst)) {
            Some((number, errno)) => {
                self.seen.store(number, Ordering::SeqCst);
                Err(errno.into())
            }
            None => synced,
        }
    }

    fn truncate(&self, size: u64) -> Result<()> {
        if i64::try_from(size).is_err() {
            return self.inner.truncate(size);
        }
        let cut = || self.inner.truncate(size);
        self.way.writeback.change(self.tracked()?, &*self.inner, Change::Truncate(size), cut, |()| true)
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.past(|| self.inner.allocate(mode, offset, len))
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        self.past(|| self.inner.copy_range(offset, Self::unwrapped(from), from_offset, len))
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        self.past(|| BranchFile::clone_from(&*self.inner, Self::unwrapped(from)))
    }
}
