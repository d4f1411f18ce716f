//! Files of a branch that are handed out as objects, by which a test writes past whoever serves them.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_vfs::{
    Branch, BranchDir, BranchFile, Errno, Error, Export, ExportDir, ExportFile, ExportedFile, HandoutFlags,
    Name, OpenMode, Result,
};

const ACCESS_ACL: &CStr = c"system.posix_acl_access";

/// The face by which a branch's files are handed out.
pub struct ObjectExport(Arc<dyn Branch>);

impl ObjectExport {
    pub fn new(branch: Arc<dyn Branch>) -> Arc<Self> {
        Arc::new(Self(branch))
    }

    fn dir(&self, path: &[u8]) -> Result<Arc<dyn BranchDir>> {
        self.0.open_dir_path(&CString::new(path).map_err(|_| Errno::INVAL)?)
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

/// A directory of the disk, if that is its number.
fn held(dir: Arc<dyn BranchDir>, ino: u64) -> Result<Arc<dyn ExportDir>> {
    if dir.stat()?.ino != ino {
        return Err(Errno::STALE.into());
    }
    Ok(Arc::new(ObjectExportDir(dir)))
}

impl Export for ObjectExport {
    fn open_dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>> {
        held(self.dir(path)?, ino)
    }

    fn open_file(&self, path: &[u8], flags: HandoutFlags) -> Result<ExportedFile> {
        let (above, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
            None => (&[][..], path),
        };
        let last = CString::new(last).map_err(|_| Errno::INVAL)?;
        exported(self.dir(above)?.open_file(Name::new(&last)?, mode_of(flags))?)
    }

    fn set_flags(&self, _file: &ExportFile, _flags: HandoutFlags) -> Result<()> {
        Ok(())
    }

    fn set_owner(&self, file: &ExportFile, uid: u32, gid: u32) -> Result<()> {
        object(file)?.set_owner(Some(uid), Some(gid))
    }

    fn truncate_to_zero(&self, file: &ExportFile) -> Result<()> {
        object(file)?.truncate(0)
    }
}

fn exported(file: Arc<dyn BranchFile>) -> Result<ExportedFile> {
    let attr = file.stat()?;
    let acl = file.get_xattr(ACCESS_ACL, &mut []).is_ok_and(|len| len > 0);
    Ok(ExportedFile { file: ExportFile::Object(file), attr, acl })
}

/// A directory whose files are handed out.
struct ObjectExportDir(Arc<dyn BranchDir>);

impl ExportDir for ObjectExportDir {
    fn create(&self, name: Name<'_>, _flags: HandoutFlags, mode: u32) -> Result<ExportedFile> {
        exported(self.0.create(name, mode)?)
    }

    fn open(&self, name: Name<'_>, flags: HandoutFlags) -> Result<ExportedFile> {
        exported(self.0.open_file(name, mode_of(flags))?)
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        self.0.remove(name)
    }

    fn open_dir(&self, name: Name<'_>, ino: u64) -> Result<Arc<dyn ExportDir>> {
        held(self.0.open_dir(name)?, ino)
    }
}
