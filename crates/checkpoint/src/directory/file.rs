//! The file that an object is written to: through the page cache, or at a pace and past it, so that it is not written back all at once.

use crate::object::ByteSink;
use crate::pace::Pace;
use crate::pacer::{GROUP, Medium, WritePacer};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vellum_zoned::device::AlignedBuf;
use vellum_zoned::paced_file::Disk;

/// Bytes after which the disk is waited for, without a pace: how fast it is shows in nothing else.
const TOGETHER: u64 = 16 << 20;
/// What direct I/O is a multiple of.
const BLOCK: usize = 4096;
/// Space is asked for ahead, so that writes change no size.
const AHEAD: u64 = 64 << 20;

/// What is written goes to a file.
#[derive(Debug)]
pub(super) enum ToFile {
    /// As fast as it goes; so many bytes are not waited for yet.
    Cached(File, u64),
    Paced(PacedWriter),
}

/// Creates a file that only its owner reads.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

impl ToFile {
    /// A new one, at a pace if one is asked for.
    pub(super) fn create(path: &Path, pace: Option<Pace>) -> io::Result<Self> {
        let file = create(path)?;
        Ok(match pace {
            None | Some(Pace::None) => Self::Cached(file, 0),
            Some(pace) => Self::Paced(PacedWriter::new(file, path, pace)),
        })
    }
}

impl ByteSink for ToFile {
    fn write(&mut self, bytes: &[u8], hurry: bool) -> io::Result<()> {
        match self {
            Self::Cached(file, waiting) => {
                file.write_all(bytes)?;
                *waiting += bytes.len() as u64;
                if *waiting >= TOGETHER {
                    *waiting = 0;
                    fdatasync(file)?;
                }
                Ok(())
            }
            Self::Paced(paced) => paced.write(bytes, hurry),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self {
            Self::Cached(file, _) => file.sync_all(),
            Self::Paced(paced) => paced.sync(),
        }
    }
}

/// A file, written past the page cache where its filesystem can.
#[derive(Clone, Debug)]
struct Shared {
    file: Arc<File>,
    direct: Arc<AtomicBool>,
}

impl Medium for Shared {
    type Error = io::Error;

    /// Past the page cache it is where it is to be; that it stays there is asked for once, at the end.
    fn flush(&self) -> io::Result<()> {
        if self.direct.load(Ordering::Relaxed) { Ok(()) } else { Ok(fdatasync(&*self.file)?) }
    }
}

impl Shared {
    fn new(file: File) -> Self {
        let direct = set_direct(&file, true).is_ok();
        Self { file: Arc::new(file), direct: Arc::new(direct.into()) }
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match self.file.write_all_at(bytes, at) {
            // Some filesystems say only then that they cannot, or not in such blocks.
            Err(e)
                if Errno::from_io_error(&e) == Some(Errno::INVAL)
                    && self.direct.swap(false, Ordering::Relaxed) =>
            {
                set_direct(&self.file, false)?;
                self.file.write_all_at(bytes, at)
            }
            done => done,
        }
    }
}

fn set_direct(file: &File, direct: bool) -> rustix::io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    fcntl_setfl(file, flags)
}

/// Bytes on their way to a file, at a pace: a group is gathered, waits for its turn, and is written.
#[derive(Debug)]
pub(super) struct PacedWriter {
    to: Shared,
    pacing: WritePacer<Shared>,
    buffer: AlignedBuf,
    /// Bytes in the buffer.
    filled: usize,
    /// Bytes in the file.
    at: u64,
    /// Bytes of space asked for.
    space: u64,
}

impl PacedWriter {
    /// `path`: of the file, which is empty.
    fn new(file: File, path: &Path, pace: Pace) -> Self {
        let to = Shared::new(file);
        let above = path.parent().unwrap_or(Path::new("."));
        let pacing = WritePacer::on(pace, path, to.clone(), |budget| Disk::of_directory(above, budget));
        Self { to, pacing, buffer: AlignedBuf::zeroed(GROUP as usize), filled: 0, at: 0, space: 0 }
    }

    fn write(&mut self, mut bytes: &[u8], hurry: bool) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(GROUP as usize - self.filled));
            let to = self.filled..self.filled + now.len();
            self.buffer.as_mut_slice().get_mut(to).unwrap_or_default().copy_from_slice(now);
            self.filled += now.len();
            bytes = rest;
            if self.filled as u64 == GROUP {
                self.send(hurry)?;
                self.at += GROUP;
                self.filled = 0;
            }
        }
        Ok(())
    }

    /// Writes what the buffer holds, to whole blocks.
    fn send(&mut self, hurry: bool) -> io::Result<()> {
        let len = self.filled.next_multiple_of(BLOCK);
        let bytes = self.buffer.as_mut_slice();
        bytes.get_mut(self.filled..len).unwrap_or_default().fill(0);
        if self.at + len as u64 > self.space {
            // Filesystems that cannot do this write more slowly.
            let _ = fallocate(&*self.to.file, FallocateFlags::empty(), self.space, AHEAD);
            self.space += AHEAD;
        }
        if hurry {
            self.pacing.hurry(len as u64);
        } else {
            self.pacing.wait_for_turn();
        }
        self.to.write(bytes.get(..len).unwrap_or_default(), self.at)?;
        self.pacing.written(len as u64)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.filled > 0 {
            self.send(false)?;
        }
        self.pacing.sync()?;
        self.to.file.set_len(self.at + self.filled as u64)?;
        self.to.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at / 4096) as u8 ^ at as u8).collect()
    }

    #[test]
    fn what_is_written_is_there() {
        for above in ["/var/tmp", "/dev/shm"] {
            let dir = tempfile::tempdir_in(above).unwrap();
            for pace in [None, Some(Pace::None), Some(Pace::Auto), Some(Pace::Rate(1 << 40))] {
                for bytes in [0, 1, 4096, GROUP as usize - 1, GROUP as usize, 2 * GROUP as usize + 70_001] {
                    let (path, data) = (dir.path().join("object"), content(bytes));
                    let mut out = ToFile::create(&path, pace).unwrap();
                    for (number, part) in data.chunks(700_001).enumerate() {
                        out.write(part, number % 3 == 1).unwrap();
                    }
                    out.sync().unwrap();
                    assert!(fs::read(&path).unwrap() == data, "{above}: {bytes} bytes, {pace:?}");
                    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                    // More may follow.
                    out.write(b"more", false).unwrap();
                    out.sync().unwrap();
                    assert!(fs::read(&path).unwrap() == [&data[..], b"more"].concat(), "{above}: {bytes}");
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_filesystem_that_cannot_write_past_the_cache_is_written_to_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let file = create(&dir.path().join("x")).unwrap();
        let to = Shared::new(file);
        // No filesystem takes half a block past the cache; on one that has no such thing this is no fallback.
        to.write(&[7; 100], 50).unwrap();
        assert!(!to.direct.load(Ordering::Relaxed) || dir.path().starts_with("/dev/shm"));
        to.flush().unwrap();
        assert_eq!(fs::read(dir.path().join("x")).unwrap(), [&[0; 50][..], &[7; 100]].concat());
    }

    #[test]
    fn a_full_filesystem_is_told() {
        let dir = tempfile::tempdir().unwrap();
        for pace in [Pace::Auto, Pace::Rate(1 << 30)] {
            let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let mut paced = PacedWriter::new(file, &dir.path().join("x"), pace);
            let refused = paced.write(&content(2 * GROUP as usize), false).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOSPC), "{pace:?}");
        }
    }
}
