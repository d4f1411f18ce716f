//! The bytes of the zones in a file or on a disk, which many may read and write at once.
//!
//! Small reads and writes go by the page cache, which gathers what is written between two flushes. Large ones of whole pages go past it where
//! that is possible: they are not copied, and take no memory. A page is never in both at once, for the kernel writes back and drops what
//! the cache has of it before it goes past.

use super::aligned_buffer::{PAGE, is_aligned};
use super::error::{Error, Result};
use super::geometry::Geometry;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fstatvfs, open};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Reads and writes from this size on go past the page cache.
const DIRECT_LEAST: usize = 128 << 10;

/// A filesystem is short of space when less than this part of it can be had.
const SPACE_SHORT: u64 = 8;

/// The file, and where its zones are.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) file: File,
    /// The file once more, opened for direct I/O.
    direct: Option<File>,
    /// Where the first zone begins, in bytes.
    data_at: u64,
    geometry: Geometry,
}

impl Area {
    pub(super) fn new(file: File, data_at: u64, geometry: Geometry) -> Self {
        Self { file, direct: None, data_at, geometry }
    }

    /// Large reads and writes go past the page cache from now on, if the file allows it.
    pub(super) fn enable_direct_io(&mut self) {
        let Ok(flags) = fcntl_getfl(&self.file) else { return };
        // Opened again, for the flag belongs to everybody who has the same open file.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = (flags & OFlags::RWMODE) | OFlags::DIRECT | OFlags::CLOEXEC;
        self.direct = open(path, flags, Mode::empty()).ok().map(File::from);
    }

    /// Whether others can hardly get any space where the file is.
    pub(super) fn is_space_short(&self) -> bool {
        fstatvfs(&self.file).is_ok_and(|space| space.f_bavail < space.f_blocks / SPACE_SHORT)
    }

    /// Where a block of a zone is, in bytes.
    pub(super) fn byte_at(&self, zone: u32, block: u64) -> u64 {
        self.data_at + self.geometry.byte_at(zone, block)
    }

    /// The file to be asked for so many bytes at such a place past the page cache, if it can.
    fn direct_for(&self, bytes: &[u8], at: u64) -> Option<&File> {
        let fits = bytes.len() >= DIRECT_LEAST
            && bytes.len().is_multiple_of(PAGE)
            && at.is_multiple_of(PAGE as u64)
            && is_aligned(bytes);
        self.direct.as_ref().filter(|_| fits)
    }

    pub(super) fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        let at = self.byte_at(zone, block);
        if let Some(direct) = self.direct_for(into, at)
            && direct.read_exact_at(into, at).is_ok()
        {
            return Ok(());
        }
        self.file.read_exact_at(into, at).map_err(io)
    }

    pub(super) fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()> {
        let at = self.byte_at(zone, block);
        if let Some(direct) = self.direct_for(data, at)
            && direct.write_all_at(data, at).is_ok()
        {
            return Ok(());
        }
        self.file.write_all_at(data, at).map_err(io)
    }
}

pub(super) fn io(error: std::io::Error) -> Error {
    Error::Io(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
}
