//! Where the bytes of cached files lie: one piece of memory for each file, with every block at its own place, so that a file that
//! is whole can be handed to the kernel or to a program as it is.

use crate::key::Version;
use crate::shares::Container;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, fallocate, fchmod, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A kind of memory.
pub trait Memory {
    /// The memory of one file; it is freed when it is dropped.
    type File;

    /// Memory for contents of a file. None of it is taken before it is written.
    fn create(&self, version: Version) -> Result<Self::File, Errno>;
    /// Whether a file of so many bytes takes no descriptor of its own, as long as it is not sealed.
    fn is_shared(&self, _bytes: u64) -> bool {
        false
    }
    /// Writes all of `data` at `offset`. After an error part of it may be there.
    fn write(&self, file: &Self::File, data: &[u8], offset: u64) -> Result<(), Errno>;
    /// Fills all of `buf` from `offset`. EIO: the memory is shorter.
    fn read(&self, file: &Self::File, buf: &mut [u8], offset: u64) -> Result<(), Errno>;
    /// Frees so many bytes at `offset`, which is a multiple of a page.
    fn release(&self, file: &Self::File, offset: u64, bytes: u64) -> Result<(), Errno>;
    /// From now on nobody can change the memory, nor any of it be freed but by dropping it: it goes to others.
    fn seal(&self, file: &Self::File) -> Result<(), Errno>;
    /// Nothing of a file is found any more, though it is not dropped yet: for memory that others read without the store, or after it.
    fn hide(&self, _file: &Self::File) {}
    /// One of the containers that have used a block without the store since this was last asked about it, if `is_there` says that it is.
    fn next_owner(
        &self,
        _file: &Self::File,
        _block: u64,
        _is_there: &dyn Fn(Container) -> bool,
    ) -> Option<Container> {
        None
    }
    /// Takes how often the container at a place has used a block without the store since this was last asked.
    fn uses(&self, _file: &Self::File, _place: u32, _block: u64) -> u8 {
        0
    }
}

/// Memory files of the kernel: they can be backing files of passthrough, be mapped, and outlive the process in another one's
/// hands. They count in the control group of whoever writes them first, the service.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemFd;

impl MemFd {
    /// How its files are called in /proc.
    pub(crate) const NAME: &CStr = c"vellum-cache";
    /// What a file is that was lent.
    pub(crate) const SEALS: SealFlags =
        SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

    /// A file of so many bytes, none of which takes memory.
    pub(crate) fn file(bytes: u64) -> Result<File, Errno> {
        let file = memfd_create(Self::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        Ok(file.into())
    }
}

impl Memory for MemFd {
    type File = File;

    fn create(&self, version: Version) -> Result<File, Errno> {
        Self::file(version.size)
    }

    fn write(&self, file: &File, data: &[u8], offset: u64) -> Result<(), Errno> {
        file.write_all_at(data, offset).map_err(errno)
    }

    fn read(&self, file: &File, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        file.read_exact_at(buf, offset).map_err(errno)
    }

    fn release(&self, file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
        fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
    }

    fn seal(&self, file: &File) -> Result<(), Errno> {
        // A borrower can open its descriptor again by /proc/self/fd: the seals hold for whatever is opened, the mode for others.
        fchmod(file, Mode::RUSR)?;
        fcntl_add_seals(file, Self::SEALS)
    }
}

/// What does not come from the kernel, such as an end that is too early, is EIO.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PAGE_BYTES;
    use rustix::fs::fstat;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_sealed_file_cannot_be_written_after_reopening() {
        let file = MemFd::file(PAGE_BYTES).unwrap();
        MemFd.write(&file, b"one", 0).unwrap();
        MemFd.seal(&file).unwrap();
        assert_eq!(fstat(&file).unwrap().st_mode & 0o777, 0o400);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // Root may open it whatever its mode is.
        if let Ok(again) = File::options().read(true).write(true).open(path) {
            assert_eq!(MemFd.write(&again, b"two", 0), Err(Errno::PERM));
            assert_eq!(ftruncate(&again, 0), Err(Errno::PERM));
            assert_eq!(fcntl_add_seals(&again, SealFlags::SEAL), Err(Errno::PERM));
        }
        let mut buf = [0; 3];
        MemFd.read(&file, &mut buf, 0).unwrap();
        assert_eq!(&buf, b"one");
    }

    #[test]
    fn memory_files_give_pages_back() {
        let file = MemFd::file(1 << 30).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks, 0);
        MemFd.write(&file, &vec![1; 16 * PAGE_BYTES as usize], 1 << 20).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks as u64 * 512, 16 * PAGE_BYTES);
        MemFd.release(&file, 1 << 20, 16 * PAGE_BYTES).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks, 0);
    }
}
