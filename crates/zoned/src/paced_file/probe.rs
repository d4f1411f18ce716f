//! A block that is read now and then, for what others wait.

use crate::device::AlignedBuf;
use crate::device::emulator::Random;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use vellum_sys::zoned::zone_count;

/// Bytes of a probe.
pub(super) const BYTES: u64 = 4096;
/// Bytes of the file that blocks are read from.
const FILE: u64 = 8 << 20;
/// Written at once.
const PIECE: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Probe {
    file: File,
    /// Bytes that blocks are read from.
    range: u64,
    buffer: AlignedBuf,
    random: Random,
}

impl Probe {
    /// Makes a file without a name in a directory.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file: File = open(directory, flags, Mode::RUSR | Mode::WUSR)?.into();
        fallocate(&file, FallocateFlags::empty(), 0, FILE)?;
        let piece = AlignedBuf::zeroed(PIECE as usize);
        // Blocks that were never written are not read from the disk.
        (0..FILE / PIECE).try_for_each(|number| file.write_all_at(piece.as_slice(), number * PIECE))?;
        Ok(Self::with_file(file, FILE))
    }

    /// Reads from a block device itself.
    pub(super) fn of_device(path: &Path) -> io::Result<Self> {
        let file: File = open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?.into();
        // Of a zoned device only what was written is on its medium: the first block is.
        let range = if zone_count(&file).is_ok_and(|zones| zones > 0) { BYTES } else { FILE };
        Ok(Self::with_file(file, range))
    }

    fn with_file(file: File, range: u64) -> Self {
        let random = Random::new(std::process::id().into());
        Self { file, range, buffer: AlignedBuf::zeroed(BYTES as usize), random }
    }

    /// How long a block takes now.
    pub(super) fn read(&mut self) -> io::Result<Duration> {
        let at = self.random.below(self.range / BYTES) * BYTES;
        let begins = Instant::now();
        self.file.read_exact_at(self.buffer.as_mut_slice(), at)?;
        Ok(begins.elapsed())
    }
}
