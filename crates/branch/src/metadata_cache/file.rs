//! Regular files.

use super::store::{Node, Version, is_same};
use crate::kernel_checks::require_regular;
use std::any::Any;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Attr, BranchDir, BranchFile, Errno, Error, FileKind, Name, Object, OpenMode, Result, Seek};

/// An object, and how it is found below.
#[derive(Clone)]
pub(super) struct ObjectLocation {
    pub(super) dir: Arc<dyn BranchDir>,
    pub(super) name: Box<CStr>,
    pub(super) node: Arc<Node>,
}

impl ObjectLocation {
    /// Opens a file: below only if its version is not known.
    pub(super) fn open(self, kind: FileKind, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        require_regular(Some(kind))?;
        if mode.intersects(OpenMode::WRITE | OpenMode::TRUNCATE) {
            return Err(Errno::ROFS.into());
        }
        let below = OnceLock::new();
        let version = match self.node.version() {
            Ok(version) => version,
            Err(turn) => {
                let opened = self.open_below(mode)?;
                let version = opened.version;
                self.node.learn_version(turn, version);
                below.get_or_init(|| opened);
                version
            }
        };
        Ok(Arc::new(MetadataCacheFile { place: self, mode, version, below }))
    }

    fn open_below(&self, mode: OpenMode) -> Result<LowerFile> {
        let file =
            self.dir.open_file(Name::new(&self.name)?, mode).map_err(|error| self.missing_error(error))?;
        let version = file.version()?;
        Ok(LowerFile { file, version })
    }

    /// What is to be said where something that is known is not found below. Where it has gone, somebody has changed the layer.
    pub(super) fn missing_error(&self, error: Error) -> Error {
        match error.errno() {
            Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NXIO | Errno::STALE => {
                self.node.known.recall();
                Error::new(Errno::STALE, "a layer that nobody was to change has been changed")
                    .at(self.name.to_bytes())
            }
            _ => error,
        }
    }
}

/// A file that is open below.
struct LowerFile {
    file: Arc<dyn BranchFile>,
    version: Version,
}

struct MetadataCacheFile {
    place: ObjectLocation,
    mode: OpenMode,
    /// As it was known when it was opened.
    version: Version,
    below: OnceLock<LowerFile>,
}

impl MetadataCacheFile {
    /// The file below, opened when it is needed first.
    fn below(&self) -> Result<&LowerFile> {
        if let Some(below) = self.below.get() {
            return Ok(below);
        }
        let opened = self.place.open_below(self.mode)?;
        if !is_same(&opened.version, &self.version) {
            self.place.node.known.recall();
        }
        Ok(self.below.get_or_init(|| opened))
    }

    fn file(&self) -> Result<&dyn BranchFile> {
        Ok(&*self.below()?.file)
    }

    /// As far as is known by now.
    fn now(&self) -> Version {
        self.below.get().map_or(self.version, |below| below.version)
    }
}

impl Object for MetadataCacheFile {
    fn stat(&self) -> Result<Attr> {
        Ok(self.now().0)
    }

    fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.place.node.xattr(name, buf, |buf| self.file()?.get_xattr(name, buf))
    }

    fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
        self.place.node.xattr_list(buf, |buf| self.file()?.list_xattr(buf))
    }

    fn flags(&self) -> Result<u32> {
        self.file()?.flags()
    }

    fn read_link(&self, _buf: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL.into())
    }

    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        self.place.clone().open(FileKind::Regular, mode)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl BranchFile for MetadataCacheFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        // Whoever has read all asks for what comes after that.
        if offset >= self.now().0.size {
            return Ok(0);
        }
        self.file()?.read_at(buf, offset)
    }

    fn sync(&self, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn seek(&self, offset: u64, whence: Seek) -> Result<u64> {
        self.file()?.seek(offset, whence)
    }

    fn has_writers(&self) -> bool {
        false
    }

    fn version(&self) -> Result<Version> {
        Ok(self.now())
    }

    fn version_is_known(&self) -> bool {
        true
    }
}
