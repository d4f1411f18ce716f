//! Files of a disk in memory that are handed out: as objects, by which a test writes past whoever serves them.

use super::{MemoryBranch, MemoryDir, MemoryFile};
use crate::tree::Pin;
use std::ffi::CString;
use std::sync::Arc;
use vellum_vfs::{
    Branch, BranchDir, BranchFile, Errno, Error, Export, ExportDir, ExportFile, ExportedFile, HandoutFlags,
    Name, OpenMode, Result,
};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The face by which a branch's files are handed out.
struct MemoryExport(Arc<MemoryBranch>);

impl MemoryBranch {
    /// The face by which the branch's files are handed out.
    #[must_use]
    pub fn export(self: Arc<Self>) -> Arc<dyn Export> {
        Arc::new(MemoryExport(self))
    }
}

fn mode_of(flags: HandoutFlags) -> OpenMode {
    let mut mode = OpenMode::empty();
    mode.set(OpenMode::READ, flags.contains(HandoutFlags::READ));
    mode.set(OpenMode::WRITE, flags.contains(HandoutFlags::WRITE));
    mode
}

/// The object of a file of such a branch. EXDEV: it is another's.
fn object(file: &ExportFile) -> Result<&Arc<dyn BranchFile>> {
    match file {
        ExportFile::Object(object) => Ok(object),
        ExportFile::Descriptor(_) => Err(Error::new(Errno::XDEV, "a file of another branch")),
    }
}

impl MemoryExport {
    fn dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>> {
        let mut dir = self.0.root();
        for component in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let component = CString::new(component).map_err(|_| Errno::INVAL)?;
            dir = dir.open_dir(Name::new(&component)?)?;
        }
        held(&*dir, ino)
    }
}

/// A directory of the disk, if that is its number.
fn held(dir: &dyn BranchDir, ino: u64) -> Result<Arc<dyn ExportDir>> {
    let dir = dir.as_any().downcast_ref::<MemoryDir>().ok_or(Errno::XDEV)?;
    if dir.pin.ino != ino {
        return Err(Errno::STALE.into());
    }
    let disk = &dir.pin.medium;
    let pin = Pin::new(disk, &mut disk.lock(), ino)?;
    Ok(Arc::new(MemoryExportDir(MemoryDir { pin })))
}

impl Export for MemoryExport {
    fn open_dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>> {
        self.dir(path, ino)
    }

    fn open_file(&self, path: &[u8], flags: HandoutFlags) -> Result<ExportedFile> {
        let (above, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
            None => (&[][..], path),
        };
        let mut dir = self.0.root();
        for component in above.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let component = CString::new(component).map_err(|_| Errno::INVAL)?;
            dir = dir.open_dir(Name::new(&component)?)?;
        }
        let last = CString::new(last).map_err(|_| Errno::INVAL)?;
        exported(dir.open_file(Name::new(&last)?, mode_of(flags))?)
    }

    fn set_flags(&self, _file: &ExportFile, _flags: HandoutFlags) -> Result<()> {
        Ok(())
    }

    fn set_owner(&self, file: &ExportFile, uid: u32, gid: u32) -> Result<()> {
        object(file)?.set_owner(Some(uid), Some(gid))
    }

    fn cut(&self, file: &ExportFile) -> Result<()> {
        object(file)?.truncate(0)
    }
}

fn exported(file: Arc<dyn BranchFile>) -> Result<ExportedFile> {
    let attr = file.stat()?;
    let acl = file.as_any().downcast_ref::<MemoryFile>().is_some_and(|file| {
        let state = file.pin.medium.lock();
        state.get_xattr(file.pin.ino, ACCESS_ACL, &mut []).is_ok_and(|len| len > 0)
    });
    Ok(ExportedFile { file: ExportFile::Object(file), attr, acl })
}

/// A directory whose files are handed out.
struct MemoryExportDir(MemoryDir);

impl ExportDir for MemoryExportDir {
    fn create(&self, name: Name<'_>, flags: HandoutFlags, mode: u32) -> Result<ExportedFile> {
        let pin = &self.0.pin;
        let mut state = pin.medium.lock();
        let ino = state.create(pin.ino, name, mode)?;
        let file = MemoryFile::new(&pin.medium, &mut state, ino, mode_of(flags))?;
        drop(state);
        exported(Arc::new(file))
    }

    fn open(&self, name: Name<'_>, flags: HandoutFlags) -> Result<ExportedFile> {
        exported(self.0.open_file(name, mode_of(flags))?)
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        BranchDir::remove(&self.0, name)
    }

    fn open_dir(&self, name: Name<'_>, ino: u64) -> Result<Arc<dyn ExportDir>> {
        held(&*self.0.open_dir(name)?, ino)
    }
}
