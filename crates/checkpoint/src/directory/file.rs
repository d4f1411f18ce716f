//! The file that an object is written to, at a pace and past the page cache, so that it is not written back all at once.

use super::{Directory, PartialCheckpoint};
use crate::object::{ByteSink, Parent};
use crate::pace::Pace;
use crate::pacer::{GROUP, WritePacer};
use crate::record::Record;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_zoned::device::AlignedBuf;
use vellum_zoned::paced_file::Disk;

/// The object's file in a checkpoint's directory.
pub(super) const OBJECT: &str = "object";
/// What direct I/O is a multiple of.
const BLOCK: usize = 4096;
/// Space is asked for ahead, so that writes change no size.
const AHEAD: u64 = 64 << 20;

/// A checkpoint on its way into a directory.
pub(super) struct DirectorySink {
    directory: Directory,
    name: String,
    /// Others that it needs.
    needs: Vec<Parent>,
    file: PacedFile,
    /// None: it has its name.
    unfinished: Option<PartialCheckpoint>,
}

impl DirectorySink {
    pub(super) fn new(
        (directory, name): (&Directory, &str),
        unfinished: PartialCheckpoint,
        needs: &[Parent],
        pace: Pace,
    ) -> Result<Self, Failure> {
        let path = unfinished.dir().join(OBJECT);
        // From here on what is dropped is removed.
        let file = PacedFile::create(&path, pace).map_err(|e| Failure::at(&path, e));
        match file {
            Ok(file) => Ok(Self {
                directory: directory.clone(),
                name: name.to_owned(),
                needs: needs.to_vec(),
                file,
                unfinished: Some(unfinished),
            }),
            Err(why) => {
                unfinished.discard();
                Err(why)
            }
        }
    }
}

impl Drop for DirectorySink {
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            unfinished.discard();
        }
    }
}

impl ByteSink for DirectorySink {
    fn write(&mut self, bytes: &[u8], hurry: bool) -> io::Result<()> {
        self.file.write(bytes, hurry)
    }

    fn explain(&self, error: &io::Error) -> Failure {
        Failure::system(self.file.path.display().to_string()).because(error)
    }

    fn sync(&mut self, record: &Record) -> Result<(), Failure> {
        self.file.sync().map_err(|e| self.explain(&e))?;
        self.unfinished().map_or(Ok(()), |dir| record.write(&dir))
    }

    fn commit(mut self: Box<Self>) -> Result<PathBuf, Failure> {
        let unfinished = self.unfinished.take().ok_or_else(|| Failure::at(&self.file.path, Errno::INVAL))?;
        self.directory.name(&self.name, &self.needs, unfinished)
    }

    fn unfinished(&self) -> Option<PathBuf> {
        self.unfinished.as_ref().map(|unfinished| unfinished.dir().to_owned())
    }
}

fn set_direct(file: &File, direct: bool) -> rustix::io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    fcntl_setfl(file, flags)
}

/// Bytes on their way to a file, past the page cache where its filesystem can: a group is gathered, waits for its turn, and is written.
struct PacedFile {
    file: File,
    path: PathBuf,
    /// It is written past the page cache.
    direct: bool,
    pacing: WritePacer,
    buffer: AlignedBuf,
    /// Bytes in the buffer.
    filled: usize,
    /// Bytes in the file.
    at: u64,
    /// Bytes of space asked for.
    space: u64,
}

impl PacedFile {
    /// A new one, which only its owner reads.
    fn create(path: &Path, pace: Pace) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self::new(file, path, pace))
    }

    fn new(file: File, path: &Path, pace: Pace) -> Self {
        let direct = set_direct(&file, true).is_ok();
        let above = path.parent().unwrap_or(Path::new("."));
        let pacing = WritePacer::on(pace, path, |budget| Disk::of_directory(above, budget));
        let buffer = AlignedBuf::zeroed(GROUP as usize);
        Self { file, path: path.to_owned(), direct, pacing, buffer, filled: 0, at: 0, space: 0 }
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
        self.buffer.as_mut_slice().get_mut(self.filled..len).unwrap_or_default().fill(0);
        if self.at + len as u64 > self.space {
            // Filesystems that cannot do this write more slowly.
            let _ = fallocate(&self.file, FallocateFlags::empty(), self.space, AHEAD);
            self.space += AHEAD;
        }
        self.pacing.before(len as u64, hurry);
        let bytes = self.buffer.as_mut_slice().get(..len).unwrap_or_default();
        write_at(&self.file, &mut self.direct, bytes, self.at)?;
        let (file, direct) = (&self.file, self.direct);
        // Past the page cache it is where it is to be; that it stays there is asked for once, at the end.
        self.pacing.written(len as u64, || if direct { Ok(()) } else { Ok(fdatasync(file)?) })
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.filled > 0 {
            self.send(false)?;
        }
        self.pacing.sync(|| Ok(()))?;
        self.file.set_len(self.at + self.filled as u64)?;
        self.file.sync_all()
    }
}

/// Writes whole blocks.
fn write_at(file: &File, direct: &mut bool, bytes: &[u8], at: u64) -> io::Result<()> {
    match file.write_all_at(bytes, at) {
        // Some filesystems say only then that they cannot, or not in such blocks.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) && std::mem::take(direct) => {
            set_direct(file, false)?;
            file.write_all_at(bytes, at)
        }
        done => done,
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
    fn written_bytes_read_back() {
        for above in ["/var/tmp", "/dev/shm"] {
            let dir = tempfile::tempdir_in(above).unwrap();
            for pace in [Pace::None, Pace::Auto, Pace::Rate(1 << 40)] {
                for bytes in [0, 1, 4096, GROUP as usize - 1, GROUP as usize, 2 * GROUP as usize + 70_001] {
                    let (path, data) = (dir.path().join("object"), content(bytes));
                    let mut out = PacedFile::create(&path, pace).unwrap();
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
    fn a_filesystem_without_direct_io_is_written_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = PacedFile::create(&dir.path().join("x"), Pace::None).unwrap();
        // No filesystem takes half a block past the cache; on one that has no such thing this is no fallback.
        write_at(&out.file, &mut out.direct, &[7; 100], 50).unwrap();
        assert!(!out.direct || dir.path().starts_with("/dev/shm"));
        assert_eq!(fs::read(dir.path().join("x")).unwrap(), [&[0; 50][..], &[7; 100]].concat());
    }

    #[test]
    fn a_full_filesystem_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        for pace in [Pace::None, Pace::Auto, Pace::Rate(1 << 30)] {
            let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let mut paced = PacedFile::new(file, &dir.path().join("x"), pace);
            let refused = paced.write(&content(2 * GROUP as usize), false).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOSPC), "{pace:?}");
        }
    }
}
