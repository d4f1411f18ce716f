//! A file's bytes by way of the page tables, read-only, copied out and never lent: so that what another process does
//! to the file meanwhile cannot break a promise made to the compiler.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A shared, read-only mapping of the first bytes of a file.
///
/// Reading where the file has become shorter than the mapping ends the process with SIGBUS, as it does in C.
#[derive(Debug)]
pub struct ReadMap {
    start: NonNull<u8>,
    len: usize,
}

impl ReadMap {
    /// Maps `len` bytes of `file` from its start. EINVAL when `len` is 0.
    pub fn new(file: impl AsFd, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::FAULT)?, len })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it maps nothing; never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte at `offset`, as it is now; None beyond the end of the mapping.
    #[must_use]
    pub fn byte(&self, offset: usize) -> Option<u8> {
        if offset >= self.len {
            return None;
        }
        // SAFETY: offset < len, so this stays inside the mapping, which lives as long as self.
        let at = unsafe { self.start.add(offset) };
        // SAFETY: `at` is mapped and readable; volatile, because others may be writing there.
        Some(unsafe { at.as_ptr().read_volatile() })
    }

    /// Reads all of it, and returns the sum of its 8-byte words; bytes after the last whole word are left out.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let words = self.start.cast::<u64>();
        let mut sum = 0_u64;
        for number in 0..self.len / size_of::<u64>() {
            // SAFETY: number < len / 8, so the whole word lies inside the mapping, which begins at a page.
            let at = unsafe { words.add(number) };
            // SAFETY: `at` is mapped, readable and aligned; volatile, because others may be writing there.
            sum = sum.wrapping_add(unsafe { at.as_ptr().read_volatile() });
        }
        sum
    }
}

impl Drop for ReadMap {
    fn drop(&mut self) {
        // SAFETY: this is the whole of a mapping of ours, and nothing borrowed from it can still exist. It cannot
        // fail for such a range.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_mapping_shows_later_writes() {
        let mut path = std::env::temp_dir();
        path.push(format!("vellum-sys-map-{}", std::process::id()));
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"abc").unwrap();
        let map = ReadMap::new(&file, 3).unwrap();
        assert_eq!((map.byte(0), map.byte(2), map.byte(3)), (Some(b'a'), Some(b'c'), None));
        std::os::unix::fs::FileExt::write_at(&file, b"z", 2).unwrap();
        assert_eq!(map.byte(2), Some(b'z'));
        assert_eq!(map.sum(), 0);
        file.write_all(&[1, 2, 3, 4, 5]).unwrap();
        file.write_all(&9_u64.to_ne_bytes()).unwrap();
        let first = u64::from_ne_bytes([b'a', b'b', b'z', 1, 2, 3, 4, 5]);
        assert_eq!(ReadMap::new(&file, 16).unwrap().sum(), first + 9);
        assert_eq!(ReadMap::new(&file, 0).unwrap_err(), Errno::INVAL);
    }
}
