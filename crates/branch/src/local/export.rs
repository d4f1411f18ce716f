//! Files of a local directory that are handed out, each opened by a mount of the directory of its own: so everybody can tell them from
//! files that were opened otherwise, and their paths in /proc are those in the mount.

use crate::convert::attr;
use rustix::fs::{OFlags, fcntl_setfl};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use vellum_sys::{Real, Sys, XattrTarget, open_beside_leases};
use vellum_vfs::{
    Attr, Errno, Error, Export, ExportDir, ExportFile, ExportedFile, HandoutFlags, Name, Result,
};

const ACCESS_ACL: &std::ffi::CStr = c"system.posix_acl_access";
/// How long a lease on a file is waited for. A directory is locked meanwhile: for longer only the kernel's way does.
const LEASE_MAX: Duration = Duration::from_millis(2);
/// How directories are opened.
const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The face by which a local directory's files are handed out.
pub struct LocalExport<S: Sys = Real> {
    sys: S,
    root: OwnedFd,
    /// `st_dev` of files in it.
    device: u64,
}

impl LocalExport<Real> {
    /// Takes a mount of a directory, or a descriptor of it that does for one.
    pub fn new(root: OwnedFd) -> Result<Arc<Self>> {
        Self::with(Real, root)
    }
}

impl<S: Sys> LocalExport<S> {
    /// As [`LocalExport::new`], by way of `sys`.
    pub fn with(sys: S, root: OwnedFd) -> Result<Arc<Self>> {
        let device = sys.stat(root.as_fd())?.dev;
        Ok(Arc::new(Self { sys, root, device }))
    }

    /// Opens something beneath the root, and says what it is. ESTALE: it is of another filesystem.
    fn beneath(&self, path: &[u8], flags: OFlags) -> Result<(OwnedFd, Attr)> {
        let path = CString::new(if path.is_empty() { b"." } else { path }).map_err(|_| Errno::INVAL)?;
        let found =
            self.sys.open_beneath(self.root.as_fd(), &path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
        let attr = attr(&self.sys.stat(found.as_fd())?);
        if attr.dev == self.device { Ok((found, attr)) } else { Err(Errno::STALE.into()) }
    }

    fn export_dir(&self, fd: OwnedFd) -> Arc<dyn ExportDir> {
        Arc::new(LocalExportDir { sys: self.sys.clone(), fd })
    }
}

fn exported<S: Sys>(sys: &S, file: OwnedFd, attr: Attr) -> ExportedFile {
    let acl = sys.get_xattr(XattrTarget::File(file.as_fd()), ACCESS_ACL, &mut []).is_ok_and(|len| len > 0);
    ExportedFile { file: ExportFile::Descriptor(file), attr, acl }
}

/// What open(2) is asked for, without what makes, cuts or waits.
fn open_flags(flags: HandoutFlags) -> OFlags {
    let access = match (flags.contains(HandoutFlags::READ), flags.contains(HandoutFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let others = [
        (HandoutFlags::APPEND, OFlags::APPEND),
        (HandoutFlags::NONBLOCK, OFlags::NONBLOCK),
        (HandoutFlags::DSYNC, OFlags::DSYNC),
        (HandoutFlags::SYNC, OFlags::SYNC),
        (HandoutFlags::DIRECT, OFlags::DIRECT),
    ];
    let others = others.into_iter().filter(|(asked, _)| flags.contains(*asked));
    others.fold(access | OFlags::NOFOLLOW | OFlags::CLOEXEC, |all, (_, flag)| all | flag)
}

impl<S: Sys> Export for LocalExport<S> {
    fn open_dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>> {
        let (found, attr) = self.beneath(path, OFlags::PATH | OFlags::DIRECTORY)?;
        if attr.ino == ino { Ok(self.export_dir(found)) } else { Err(Errno::STALE.into()) }
    }

    fn open_file(&self, path: &[u8], flags: HandoutFlags) -> Result<ExportedFile> {
        let flags = open_flags(flags) | OFlags::NONBLOCK;
        let open = || self.beneath(path, flags).map_err(|error| error.errno());
        let (file, attr) = open_beside_leases(LEASE_MAX, open)?;
        Ok(exported(&self.sys, file, attr))
    }

    fn set_flags(&self, file: &ExportFile, flags: HandoutFlags) -> Result<()> {
        const SET: OFlags = OFlags::APPEND.union(OFlags::DIRECT);
        // It was opened with O_NONBLOCK, because of leases.
        if flags.contains(HandoutFlags::NONBLOCK) {
            return Ok(());
        }
        Ok(fcntl_setfl(descriptor(file)?, open_flags(flags) & SET)?)
    }

    fn set_owner(&self, file: &ExportFile, uid: u32, gid: u32) -> Result<()> {
        Ok(self.sys.set_owner(descriptor(file)?, c"", Some(uid), Some(gid))?)
    }

    fn truncate_to_zero(&self, file: &ExportFile) -> Result<()> {
        Ok(self.sys.truncate(descriptor(file)?, 0)?)
    }
}

/// The descriptor of a file of this branch. EXDEV: it is another's.
fn descriptor(file: &ExportFile) -> Result<BorrowedFd<'_>> {
    match file {
        ExportFile::Descriptor(fd) => Ok(fd.as_fd()),
        ExportFile::Object(_) => Err(Error::new(Errno::XDEV, "a file of another branch")),
    }
}

/// A directory whose files are handed out, held by an O_PATH descriptor of the mount for that.
struct LocalExportDir<S> {
    sys: S,
    fd: OwnedFd,
}

impl<S: Sys> ExportDir for LocalExportDir<S> {
    fn create(&self, name: Name<'_>, flags: HandoutFlags, mode: u32) -> Result<ExportedFile> {
        let flags = open_flags(flags) | OFlags::CREATE | OFlags::EXCL;
        let file = self.sys.open(self.fd.as_fd(), name.as_c_str(), flags, mode)?;
        let attr = match self.sys.stat(file.as_fd()) {
            Ok(found) => attr(&found),
            Err(errno) => {
                let _ = self.remove(name);
                return Err(errno.into());
            }
        };
        Ok(ExportedFile { file: ExportFile::Descriptor(file), attr, acl: false })
    }

    fn open(&self, name: Name<'_>, flags: HandoutFlags) -> Result<ExportedFile> {
        let flags = open_flags(flags) | OFlags::NONBLOCK;
        let open = || self.sys.open(self.fd.as_fd(), name.as_c_str(), flags, 0);
        let file = open_beside_leases(LEASE_MAX, open)?;
        let attr = attr(&self.sys.stat(file.as_fd())?);
        Ok(exported(&self.sys, file, attr))
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        Ok(self.sys.unlink(self.fd.as_fd(), name.as_c_str())?)
    }

    fn open_dir(&self, name: Name<'_>, ino: u64) -> Result<Arc<dyn ExportDir>> {
        let fd = self.sys.open(self.fd.as_fd(), name.as_c_str(), DIR, 0)?;
        if self.sys.stat(fd.as_fd())?.ino != ino {
            return Err(Errno::STALE.into());
        }
        Ok(Arc::new(Self { sys: self.sys.clone(), fd }))
    }
}
