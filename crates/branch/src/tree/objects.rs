//! The branch traits' objects over a tree.

use super::medium::{Medium, Pin};
use super::state::{Body, Contents, State};
use crate::kernel_checks::{TARGET_MAX, check_allocate, check_offset, check_owner, check_times};
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
fn read_link<D: Contents>(state: &State<D>, ino: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    match &state.inode(ino)?.body {
        Body::Symlink(target) if target.len() > TARGET_MAX => Err(Errno::NAMETOOLONG),
        Body::Symlink(target) if !buf.is_empty() => {
            let len = target.len().min(buf.len());
            buf[..len].copy_from_slice(&target[..len]);
            Ok(len)
        }
        _ => Err(Errno::INVAL),
    }
}

fn open<M: Medium>(medium: &Arc<M>, ino: u64, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
    let file = medium.look(|state| File::new(medium, state, ino, mode))?;
    if mode.contains(OpenMode::TRUNCATE) {
        medium.truncate(&file, 0)?;
    }
    Ok(Arc::new(file))
}

macro_rules! impl_object {
    ($type:ident) => {
        impl<M: Medium> Object for $type<M> {
            fn stat(&self) -> Result<Attr> {
                self.pin.medium.look(|state| state.attr(self.pin.ino))
            }

            fn set_mode(&self, mode: u32) -> Result<()> {
                self.pin.medium.change(|state| state.set_mode(self.pin.ino, mode))
            }

            fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
                self.pin.medium.change(|state| state.set_owner(self.pin.ino, uid, gid))
            }

            fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
                self.pin.medium.change(|state| state.set_times(self.pin.ino, atime, mtime))
            }

            fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
                self.pin.medium.look(|state| state.get_xattr(self.pin.ino, name.to_bytes(), buf))
            }

            fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
                self.pin.medium.change(|state| state.set_xattr(self.pin.ino, name.to_bytes(), value, flags))
            }

            fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
                self.pin.medium.look(|state| state.list_xattr(self.pin.ino, buf))
            }

            fn remove_xattr(&self, name: &CStr) -> Result<()> {
                self.pin.medium.free(|state| state.remove_xattr(self.pin.ino, name.to_bytes()))
            }

            fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
                self.pin.medium.look(|state| read_link(state, self.pin.ino, buf))
            }

            fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
                open(&self.pin.medium, self.pin.ino, mode)
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }
    };
}

/// Anything that is held.
pub(crate) struct Handle<M: Medium> {
    pin: Pin<M>,
}

/// An open regular file.
pub(crate) struct File<M: Medium> {
    pub(crate) pin: Pin<M>,
    /// Its contents.
    pub(crate) held: M::FileRef,
    mode: OpenMode,
}

pub(crate) struct Dir<M: Medium> {
    pub(crate) pin: Pin<M>,
}

impl_object!(Handle);
impl_object!(File);
impl_object!(Dir);

impl<M: Medium> Drop for File<M> {
    fn drop(&mut self) {
        if self.mode.contains(OpenMode::WRITE) {
            // It is held, so it is there.
            let _ = self.pin.medium.look(|state| {
                let inode = state.holders_mut(self.pin.ino)?;
                inode.writers = inode.writers.saturating_sub(1);
                Ok(())
            });
        }
    }
}

impl<M: Medium> File<M> {
    /// Opens what is a regular file. EISDIR, ELOOP or ENXIO.
    pub(crate) fn new(
        medium: &Arc<M>,
        state: &mut State<M::Data>,
        ino: u64,
        mode: OpenMode,
    ) -> Result<Self, Errno> {
        state.inode(ino)?.data()?;
        let held = state.opened::<M>(ino, mode)?;
        Ok(Self { pin: Pin::new(medium, state, ino)?, held, mode })
    }

    fn readable(&self) -> Result<()> {
        let writes_only = self.mode & (OpenMode::READ | OpenMode::WRITE) == OpenMode::WRITE;
        if writes_only { Err(Errno::BADF.into()) } else { Ok(()) }
    }

    fn writable(&self, refusal: Errno) -> Result<()> {
        if self.mode.contains(OpenMode::WRITE) { Ok(()) } else { Err(refusal.into()) }
    }

    /// A file of the same tree. EXDEV.
    fn peer<'a>(&self, file: &'a dyn BranchFile) -> Result<&'a Self> {
        file.as_any()
            .downcast_ref::<Self>()
            .filter(|file| Arc::ptr_eq(&file.pin.medium, &self.pin.medium))
            .ok_or(Error::new(Errno::XDEV, "copy between branches"))
    }

    fn size(&self) -> Result<u64> {
        self.pin.medium.look(|state| Ok(state.inode(self.pin.ino)?.data()?.size()))
    }
}

/// How much of `len` bytes copy_file_range(2) copies; its checks in its order. `most`: the largest size. EOVERFLOW: a range ends beyond all
/// numbers; EFBIG: it starts beyond the largest size; EINVAL: the ranges of one file overlap, or an offset is negative to the kernel.
fn copy_length(
    (size, most): (u64, u64),
    same_file: bool,
    from: u64,
    to: u64,
    len: u64,
) -> Result<u64, Errno> {
    if from.checked_add(len).is_none() || to.checked_add(len).is_none() {
        return Err(Errno::OVERFLOW);
    }
    let negative = |offset: u64| i64::try_from(offset).is_err();
    let mut len = if negative(from) { len } else { len.min(size.saturating_sub(from)) };
    if !negative(to) {
        len = len.min(most.checked_sub(to).filter(|room| *room > 0).ok_or(Errno::FBIG)?);
    }
    if same_file && to.wrapping_add(len) > from && to < from.wrapping_add(len) {
        return Err(Errno::INVAL);
    }
    if negative(from) || negative(to) { Err(Errno::INVAL) } else { Ok(len) }
}

impl<M: Medium> BranchFile for File<M> {
    fn has_writers(&self) -> bool {
        let writers = self.pin.medium.look(|state| Ok(state.inode(self.pin.ino)?.writers));
        writers.map_or(true, |writers| writers > 0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        check_offset(offset)?;
        self.readable()?;
        self.pin.medium.read(self, buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        check_offset(offset)?;
        self.writable(Errno::BADF)?;
        self.pin.medium.write(self, data, offset)
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        self.pin.medium.sync(self, datasync)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        check_offset(size)?;
        self.writable(Errno::INVAL)?;
        self.pin.medium.truncate(self, size)
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        check_allocate(mode, offset, len)?;
        self.writable(Errno::BADF)?;
        self.pin.medium.allocate(self, mode, offset, len)
    }

    fn seek(&self, offset: u64, whence: Seek) -> Result<u64> {
        self.pin.medium.seek(self, offset, whence)
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        /// The most that is copied at a time, as in other branches.
        const STEP: u64 = 64 << 20;
        let peer = self.peer(from)?;
        peer.readable()?;
        self.writable(Errno::BADF)?;
        let same = peer.pin.ino == self.pin.ino;
        let len = copy_length((peer.size()?, M::SIZE_MAX), same, from_offset, offset, len.min(STEP))?;
        if len == 0 { Ok(0) } else { self.pin.medium.copy(self, offset, peer, from_offset, len) }
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        let peer = self.peer(from)?;
        peer.readable()?;
        self.writable(Errno::BADF)?;
        self.pin.medium.share(self, peer)
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

impl<M: Medium> Dir<M> {
    /// A directory of the same tree. EXDEV.
    fn peer<'a>(&self, dir: &'a dyn BranchDir) -> Result<&'a Self> {
        dir.as_any()
            .downcast_ref::<Self>()
            .filter(|dir| Arc::ptr_eq(&dir.pin.medium, &self.pin.medium))
            .ok_or(Error::new(Errno::XDEV, "move between branches"))
    }

    /// Looks at what `name` leads to.
    fn look_at<R>(
        &self,
        name: Name<'_>,
        act: impl FnOnce(&mut State<M::Data>, u64) -> Result<R, Errno>,
    ) -> Result<R> {
        self.pin.medium.look(|state| {
            let ino = state.find(self.pin.ino, name)?;
            act(state, ino)
        })
    }

    /// Changes what `name` leads to.
    fn change_at<R>(
        &self,
        name: Name<'_>,
        act: impl FnOnce(&mut State<M::Data>, u64) -> Result<R, Errno>,
    ) -> Result<R> {
        self.pin.medium.change(|state| {
            let ino = state.find(self.pin.ino, name)?;
            act(state, ino)
        })
    }

    /// A new file, opened.
    fn created(&self, state: &mut State<M::Data>, ino: u64) -> Result<File<M>, Errno> {
        File::new(&self.pin.medium, state, ino, OpenMode::READ | OpenMode::WRITE)
    }
}

impl<M: Medium> BranchDir for Dir<M> {
    fn stat_at(&self, name: Name<'_>) -> Result<Attr> {
        self.look_at(name, |state, ino| state.attr(ino))
    }

    fn get_xattr_at(&self, name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        check_attr_len(attr.to_bytes())?;
        self.look_at(name, |state, ino| state.get_xattr(ino, attr.to_bytes(), buf))
    }

    fn set_owner_at(&self, name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        check_owner(uid, gid)?;
        self.change_at(name, |state, ino| state.set_owner(ino, uid, gid))
    }

    fn set_mode_at(&self, name: Name<'_>, mode: u32) -> Result<()> {
        self.change_at(name, |state, ino| state.set_mode(ino, mode))
    }

    fn set_times_at(&self, name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        check_times(atime, mtime)?;
        // Nothing to set: the kernel does not even look the name up.
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        self.change_at(name, |state, ino| state.set_times(ino, atime, mtime))
    }

    fn read_link_at(&self, name: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        // readlink(2) looks at the buffer before it looks the name up.
        if buf.is_empty() {
            return Err(Errno::INVAL.into());
        }
        self.look_at(name, |state, ino| read_link(state, ino, buf))
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        let pin = self.look_at(name, |state, ino| {
            state.inode(ino)?.entries()?;
            Pin::new(&self.pin.medium, state, ino)
        })?;
        Ok(Arc::new(Self { pin }))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        // Held meanwhile, so that nobody can take the number away between finding and opening.
        let pin = self.look_at(name, |state, ino| Pin::new(&self.pin.medium, state, ino))?;
        open(&self.pin.medium, pin.ino, mode)
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        let pin = self.look_at(name, |state, ino| Pin::new(&self.pin.medium, state, ino))?;
        Ok(Arc::new(Handle { pin }))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        let file = self.pin.medium.change(|state| {
            let ino = state.create(self.pin.ino, name, mode)?;
            self.created(state, ino)
        })?;
        Ok(Arc::new(file))
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        let file = self.pin.medium.change(|state| {
            let ino = state.create_unnamed(self.pin.ino, mode)?;
            self.created(state, ino)
        })?;
        Ok(Arc::new(file))
    }

    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()> {
        let any = object.as_any();
        let pin = if let Some(file) = any.downcast_ref::<File<M>>() {
            &file.pin
        } else if let Some(handle) = any.downcast_ref::<Handle<M>>() {
            &handle.pin
        } else if any.is::<Self>() {
            return Err(Errno::PERM.into());
        } else {
            return Err(Error::new(Errno::XDEV, "link between branches"));
        };
        if !Arc::ptr_eq(&pin.medium, &self.pin.medium) {
            return Err(Error::new(Errno::XDEV, "link between branches"));
        }
        self.pin.medium.change(|state| state.link(pin.ino, self.pin.ino, name))
    }

    fn make_dir(&self, name: Name<'_>, mode: u32) -> Result<()> {
        self.pin.medium.change(|state| state.make_dir(self.pin.ino, name, mode))
    }

    fn make_node(&self, name: Name<'_>, mode: u32, rdev: u64) -> Result<()> {
        self.pin.medium.change(|state| state.make_node(self.pin.ino, name, mode, rdev))
    }

    fn make_symlink(&self, name: Name<'_>, target: &CStr) -> Result<()> {
        self.pin.medium.change(|state| state.make_symlink(self.pin.ino, name, target.to_bytes()))
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        self.pin.medium.free(|state| state.remove(self.pin.ino, name))
    }

    fn remove_dir(&self, name: Name<'_>) -> Result<()> {
        self.pin.medium.free(|state| state.remove_dir(self.pin.ino, name))
    }

    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()> {
        let to = self.peer(to)?;
        self.change_at(name, |state, ino| state.link(ino, to.pin.ino, to_name))
    }

    fn rename(
        &self,
        name: Name<'_>,
        to: &dyn BranchDir,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.peer(to)?;
        self.pin.medium.before_rename(self.pin.ino, name)?;
        self.pin.medium.change(|state| state.rename((self.pin.ino, name), (to.pin.ino, to_name), flags))
    }

    fn list(&self, each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()> {
        // Copied first: `each` may come back to this tree.
        let items: Vec<(CString, u64, FileKind)> = self.pin.medium.look(|state| {
            let dir = state.inode(self.pin.ino)?;
            if dir.nlink == 0 {
                return Err(Errno::NOENT);
            }
            let entries = dir.entries()?.iter().filter_map(|(name, &ino)| {
                Some((CString::new(name.as_slice()).ok()?, ino, state.inode(ino).ok()?.kind()))
            });
            Ok(entries.collect())
        })?;
        for (name, ino, kind) in &items {
            each(DirItem { name: Name::new(name)?, ino: *ino, kind: Some(*kind) })?;
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<()> {
        self.pin.medium.sync_dir(self.pin.ino)
    }
}
