//! What directories, files and handles have in common, and the handle itself.

use super::device_numbers::Home;
use super::file::LocalFile;
use crate::convert::timestamps;
use crate::kernel_checks::{check_target, require_regular};
use rustix::fs::OFlags;
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use vellum_sys::{Sys, XattrTarget};
use vellum_vfs::{Attr, BranchFile, Errno, Error, FileKind, Object, OpenMode, Result, SetTime};

/// Implements [`Object`] for a type with fields `sys`, `fd` and `home`. `$xattr` makes the [`XattrTarget`] of its descriptor.
macro_rules! impl_object {
    ($type:ident, $xattr:path, { $($own:item)* }) => {
        impl<S: Sys> Object for $type<S> {
            fn stat(&self) -> Result<Attr> {
                Ok(self.home.attr(&self.sys.stat(self.fd.as_fd())?))
            }

            fn set_mode(&self, mode: u32) -> Result<()> {
                Ok(self.sys.set_mode(self.fd.as_fd(), mode)?)
            }

            fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
                Ok(self.sys.set_owner(self.fd.as_fd(), c"", uid, gid)?)
            }

            fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
                Ok(self.sys.set_times(self.fd.as_fd(), c"", &timestamps(atime, mtime)?)?)
            }

            fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
                Ok(self.sys.get_xattr($xattr(self.fd.as_fd()), name, buf)?)
            }

            fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
                Ok(self.sys.set_xattr($xattr(self.fd.as_fd()), name, value, flags)?)
            }

            fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
                Ok(self.sys.list_xattr($xattr(self.fd.as_fd()), buf)?)
            }

            fn remove_xattr(&self, name: &CStr) -> Result<()> {
                Ok(self.sys.remove_xattr($xattr(self.fd.as_fd()), name)?)
            }

            fn as_descriptor(&self) -> Option<BorrowedFd<'_>> {
                Some(self.fd.as_fd())
            }

            fn as_any(&self) -> &dyn Any {
                self
            }

            $($own)*
        }
    };
}
pub(super) use impl_object;

/// What a filesystem without flags says, in several ways.
pub(super) fn without_flags(errno: Errno) -> Error {
    if matches!(errno, Errno::NOTTY | Errno::NOSYS) { Errno::OPNOTSUPP.into() } else { errno.into() }
}

/// The flags that open a regular file in `mode`, whatever else may lie there instead: a symbolic link is not
/// followed, and a fifo does not block.
pub(super) fn open_flags(mode: OpenMode) -> OFlags {
    let access = match (mode.contains(OpenMode::READ), mode.contains(OpenMode::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let truncate = if mode.contains(OpenMode::TRUNCATE) { OFlags::TRUNC } else { OFlags::empty() };
    access | truncate | OFlags::NONBLOCK | OFlags::CLOEXEC
}

/// How long somebody's lease on a file is waited for (fcntl(2), F_SETLEASE). Who never gives his back must not have all workers wait for
/// him.
const LEASE_MAX: Duration = Duration::from_millis(200);

/// Runs `open` without touching the access time, or with, when the file is not ours. EAGAIN: somebody keeps a lease on it.
pub(super) fn open_noatime(
    flags: OFlags,
    open: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    vellum_sys::open_beside_leases(LEASE_MAX, || match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        result => result,
    })
}

/// Anything in a directory, held by an O_PATH descriptor.
pub(super) struct LocalHandle<S> {
    pub(super) sys: S,
    pub(super) fd: OwnedFd,
    pub(super) home: Home,
}

impl_object!(LocalHandle, XattrTarget::Held, {
    fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
        let len = self.sys.read_link(self.fd.as_fd(), c"", buf)?;
        check_target(len, buf.len(), || Ok(self.stat()?.size))
    }

    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        // Asked before opening: an object that is held never changes its kind, and a device must not be opened.
        require_regular(FileKind::from_mode(self.sys.stat(self.fd.as_fd())?.mode))?;
        let fd = open_noatime(open_flags(mode), |flags| self.sys.reopen(self.fd.as_fd(), flags))?;
        Ok(LocalFile::boxed(self.sys.clone(), fd, self.home))
    }

    fn flags(&self) -> Result<u32> {
        self.reopen(OpenMode::READ)?.flags()
    }

    fn set_flags(&self, flags: u32) -> Result<()> {
        self.reopen(OpenMode::READ)?.set_flags(flags)
    }
});
