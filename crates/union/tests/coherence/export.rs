//! The upper layer's face by which files are handed out, with others having their turn before and after whatever it does.

use shuttle::thread::yield_now;
use std::sync::Arc;
use vellum_vfs::{BranchFile, Export, ExportDir, ExportFile, ExportedFile, HandoutFlags, Name, Result};

pub struct Slow(pub Arc<dyn Export>);

struct SlowDir(Arc<dyn ExportDir>);

fn slowly<T>(act: impl FnOnce() -> T) -> T {
    yield_now();
    let done = act();
    yield_now();
    done
}

/// The object that was handed out.
pub fn object(given: ExportFile) -> Arc<dyn BranchFile> {
    match given {
        ExportFile::Object(object) => object,
        ExportFile::Descriptor(_) => unreachable!("a disk in memory has no descriptors"),
    }
}

impl Export for Slow {
    fn open_dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>> {
        Ok(Arc::new(SlowDir(self.0.open_dir(path, ino)?)))
    }

    fn open_file(&self, path: &[u8], flags: HandoutFlags) -> Result<ExportedFile> {
        slowly(|| self.0.open_file(path, flags))
    }

    fn set_flags(&self, file: &ExportFile, flags: HandoutFlags) -> Result<()> {
        self.0.set_flags(file, flags)
    }

    fn set_owner(&self, file: &ExportFile, uid: u32, gid: u32) -> Result<()> {
        slowly(|| self.0.set_owner(file, uid, gid))
    }

    fn truncate_to_zero(&self, file: &ExportFile) -> Result<()> {
        slowly(|| self.0.truncate_to_zero(file))
    }
}

impl ExportDir for SlowDir {
    fn create(&self, name: Name<'_>, flags: HandoutFlags, mode: u32) -> Result<ExportedFile> {
        slowly(|| self.0.create(name, flags, mode))
    }

    fn open(&self, name: Name<'_>, flags: HandoutFlags) -> Result<ExportedFile> {
        slowly(|| self.0.open(name, flags))
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        slowly(|| self.0.remove(name))
    }

    fn open_dir(&self, name: Name<'_>, ino: u64) -> Result<Arc<dyn ExportDir>> {
        Ok(Arc::new(Self(self.0.open_dir(name, ino)?)))
    }
}
