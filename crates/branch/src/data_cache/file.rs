//! Regular files that are read through the cache, or whose changes take away what is cached of them.

use super::{CacheAccess, VersionCheck, object, version};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use vellum_cache::{AHEAD_MAX, BLOCK_BYTES, FileReader, Loan, SlabMemory, Source, Version};
use vellum_vfs::{BranchFile, Error, Result};

/// A file of at most so many bytes is fetched as a whole when somebody would have it lent: one who opens a program or a library is about
/// to read most of it.
const FETCHED_WHOLE: u64 = 1 << 20;
/// One of at most so many, once a second part of it had to be fetched: who reads on in a file of that size costs the storage less requests so.
const FETCHED_WHEN_READ: u64 = 2 << 20;
/// It is fetched in pieces of so many bytes: as many as the cache fetches at once.
const PIECE: u64 = AHEAD_MAX * BLOCK_BYTES;

pub(super) struct DataCacheFile {
    pub(super) inner: Arc<dyn BranchFile>,
    /// None: it is not read through the cache.
    contents: Option<FileReader<SlabMemory>>,
    pub(super) way: Arc<CacheAccess>,
    /// What the cache calls it; asked before its first change.
    object: OnceLock<vellum_cache::Object>,
    /// Fetching it as a whole has been tried.
    fetched: AtomicBool,
    /// How often the storage was read.
    fetches: AtomicU32,
    /// What was lent stays lent as long as this is open.
    loan: OnceLock<(Loan<SlabMemory>, Arc<OwnedFd>)>,
}

/// Where the cache fetches contents.
struct Storage<'a> {
    file: &'a dyn BranchFile,
    fetches: &'a AtomicU32,
    /// None: it is asked.
    version: Option<Version>,
}

impl Source for Storage<'_> {
    type Error = Error;

    fn version(&self) -> Result<Version> {
        self.version.map_or_else(|| self.file.version().map(|(attr, count)| version(&attr, count)), Ok)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        self.file.read_at(buf, offset)
    }
}

impl DataCacheFile {
    pub(super) fn new(
        inner: Arc<dyn BranchFile>,
        contents: Option<FileReader<SlabMemory>>,
        way: &Arc<CacheAccess>,
    ) -> Self {
        Self {
            inner,
            contents,
            way: Arc::clone(way),
            object: OnceLock::new(),
            fetched: AtomicBool::new(false),
            fetches: AtomicU32::new(0),
            loan: OnceLock::new(),
        }
    }

    fn read_through(&self, contents: &FileReader<SlabMemory>, buf: &mut [u8], offset: u64) -> Result<usize> {
        // Where that costs nothing it is asked all the same.
        let is_fixed = self.way.sharing == VersionCheck::Immutable && !self.inner.version_is_known();
        let version = is_fixed.then(|| contents.version());
        contents.read(&Storage { file: &*self.inner, fetches: &self.fetches, version }, buf, offset)
    }

    /// Reads all of a file of at most `most` bytes, once, so that it is in the cache. One that cannot be read is not lent, and who reads
    /// it hears why.
    fn fetch(&self, contents: &FileReader<SlabMemory>, most: u64) {
        let size = contents.version().size;
        if size > most || self.fetched.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut piece = vec![0; usize::try_from(PIECE.min(size)).unwrap_or(0)];
        let mut offset = 0;
        while offset < size {
            match self.read_through(contents, &mut piece, offset) {
                Ok(0) | Err(_) => return,
                Ok(read) => offset += read as u64,
            }
        }
    }

    fn object(&self) -> Result<vellum_cache::Object> {
        if let Some(object) = self.object.get() {
            return Ok(*object);
        }
        let object = object(&self.inner.stat()?);
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

impl BranchFile for DataCacheFile {
    fn inner_file(&self) -> Result<&dyn BranchFile> {
        Ok(&*self.inner)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let Some(contents) = self.contents.as_ref().filter(|_| !buf.is_empty()) else {
            return self.inner.read_at(buf, offset);
        };
        let read = self.read_through(contents, buf, offset)?;
        let reads_on = self.fetches.load(Ordering::Relaxed) > 1 && !self.fetched.load(Ordering::Relaxed);
        if reads_on && self.way.sharing == VersionCheck::Immutable && self.inner.descriptor().is_none() {
            self.fetch(contents, FETCHED_WHEN_READ);
        }
        Ok(read)
    }

    /// Only of a layer that nobody changes: a loan stays as it is, and the kernel, which reads by it, never asks again.
    fn lent_descriptor(&self) -> Option<Arc<OwnedFd>> {
        let contents = self.contents.as_ref().filter(|_| self.way.sharing == VersionCheck::Immutable)?;
        if let Some((_, copy)) = self.loan.get() {
            return Some(Arc::clone(copy));
        }
        self.fetch(contents, FETCHED_WHOLE);
        let loan = contents.lend().ok()??;
        let copy = Arc::new(OwnedFd::from(loan.memory().file()?.try_clone().ok()?));
        // Of two at once the second one gives its loan back: the memory is the same.
        let (_, copy) = self.loan.get_or_init(|| (loan, copy));
        Some(Arc::clone(copy))
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
