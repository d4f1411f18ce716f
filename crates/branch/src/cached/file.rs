//! Regular files that are read through the cache, or whose changes take away what is cached of them.

use super::macros::passed_on;
use super::{Sharing, Way, version};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use vellum_cache::{MemFd, Opened, Source, Version};
use vellum_vfs::{BranchFile, Error, Result, Seek};

pub(super) struct CachedFile {
    pub(super) inner: Arc<dyn BranchFile>,
    /// None: it is not read through the cache.
    contents: Option<Opened<MemFd>>,
    pub(super) way: Arc<Way>,
    /// What the cache calls it; asked before its first change.
    object: OnceLock<vellum_cache::Object>,
}

/// Where the cache fetches contents.
struct Storage<'a> {
    file: &'a dyn BranchFile,
    /// None: it is asked.
    version: Option<Version>,
}

impl Source for Storage<'_> {
    type Error = Error;

    fn version(&self) -> Result<Version> {
        self.version.map_or_else(|| self.file.stat().map(|attr| version(&attr)), Ok)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset)
    }
}

impl CachedFile {
    pub(super) fn new(inner: Arc<dyn BranchFile>, contents: Option<Opened<MemFd>>, way: &Arc<Way>) -> Self {
        Self { inner, contents, way: Arc::clone(way), object: OnceLock::new() }
    }

    fn object(&self) -> Result<vellum_cache::Object> {
        if let Some(object) = self.object.get() {
            return Ok(*object);
        }
        let object = version(&self.inner.stat()?).key.object;
        Ok(*self.object.get_or_init(|| object))
    }

    /// Takes away what is cached.
    pub(super) fn changed(&self) -> Result<()> {
        self.way.invalidate(self.object()?);
        Ok(())
    }

    /// Makes a change, of which a part may have been made also when it fails.
    fn change<T>(&self, make: impl FnOnce(&dyn BranchFile) -> Result<T>) -> Result<T> {
        // Before the change: where it is not known which file this is, nothing of it may change.
        let object = self.object()?;
        let made = make(&*self.inner);
        self.way.invalidate(object);
        made
    }
}

impl BranchFile for CachedFile {
    passed_on! {
        fn sync(datasync: bool) -> Result<()>;
        fn seek(offset: u64, whence: Seek) -> Result<u64>;
        fn descriptor() -> Option<Arc<OwnedFd>>;
        fn has_writers() -> bool;
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let Some(contents) = self.contents.as_ref().filter(|_| !buf.is_empty()) else {
            return self.inner.read_at(buf, offset);
        };
        let version = (self.way.sharing == Sharing::Immutable).then(|| contents.version());
        contents.read(&Storage { file: &*self.inner, version }, buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.change(|file| file.write_at(data, offset))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.change(|file| file.truncate(size))
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.change(|file| file.allocate(mode, offset, len))
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        self.change(|file| file.copy_range(offset, from, from_offset, len))
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        self.change(|file| BranchFile::clone_from(file, from))
    }
}
