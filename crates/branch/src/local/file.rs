//! Open regular files.

use super::device_numbers::Home;
use super::handle::{impl_object, open_flags, open_noatime, without_flags};
use crate::convert::timestamps;
use crate::exact_io;
use rustix::io::Errno;
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vellum_sys::{Sys, XattrTarget};
use vellum_vfs::{Attr, BranchFile, Error, Object, OpenMode, Result, Seek, SetTime};

/// The most that one copy_file_range(2) is asked for: a call that cannot be interrupted should end soon.
const COPY_STEP: u64 = 64 << 20;

/// An open regular file.
pub(super) struct LocalFile<S> {
    pub(super) sys: S,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) home: Home,
}

impl<S: Sys> LocalFile<S> {
    pub(super) fn boxed(sys: S, fd: OwnedFd, home: Home) -> Arc<dyn BranchFile> {
        Arc::new(Self { sys, fd: Arc::new(fd), home })
    }

    /// Another file of the same kind of branch. EXDEV if it is none.
    fn peer(file: &dyn BranchFile) -> Result<&Self> {
        file.as_any().downcast_ref().ok_or(Error::new(Errno::XDEV, "copy between branches"))
    }
}

impl_object!(LocalFile, XattrTarget::File, {
    fn read_link(&self, _buf: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL.into())
    }

    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        let fd = open_noatime(open_flags(mode), |flags| self.sys.reopen(self.fd.as_fd(), flags))?;
        Ok(Self::boxed(self.sys.clone(), fd, self.home))
    }

    fn flags(&self) -> Result<u32> {
        self.sys.get_flags(self.fd.as_fd()).map_err(without_flags)
    }

    fn set_flags(&self, flags: u32) -> Result<()> {
        self.sys.set_flags(self.fd.as_fd(), flags).map_err(without_flags)
    }
});

impl<S: Sys> BranchFile for LocalFile<S> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        exact_io::read(buf, offset, |rest, at| self.sys.read_at(self.fd.as_fd(), rest, at))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        exact_io::write(data, offset, |rest, at| self.sys.write_at(self.fd.as_fd(), rest, at))
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        let fd = self.fd.as_fd();
        Ok(if datasync { self.sys.data_sync(fd) } else { self.sys.sync(fd) }?)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        Ok(self.sys.truncate(self.fd.as_fd(), size)?)
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        Ok(self.sys.allocate(self.fd.as_fd(), mode, offset, len)?)
    }

    fn seek(&self, offset: u64, whence: Seek) -> Result<u64> {
        let fd = self.fd.as_fd();
        Ok(match whence {
            Seek::Data => self.sys.seek_data(fd, offset),
            Seek::Hole => self.sys.seek_hole(fd, offset),
        }?)
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        let peer = Self::peer(from)?;
        let step = usize::try_from(len.min(COPY_STEP)).unwrap_or(usize::MAX);
        let copied = self.sys.copy_range((peer.fd.as_fd(), from_offset), (self.fd.as_fd(), offset), step)?;
        Ok(copied as u64)
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        let peer = Self::peer(from)?;
        // Filesystems without reflink say so in several ways.
        self.sys.clone_file(self.fd.as_fd(), peer.fd.as_fd()).map_err(|errno| match errno {
            Errno::NOTTY | Errno::NOSYS => Errno::OPNOTSUPP.into(),
            other => other.into(),
        })
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.fd))
    }

    fn has_writers(&self) -> bool {
        vellum_sys::has_writers(self.fd.as_fd()).unwrap_or(true)
    }
}
