//! A directory of this machine as a branch.
//!
//! Everything is relative to a descriptor and names one component, so no symbolic link is ever followed and
//! nothing leads out of the root. A directory is an O_PATH descriptor: it is cheaper to open, needs no read
//! permission, and only listing and syncing need a readable one, which is then opened for that moment.

mod device_numbers;
mod dir;
mod export;
mod file;
mod handle;

pub use self::export::LocalExport;

use self::device_numbers::Home;
use self::dir::LocalDir;
use self::file::LocalFile;
use self::handle::LocalHandle;
use crate::convert::stat_fs;
use crate::path;
use rustix::fs::{CWD, OFlags};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_sys::{Real, Sys};
use vellum_vfs::{AdoptedObject, Branch, BranchDir, Errno, Error, FileKind, Result, StatFs};

/// How directories are opened.
const DIR_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How a directory is opened for listing and syncing.
const LIST_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of this machine.
pub struct LocalBranch<S: Sys = Real> {
    root: Arc<LocalDir<S>>,
    path: PathBuf,
}

impl LocalBranch<Real> {
    /// Takes the directory at `path` (symbolic links on the way to it are followed). ENOENT, ENOTDIR, EACCES, ...
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::open_with(Real, path)
    }

    /// Takes a directory that is open already (also O_PATH), and that has or had this path. ENOTDIR when it is something else.
    pub fn from_fd(fd: OwnedFd, path: impl Into<PathBuf>) -> Result<Arc<Self>> {
        Self::from_fd_with(Real, fd, path)
    }
}

impl<S: Sys> LocalBranch<S> {
    /// As [`LocalBranch::open`], by way of `sys`.
    pub fn open_with(sys: S, path: impl AsRef<Path>) -> Result<Arc<Self>> {
        let path = path.as_ref();
        let bytes = path.as_os_str().as_bytes();
        let fail = |errno: Errno| Error::new(errno, "open branch").at(bytes);
        let c_path = CString::new(bytes).map_err(|_| fail(Errno::INVAL))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = sys.open(CWD, &c_path, flags, 0).map_err(fail)?;
        Self::from_fd_with(sys, fd, path)
    }

    /// As [`LocalBranch::from_fd`], by way of `sys`.
    pub fn from_fd_with(sys: S, fd: OwnedFd, path: impl Into<PathBuf>) -> Result<Arc<Self>> {
        let path = path.into();
        let fail = |errno: Errno| Error::new(errno, "open branch").at(path.as_os_str().as_bytes());
        let stat = sys.stat(fd.as_fd()).map_err(fail)?;
        if FileKind::from_mode(stat.mode) != Some(FileKind::Directory) {
            return Err(fail(Errno::NOTDIR));
        }
        let home = Home::new(&stat, &sys.stat_fs(fd.as_fd()).map_err(fail)?);
        Ok(Arc::new(Self { root: Arc::new(LocalDir::new(sys, fd, home)), path }))
    }

    /// One component after the other, where the kernel cannot take a path at once.
    fn walk(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        let sys = &self.root.sys;
        let mut current: Option<OwnedFd> = None;
        for component in path.to_bytes().split(|&byte| byte == b'/') {
            let name = CString::new(component).map_err(|_| Error::new(Errno::INVAL, "walk path"))?;
            let dir = current.as_ref().unwrap_or(&self.root.fd);
            let next = sys.open(dir.as_fd(), &name, DIR_FLAGS, 0)?;
            current = Some(next);
        }
        match current {
            Some(fd) => Ok(Arc::new(LocalDir::new(sys.clone(), fd, self.root.home))),
            None => Ok(self.root()),
        }
    }
}

impl<S: Sys> Branch for LocalBranch<S> {
    fn root(&self) -> Arc<dyn BranchDir> {
        Arc::<LocalDir<S>>::clone(&self.root)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        if path.is_empty() {
            return Ok(self.root());
        }
        path::check(path.to_bytes())?;
        let sys = &self.root.sys;
        match sys.open_beneath(self.root.fd.as_fd(), path, DIR_FLAGS) {
            Ok(fd) => Ok(Arc::new(LocalDir::new(sys.clone(), fd, self.root.home))),
            // Old kernels and sandboxes do not have the call, and it takes no path beyond PATH_MAX.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => self.walk(path),
            // A symbolic link that is not followed is what it is: not a directory.
            Err(Errno::LOOP) => Err(Errno::NOTDIR.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(stat_fs(&self.root.sys.stat_fs(self.root.fd.as_fd())?))
    }

    fn sync(&self) -> Result<()> {
        let sys = &self.root.sys;
        let readable = sys.open(self.root.fd.as_fd(), c".", LIST_FLAGS, 0)?;
        Ok(sys.sync_fs(readable.as_fd())?)
    }

    fn adopt(&self, descriptor: OwnedFd) -> Result<AdoptedObject> {
        let (sys, home) = (self.root.sys.clone(), self.root.home);
        let kind = FileKind::from_mode(sys.stat(descriptor.as_fd())?.mode);
        let path_only = rustix::fs::fcntl_getfl(&descriptor)?.contains(OFlags::PATH);
        Ok(match kind {
            Some(FileKind::Directory) => AdoptedObject::Dir(Arc::new(LocalDir::new(sys, descriptor, home))),
            Some(FileKind::Regular) if !path_only => {
                AdoptedObject::Other(LocalFile::boxed(sys, descriptor, home))
            }
            _ => AdoptedObject::Other(Arc::new(LocalHandle { sys, fd: descriptor, home })),
        })
    }

    /// Not every filesystem can; what a rename answers then is passed on.
    fn exchanges(&self) -> bool {
        true
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn describe(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}
