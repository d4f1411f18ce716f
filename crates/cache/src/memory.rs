//! Where the bytes of cached files lie: one piece of memory for each file, with every block at its own place, so that a file that
//! is whole can be handed to the kernel or to a program as it is.

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A kind of memory.
pub trait Memory {
    /// The memory of one file; it is freed when it is dropped.
    type File;

    /// Memory for a file of so many bytes. None of them is taken before it is written.
    fn create(&self, bytes: u64) -> Result<Self::File, Errno>;
    /// Writes all of `data` at `offset`. After an error part of it may be there.
    fn write(&self, file: &Self::File, data: &[u8], offset: u64) -> Result<(), Errno>;
    /// Fills all of `buf` from `offset`. EIO: the memory is shorter.
    fn read(&self, file: &Self::File, buf: &mut [u8], offset: u64) -> Result<(), Errno>;
    /// Frees so many bytes at `offset`, which is a multiple of a page.
    fn release(&self, file: &Self::File, offset: u64, bytes: u64) -> Result<(), Errno>;
}

/// Memory files of the kernel: they can be backing files of passthrough, be mapped, and outlive the process in another one's
/// hands. They count in the control group of whoever writes them first, the service.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemFd;

impl Memory for MemFd {
    type File = File;

    fn create(&self, bytes: u64) -> Result<File, Errno> {
        let file = memfd_create(c"vellum-cache", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        Ok(file.into())
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
}

/// What does not come from the kernel, such as an end that is too early, is EIO.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Memory of this process, for tests and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Memory for Plain {
    type File = RefCell<Vec<u8>>;

    fn create(&self, bytes: u64) -> Result<Self::File, Errno> {
        usize::try_from(bytes).map(|bytes| RefCell::new(vec![0; bytes])).map_err(|_| Errno::NOMEM)
    }

    fn write(&self, file: &Self::File, data: &[u8], offset: u64) -> Result<(), Errno> {
        let mut file = file.borrow_mut();
        range(offset, data.len())
            .and_then(|range| file.get_mut(range))
            .ok_or(Errno::IO)?
            .copy_from_slice(data);
        Ok(())
    }

    fn read(&self, file: &Self::File, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let file = file.borrow();
        buf.copy_from_slice(range(offset, buf.len()).and_then(|range| file.get(range)).ok_or(Errno::IO)?);
        Ok(())
    }

    fn release(&self, file: &Self::File, offset: u64, bytes: u64) -> Result<(), Errno> {
        let mut file = file.borrow_mut();
        let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?.min(file.len());
        let end = usize::try_from(offset.saturating_add(bytes)).map_err(|_| Errno::INVAL)?.min(file.len());
        file.get_mut(start..end).unwrap_or_default().fill(0);
        Ok(())
    }
}

fn range(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PAGE_BYTES;
    use rustix::fs::fstat;

    fn behaves(memory: &impl Memory) {
        let file = memory.create(3 * PAGE_BYTES).unwrap();
        memory.write(&file, b"one", PAGE_BYTES - 1).unwrap();
        let mut buf = [1; 5];
        memory.read(&file, &mut buf, PAGE_BYTES - 2).unwrap();
        assert_eq!(&buf, b"\0one\0");
        memory.release(&file, PAGE_BYTES, PAGE_BYTES).unwrap();
        memory.read(&file, &mut buf, PAGE_BYTES - 2).unwrap();
        assert_eq!(&buf, b"\0o\0\0\0");
        assert_eq!(memory.read(&file, &mut buf, 3 * PAGE_BYTES - 4), Err(Errno::IO));
    }

    #[test]
    fn both_kinds() {
        behaves(&Plain);
        behaves(&MemFd);
    }

    #[test]
    fn memory_files_give_pages_back() {
        let file = MemFd.create(1 << 30).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks, 0);
        MemFd.write(&file, &vec![1; 16 * PAGE_BYTES as usize], 1 << 20).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks as u64 * 512, 16 * PAGE_BYTES);
        MemFd.release(&file, 1 << 20, 16 * PAGE_BYTES).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks, 0);
    }
}
