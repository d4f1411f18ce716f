//! The branch traits' objects over a disk in memory.

use super::data::{BLOCK, Data, MAX_SIZE};
use super::disk::{Body, Disk, Pin, State};
use crate::checks::{check_offset, check_owner, check_times};
use crate::xattr::check_len as check_attr_len;
use std::any::Any;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, DirItem, Errno, Error, FileKind, Name, Object, OpenMode, RenameFlags,
    Result, Seek, SetTime,
};

/// Copies a symbolic link's target, cut to what fits. EINVAL: no link, or nowhere to write.
fn read_link(state: &State, ino: u64, buf: &mut [u8]) -> Result<usize> {
    match &state.inode(ino)?.body {
        Body::Symlink(target) if !buf.is_empty() => {
            let len = target.len().min(buf.len());
            buf[..len].copy_from_slice(&target[..len]);
            Ok(len)
        }
        _ => Err(Errno::INVAL.into()),
    }
}

fn open(disk: &Arc<Disk>, ino: u64, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
    let mut state = disk.lock();
    state.inode(ino)?.data()?;
    if mode.contains(OpenMode::TRUNCATE) {
        let now = state.now();
        let inode = state.inode_mut(ino)?;
        inode.data_mut()?.truncate(0)?;
        inode.modified(now);
    }
    Ok(Arc::new(MemoryFile::new(disk, &mut state, ino, mode)?))
}

macro_rules! impl_object {
    ($type:ident) => {
        impl Object for $type {
            fn stat(&self) -> Result<Attr> {
                Ok(self.pin.disk.lock().attr(self.pin.ino)?)
            }

            fn set_mode(&self, mode: u32) -> Result<()> {
                Ok(self.pin.disk.lock().set_mode(self.pin.ino, mode)?)
            }

            fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
                Ok(self.pin.disk.lock().set_owner(self.pin.ino, uid, gid)?)
            }

            fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
                Ok(self.pin.disk.lock().set_times(self.pin.ino, atime, mtime)?)
            }

            fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
                Ok(self.pin.disk.lock().get_xattr(self.pin.ino, name.to_bytes(), buf)?)
            }

            fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
                Ok(self.pin.disk.lock().set_xattr(self.pin.ino, name.to_bytes(), value, flags)?)
            }

            fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
                Ok(self.pin.disk.lock().list_xattr(self.pin.ino, buf)?)
            }

            fn remove_xattr(&self, name: &CStr) -> Result<()> {
                Ok(self.pin.disk.lock().remove_xattr(self.pin.ino, name.to_bytes())?)
            }

            fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
                read_link(&self.pin.disk.lock(), self.pin.ino, buf)
            }

            fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
                open(&self.pin.disk, self.pin.ino, mode)
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }
    };
}

/// Anything that is held.
struct MemoryHandle {
    pin: Pin,
}

/// An open regular file.
pub(super) struct MemoryFile {
    pub(super) pin: Pin,
    mode: OpenMode,
}

/// A directory.
pub(super) struct MemoryDir {
    pub(super) pin: Pin,
}

impl_object!(MemoryHandle);
impl_object!(MemoryFile);
impl_object!(MemoryDir);

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if self.mode.contains(OpenMode::WRITE)
            && let Ok(inode) = self.pin.disk.lock().inode_mut(self.pin.ino)
        {
            inode.writers = inode.writers.saturating_sub(1);
        }
    }
}

impl MemoryFile {
    pub(super) fn new(disk: &Arc<Disk>, state: &mut State, ino: u64, mode: OpenMode) -> Result<Self, Errno> {
        let pin = Pin::new(disk, state, ino)?;
        state.inode_mut(ino)?.writers += u32::from(mode.contains(OpenMode::WRITE));
        Ok(Self { pin, mode })
    }

    fn readable(&self) -> Result<()> {
        let writes_only = self.mode & (OpenMode::READ | OpenMode::WRITE) == OpenMode::WRITE;
        if writes_only { Err(Errno::BADF.into()) } else { Ok(()) }
    }

    fn writable(&self, refusal: Errno) -> Result<()> {
        if self.mode.contains(OpenMode::WRITE) { Ok(()) } else { Err(refusal.into()) }
    }

    /// A file on the same disk. EXDEV.
    fn peer<'a>(&self, file: &'a dyn BranchFile) -> Result<&'a Self> {
        file.as_any()
            .downcast_ref::<Self>()
            .filter(|file| Arc::ptr_eq(&file.pin.disk, &self.pin.disk))
            .ok_or(Error::new(Errno::XDEV, "copy between branches"))
    }
}

/// How much of `len` bytes copy_file_range(2) copies; its checks in its order. EOVERFLOW: a range ends beyond all
/// numbers; EFBIG: it starts beyond the largest size; EINVAL: the ranges of one file overlap, or an offset is
/// negative to the kernel.
fn copy_length(size: u64, same_file: bool, from: u64, to: u64, len: u64) -> Result<u64, Errno> {
    if from.checked_add(len).is_none() || to.checked_add(len).is_none() {
        return Err(Errno::OVERFLOW);
    }
    let negative = |offset: u64| i64::try_from(offset).is_err();
    let mut len = if negative(from) { len } else { len.min(size.saturating_sub(from)) };
    if !negative(to) {
        len = len.min(MAX_SIZE.checked_sub(to).filter(|room| *room > 0).ok_or(Errno::FBIG)?);
    }
    if same_file && to.wrapping_add(len) > from && to < from.wrapping_add(len) {
        return Err(Errno::INVAL);
    }
    if negative(from) || negative(to) { Err(Errno::INVAL) } else { Ok(len) }
}

impl BranchFile for MemoryFile {
    fn has_writers(&self) -> bool {
        self.pin.disk.lock().inode(self.pin.ino).map_or(true, |inode| inode.writers > 0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        check_offset(offset)?;
        self.readable()?;
        let mut state = self.pin.disk.lock();
        let cached = state.options.page_cache;
        let data = state.inode_mut(self.pin.ino)?.data_mut()?;
        if cached {
            data.seen(offset, buf.len() as u64);
        }
        Ok(data.read(buf, offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        check_offset(offset)?;
        self.writable(Errno::BADF)?;
        let mut state = self.pin.disk.lock();
        let now = state.now();
        let inode = state.inode_mut(self.pin.ino)?;
        let count = inode.data_mut()?.write(data, offset)?;
        inode.modified(now);
        Ok(count)
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        self.pin.disk.synced(self.pin.ino, datasync);
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<()> {
        check_offset(size)?;
        self.writable(Errno::INVAL)?;
        let mut state = self.pin.disk.lock();
        let now = state.now();
        let inode = state.inode_mut(self.pin.ino)?;
        inode.data_mut()?.truncate(size)?;
        inode.modified(now);
        Ok(())
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        Data::check_allocate(mode, offset, len)?;
        self.writable(Errno::BADF)?;
        let mut state = self.pin.disk.lock();
        let (now, cached) = (state.now(), state.options.page_cache);
        let inode = state.inode_mut(self.pin.ino)?;
        let result = inode.data_mut()?.allocate(mode, offset, len);
        if cached {
            inode.data_mut()?.seen(offset, len);
        }
        // ext4 counts it as a change before it sees that a range does not fit the file.
        if matches!(result, Ok(()) | Err(Errno::INVAL)) {
            inode.modified(now);
        }
        Ok(result?)
    }

    fn seek(&self, offset: u64, whence: Seek) -> Result<u64> {
        let state = self.pin.disk.lock();
        let data = state.inode(self.pin.ino)?.data()?;
        Ok(match whence {
            Seek::Data => data.seek_data(offset),
            Seek::Hole => data.seek_hole(offset),
        }?)
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        /// The most that is copied at a time, as in other branches.
        const STEP: u64 = 64 << 20;
        let peer = self.peer(from)?;
        peer.readable()?;
        self.writable(Errno::BADF)?;
        let mut state = self.pin.disk.lock();
        let source = state.inode(peer.pin.ino)?.data()?;
        let same = peer.pin.ino == self.pin.ino;
        let len = copy_length(source.size(), same, from_offset, offset, len.min(STEP))?;
        if len == 0 {
            return Ok(0);
        }
        let bytes = source.copy_out(from_offset, len);
        let now = state.now();
        let inode = state.inode_mut(self.pin.ino)?;
        let count = inode.data_mut()?.write(&bytes, offset)?;
        inode.modified(now);
        Ok(count as u64)
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        let peer = self.peer(from)?;
        peer.readable()?;
        self.writable(Errno::BADF)?;
        let mut state = self.pin.disk.lock();
        if !state.options.reflink {
            return Err(Errno::OPNOTSUPP.into());
        }
        if peer.pin.ino == self.pin.ino {
            return Ok(());
        }
        let data = state.inode(peer.pin.ino)?.data()?.clone();
        let now = state.now();
        let inode = state.inode_mut(self.pin.ino)?;
        // What lies beyond the source's end stays, as with FICLONE.
        if inode.data()?.size() > data.size() {
            let old = inode.data()?.copy_out(data.size(), u64::MAX);
            let at = data.size();
            *inode.data_mut()? = data;
            inode.data_mut()?.write(&old, at)?;
        } else {
            *inode.data_mut()? = data;
        }
        inode.modified(now);
        Ok(())
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

impl MemoryDir {
    /// A directory on the same disk. EXDEV.
    fn peer<'a>(&self, dir: &'a dyn BranchDir) -> Result<&'a Self> {
        dir.as_any()
            .downcast_ref::<Self>()
            .filter(|dir| Arc::ptr_eq(&dir.pin.disk, &self.pin.disk))
            .ok_or(Error::new(Errno::XDEV, "move between branches"))
    }

    /// Does something with what `name` leads to.
    fn with<R>(&self, name: Name<'_>, act: impl FnOnce(&mut State, u64) -> Result<R, Errno>) -> Result<R> {
        let mut state = self.pin.disk.lock();
        let ino = state.find(self.pin.ino, name)?;
        Ok(act(&mut state, ino)?)
    }

    fn opened(&self, state: &mut State, ino: u64) -> Result<Arc<dyn BranchFile>> {
        let mode = OpenMode::READ | OpenMode::WRITE;
        Ok(Arc::new(MemoryFile::new(&self.pin.disk, state, ino, mode)?))
    }
}

impl BranchDir for MemoryDir {
    fn stat_at(&self, name: Name<'_>) -> Result<Attr> {
        self.with(name, |state, ino| state.attr(ino))
    }

    fn get_xattr_at(&self, name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        check_attr_len(attr.to_bytes())?;
        self.with(name, |state, ino| state.get_xattr(ino, attr.to_bytes(), buf))
    }

    fn set_owner_at(&self, name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        check_owner(uid, gid)?;
        self.with(name, |state, ino| state.set_owner(ino, uid, gid))
    }

    fn set_mode_at(&self, name: Name<'_>, mode: u32) -> Result<()> {
        self.with(name, |state, ino| state.set_mode(ino, mode))
    }

    fn set_times_at(&self, name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        check_times(atime, mtime)?;
        // Nothing to set: the kernel does not even look the name up.
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        self.with(name, |state, ino| state.set_times(ino, atime, mtime))
    }

    fn read_link_at(&self, name: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        // readlink(2) looks at the buffer before it looks the name up.
        if buf.is_empty() {
            return Err(Errno::INVAL.into());
        }
        let state = self.pin.disk.lock();
        let ino = state.find(self.pin.ino, name)?;
        read_link(&state, ino, buf)
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        let pin = self.with(name, |state, ino| {
            state.inode(ino)?.entries()?;
            Pin::new(&self.pin.disk, state, ino)
        })?;
        Ok(Arc::new(Self { pin }))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        // Held meanwhile, so that nobody can take the number away between finding and opening.
        let pin = self.with(name, |state, ino| Pin::new(&self.pin.disk, state, ino))?;
        open(&self.pin.disk, pin.ino, mode)
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        let pin = self.with(name, |state, ino| Pin::new(&self.pin.disk, state, ino))?;
        Ok(Arc::new(MemoryHandle { pin }))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        let mut state = self.pin.disk.lock();
        let ino = state.create(self.pin.ino, name, mode)?;
        self.opened(&mut state, ino)
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        let mut state = self.pin.disk.lock();
        let ino = state.create_unnamed(self.pin.ino, mode)?;
        self.opened(&mut state, ino)
    }

    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()> {
        let any = object.as_any();
        let pin = if let Some(file) = any.downcast_ref::<MemoryFile>() {
            &file.pin
        } else if let Some(handle) = any.downcast_ref::<MemoryHandle>() {
            &handle.pin
        } else if any.is::<Self>() {
            return Err(Errno::PERM.into());
        } else {
            return Err(Error::new(Errno::XDEV, "link between branches"));
        };
        if !Arc::ptr_eq(&pin.disk, &self.pin.disk) {
            return Err(Error::new(Errno::XDEV, "link between branches"));
        }
        Ok(self.pin.disk.lock().link(pin.ino, self.pin.ino, name)?)
    }

    fn make_dir(&self, name: Name<'_>, mode: u32) -> Result<()> {
        Ok(self.pin.disk.lock().make_dir(self.pin.ino, name, mode)?)
    }

    fn make_node(&self, name: Name<'_>, mode: u32, rdev: u64) -> Result<()> {
        Ok(self.pin.disk.lock().make_node(self.pin.ino, name, mode, rdev)?)
    }

    fn make_symlink(&self, name: Name<'_>, target: &CStr) -> Result<()> {
        Ok(self.pin.disk.lock().make_symlink(self.pin.ino, name, target.to_bytes())?)
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        Ok(self.pin.disk.lock().remove(self.pin.ino, name)?)
    }

    fn remove_dir(&self, name: Name<'_>) -> Result<()> {
        Ok(self.pin.disk.lock().remove_dir(self.pin.ino, name)?)
    }

    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()> {
        let to = self.peer(to)?;
        let mut state = self.pin.disk.lock();
        let ino = state.find(self.pin.ino, name)?;
        Ok(state.link(ino, to.pin.ino, to_name)?)
    }

    fn rename(
        &self,
        name: Name<'_>,
        to: &dyn BranchDir,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.peer(to)?;
        Ok(self.pin.disk.lock().rename((self.pin.ino, name), (to.pin.ino, to_name), flags)?)
    }

    fn list(&self, each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()> {
        // Copied first: `each` may come back to this disk.
        let items: Vec<(CString, u64, FileKind)> = {
            let state = self.pin.disk.lock();
            let dir = state.inode(self.pin.ino)?;
            if dir.nlink == 0 {
                return Err(Errno::NOENT.into());
            }
            dir.entries()?
                .iter()
                .filter_map(|(name, &ino)| {
                    Some((CString::new(name.as_slice()).ok()?, ino, state.inode(ino).ok()?.kind()))
                })
                .collect()
        };
        for (name, ino, kind) in &items {
            each(DirItem { name: Name::new(name)?, ino: *ino, kind: Some(*kind) })?;
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<()> {
        self.pin.disk.synced(self.pin.ino, false);
        Ok(())
    }
}

/// Preferred I/O size in bytes.
pub(super) const IO_SIZE: u32 = BLOCK as u32;
