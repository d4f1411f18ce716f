//! Directories.

use super::device_numbers::Home;
use super::file::LocalFile;
use super::handle::{LocalHandle, impl_object, open_flags, open_noatime, without_flags};
use super::{DIR_FLAGS, LIST_FLAGS};
use crate::convert::timestamps;
use crate::kernel_checks::{check_target, require_regular};
use rustix::fs::OFlags;
use std::any::Any;
use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vellum_sys::{Sys, XattrTarget};
use vellum_vfs::{
    Attr, BranchDir, BranchFile, DirItem, Errno, Error, FileKind, Name, Object, OpenMode, RenameFlags,
    Result, SetTime,
};

/// Bytes of directory entries that are taken from the kernel at a time.
const LIST_BUFFER: usize = 64 << 10;

thread_local! {
    /// The buffer of the thread's next listing. It is taken out while in use, so that a listing within a listing
    /// gets one of its own.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A directory, held by an O_PATH descriptor.
pub(super) struct LocalDir<S> {
    pub(super) sys: S,
    pub(super) fd: OwnedFd,
    pub(super) home: Home,
}

impl<S: Sys> LocalDir<S> {
    pub(super) const fn new(sys: S, fd: OwnedFd, home: Home) -> Self {
        Self { sys, fd, home }
    }

    /// Another directory of the same kind of branch. EXDEV if it is none.
    fn peer(dir: &dyn BranchDir) -> Result<&Self> {
        dir.as_any().downcast_ref().ok_or(Error::new(Errno::XDEV, "move between branches"))
    }

    /// The directory, readable, for as long as somebody needs that.
    fn readable(&self) -> Result<OwnedFd> {
        Ok(open_noatime(LIST_FLAGS, |flags| self.sys.open(self.fd.as_fd(), c".", flags, 0))?)
    }
}

impl_object!(LocalDir, XattrTarget::Dir, {
    fn read_link(&self, _buf: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL.into())
    }

    fn reopen(&self, _mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        Err(Errno::ISDIR.into())
    }

    fn flags(&self) -> Result<u32> {
        self.sys.get_flags(self.readable()?.as_fd()).map_err(without_flags)
    }

    fn set_flags(&self, flags: u32) -> Result<()> {
        self.sys.set_flags(self.readable()?.as_fd(), flags).map_err(without_flags)
    }
});

impl<S: Sys> BranchDir for LocalDir<S> {
    fn stat_at(&self, name: Name<'_>) -> Result<Attr> {
        Ok(self.home.attr(&self.sys.stat_at(self.fd.as_fd(), name.as_c_str())?))
    }

    fn get_xattr_at(&self, name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        Ok(self.sys.get_xattr(XattrTarget::Name(self.fd.as_fd(), name.as_c_str()), attr, buf)?)
    }

    fn set_owner_at(&self, name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        Ok(self.sys.set_owner(self.fd.as_fd(), name.as_c_str(), uid, gid)?)
    }

    fn set_mode_at(&self, name: Name<'_>, mode: u32) -> Result<()> {
        Ok(self.sys.set_mode_at(self.fd.as_fd(), name.as_c_str(), mode)?)
    }

    fn set_times_at(&self, name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        Ok(self.sys.set_times(self.fd.as_fd(), name.as_c_str(), &timestamps(atime, mtime)?)?)
    }

    fn read_link_at(&self, name: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        let len = self.sys.read_link(self.fd.as_fd(), name.as_c_str(), buf)?;
        check_target(len, buf.len(), || Ok(self.stat_at(name)?.size))
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        let fd = self.sys.open(self.fd.as_fd(), name.as_c_str(), DIR_FLAGS, 0)?;
        Ok(Arc::new(Self::new(self.sys.clone(), fd, self.home)))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        let dir = self.fd.as_fd();
        // Asked first, because opening a device can already do something.
        require_regular(FileKind::from_mode(self.sys.stat_at(dir, name.as_c_str())?.mode))?;
        let flags = open_flags(mode) | OFlags::NOFOLLOW;
        let fd = open_noatime(flags, |flags| self.sys.open(dir, name.as_c_str(), flags, 0))?;
        // And again, because the name may lead elsewhere by now.
        require_regular(FileKind::from_mode(self.sys.stat(fd.as_fd())?.mode))?;
        Ok(LocalFile::boxed(self.sys.clone(), fd, self.home))
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.sys.open(self.fd.as_fd(), name.as_c_str(), flags, 0)?;
        Ok(Arc::new(LocalHandle { sys: self.sys.clone(), fd, home: self.home }))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.sys.open(self.fd.as_fd(), name.as_c_str(), flags, mode)?;
        Ok(LocalFile::boxed(self.sys.clone(), fd, self.home))
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match self.sys.open(self.fd.as_fd(), c".", flags, mode) {
            Ok(fd) => Ok(LocalFile::boxed(self.sys.clone(), fd, self.home)),
            // What kernels before O_TMPFILE say to it.
            Err(Errno::ISDIR) => Err(Errno::OPNOTSUPP.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()> {
        let any = object.as_any();
        let held = if let Some(file) = any.downcast_ref::<LocalFile<S>>() {
            file.fd.as_fd()
        } else if let Some(handle) = any.downcast_ref::<LocalHandle<S>>() {
            handle.fd.as_fd()
        } else if any.is::<Self>() {
            return Err(Errno::PERM.into());
        } else {
            return Err(Error::new(Errno::XDEV, "link between branches"));
        };
        Ok(self.sys.link_fd(held, self.fd.as_fd(), name.as_c_str())?)
    }

    fn make_dir(&self, name: Name<'_>, mode: u32) -> Result<()> {
        Ok(self.sys.make_dir(self.fd.as_fd(), name.as_c_str(), mode)?)
    }

    fn make_node(&self, name: Name<'_>, mode: u32, rdev: u64) -> Result<()> {
        Ok(self.sys.make_node(self.fd.as_fd(), name.as_c_str(), mode, rdev)?)
    }

    fn make_symlink(&self, name: Name<'_>, target: &CStr) -> Result<()> {
        Ok(self.sys.make_symlink(target, self.fd.as_fd(), name.as_c_str())?)
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        Ok(self.sys.unlink(self.fd.as_fd(), name.as_c_str())?)
    }

    fn remove_dir(&self, name: Name<'_>) -> Result<()> {
        Ok(self.sys.remove_dir(self.fd.as_fd(), name.as_c_str())?)
    }

    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()> {
        let to = Self::peer(to)?;
        Ok(self.sys.link(self.fd.as_fd(), name.as_c_str(), to.fd.as_fd(), to_name.as_c_str())?)
    }

    fn rename(
        &self,
        name: Name<'_>,
        to: &dyn BranchDir,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = Self::peer(to)?;
        let from = (self.fd.as_fd(), name.as_c_str());
        Ok(self.sys.rename(from, (to.fd.as_fd(), to_name.as_c_str()), flags.bits())?)
    }

    fn list(&self, each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()> {
        let readable = self.readable()?;
        let lists_others = self.home.may_list_foreign_inodes(&self.sys.stat(readable.as_fd())?);
        let mut buffer = BUFFER.take();
        buffer.reserve(LIST_BUFFER);
        let result = self.sys.list_dir(readable.as_fd(), buffer.spare_capacity_mut(), |name, ino, kind| {
            if name == c"." || name == c".." {
                return Ok(());
            }
            let name = Name::new(name)?;
            // It may have gone meanwhile.
            let ino = if lists_others { self.stat_at(name).map_or(ino, |attr| attr.ino) } else { ino };
            each(DirItem { name, ino, kind: FileKind::from_mode(kind) })
        });
        BUFFER.set(buffer);
        result
    }

    fn sync_dir(&self) -> Result<()> {
        let readable = self.readable()?;
        Ok(self.sys.sync(readable.as_fd())?)
    }
}
