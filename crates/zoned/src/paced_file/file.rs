//! A file that is written from its start to its end, as fast as others on its disk allow.

use super::disk::Disk;
use super::pool::Pool;
use crate::device::AlignedBuf;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are written at once.
const PIECE: usize = 256 << 10;
/// Space is asked for ahead, so that writes of pieces change no size: those take turns.
const AHEAD: u64 = 64 << 20;
/// What direct I/O is a multiple of.
const BLOCK: usize = 4096;
/// Stands before the name of a whole file for a moment, because a name cannot be taken from another file by linking.
const NEW: &str = ".new-";
/// Longest name of a file, as Linux has it.
const NAME_MAX: usize = 255;

/// A file that gets its name, whole and durable, by [`finish`](Self::finish). Without that nothing of it is left.
#[derive(Debug)]
pub struct PacedFile {
    directory: File,
    name: OsString,
    file: Arc<File>,
    disk: Disk,
    pool: Pool,
    buffer: AlignedBuf,
    /// Bytes in the buffer.
    filled: usize,
    /// Bytes handed over.
    at: u64,
    /// Bytes of space asked for.
    space: u64,
}

impl PacedFile {
    /// Begins a file in a directory, which is on `disk`. One that has this name stays until the new one is whole.
    pub fn create(directory: &Path, name: &OsStr, disk: &Disk) -> io::Result<Self> {
        let is_plain = Path::new(name).file_name() == Some(name);
        if !is_plain {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if name.len() + NEW.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        Self::begin(directory, name, disk)
    }

    pub(super) fn begin(directory: &Path, name: &OsStr, disk: &Disk) -> io::Result<Self> {
        let directory = File::open(directory)?;
        // Without a name nothing is left of it, whatever ends this process.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = openat(&directory, ".", flags, Mode::RUSR | Mode::WUSR);
        let file = Arc::new(File::from(file?));
        let pool = Pool::new(&file, disk)?;
        Ok(Self {
            directory,
            name: name.to_owned(),
            file,
            disk: disk.clone(),
            pool,
            buffer: AlignedBuf::zeroed(PIECE),
            filled: 0,
            at: 0,
            space: 0,
        })
    }

    /// Appends bytes. An error of an earlier piece is told here, too.
    pub fn write(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let some = data.len().min(PIECE - self.filled);
            self.buffer.as_mut_slice()[self.filled..self.filled + some].copy_from_slice(&data[..some]);
            self.filled += some;
            data = &data[some..];
            if self.filled == PIECE {
                let full = std::mem::replace(&mut self.buffer, AlignedBuf::zeroed(PIECE));
                self.filled = 0;
                self.send(full)?;
            }
        }
        Ok(())
    }

    /// Waits until everything is on the disk, and gives the file its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.sync()?;
        self.link()?;
        self.directory.sync_all()
    }

    /// Waits until everything is on the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        let size = self.at + self.filled as u64;
        if self.filled > 0 {
            let rest = self.filled.next_multiple_of(BLOCK);
            let mut last = AlignedBuf::zeroed(rest);
            last.as_mut_slice()[..self.filled].copy_from_slice(&self.buffer.as_slice()[..self.filled]);
            self.send(last)?;
        }
        self.pool.finish()?;
        self.file.set_len(size)?;
        self.file.sync_all()
    }

    fn link(&self) -> io::Result<()> {
        let mut new = OsString::from(NEW);
        new.push(&self.name);
        match unlinkat(&self.directory, &new, AtFlags::empty()) {
            // One that was killed in the middle of this has left it.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(CWD, own, &self.directory, &new, AtFlags::SYMLINK_FOLLOW)?;
        Ok(renameat(&self.directory, &new, &self.directory, &self.name)?)
    }

    fn send(&mut self, piece: AlignedBuf) -> io::Result<()> {
        let bytes = piece.as_slice().len() as u64;
        if self.at + bytes > self.space {
            // Filesystems that cannot do this write more slowly.
            let _ = fallocate(&*self.file, FallocateFlags::empty(), self.space, AHEAD);
            self.space += AHEAD;
        }
        self.disk.wait_for_turn(bytes);
        let at = self.at;
        self.at += bytes;
        self.pool.send(at, piece).inspect_err(|_| self.disk.done(bytes))
    }
}
