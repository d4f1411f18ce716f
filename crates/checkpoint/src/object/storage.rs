//! Where the bytes of an object are, or go to: a store, a file, a stream.

use crate::record::Record;
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use vellum_service::Failure;

/// The nearest errno.
pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Where an object goes: its bytes, one after the other. Dropped before [`commit`](Self::commit), nothing of it is left.
pub(crate) trait ByteSink: Send {
    /// Takes what follows. `hurry`: a container may stand still until it is taken.
    fn write(&mut self, bytes: &[u8], hurry: bool) -> io::Result<()>;

    /// Why bytes are not taken.
    fn explain(&self, error: &io::Error) -> Failure;

    /// All was written, with this record: waits until it is there.
    fn sync(&mut self, record: &Record) -> Result<(), Failure>;

    /// Gives it its name, durably, in place of an older one. Where it is.
    fn commit(self: Box<Self>) -> Result<PathBuf, Failure>;

    /// A path that is to be removed, and nothing else, when this process is killed.
    fn unfinished(&self) -> Option<PathBuf> {
        None
    }
}

/// Bytes that are there, to be read at any place.
pub(crate) trait ByteSource: Debug + Send + Sync {
    /// How many.
    fn size(&self) -> u64;

    /// Fills `into` with those from `at` on. Fewer are an error.
    fn read_exact(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

/// In memory: what may be anything, and tests.
#[derive(Clone, Debug, Default)]
pub(super) struct MemorySource(pub(super) Vec<u8>);

impl ByteSource for MemorySource {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.0.get(at..at.checked_add(into.len())?));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    /// All that is in the file now.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, size })
    }
}

impl ByteSource for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }
}
