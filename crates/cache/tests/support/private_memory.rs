//! Memory of this process, for tests.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use rustix::io::Errno;
#[cfg(shuttle)]
use shuttle::sync::Mutex;
#[cfg(not(shuttle))]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vellum_cache::{Memory, Version};

#[derive(Clone, Copy, Debug, Default)]
pub struct PrivateMemory;

/// A file of [`PrivateMemory`].
#[derive(Debug, Default)]
pub struct PlainFile {
    bytes: Mutex<Vec<u8>>,
    sealed: AtomicBool,
}

impl PlainFile {
    /// What is in it.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    /// EPERM after it was sealed.
    fn writable(&self) -> Result<(), Errno> {
        if self.sealed.load(Relaxed) { Err(Errno::PERM) } else { Ok(()) }
    }
}

impl Memory for PrivateMemory {
    type File = PlainFile;

    fn create(&self, version: Version) -> Result<Self::File, Errno> {
        let bytes = usize::try_from(version.size).map_err(|_| Errno::NOMEM)?;
        Ok(PlainFile { bytes: Mutex::new(vec![0; bytes]), sealed: AtomicBool::new(false) })
    }

    fn write(&self, file: &Self::File, data: &[u8], offset: u64) -> Result<(), Errno> {
        file.writable()?;
        let mut file = file.bytes.lock().unwrap();
        range(offset, data.len())
            .and_then(|range| file.get_mut(range))
            .ok_or(Errno::IO)?
            .copy_from_slice(data);
        Ok(())
    }

    fn read(&self, file: &Self::File, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let file = file.bytes.lock().unwrap();
        buf.copy_from_slice(range(offset, buf.len()).and_then(|range| file.get(range)).ok_or(Errno::IO)?);
        Ok(())
    }

    fn release(&self, file: &Self::File, offset: u64, bytes: u64) -> Result<(), Errno> {
        file.writable()?;
        let mut file = file.bytes.lock().unwrap();
        let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?.min(file.len());
        let end = usize::try_from(offset.saturating_add(bytes)).map_err(|_| Errno::INVAL)?.min(file.len());
        file.get_mut(start..end).unwrap_or_default().fill(0);
        Ok(())
    }

    fn seal(&self, file: &Self::File) -> Result<(), Errno> {
        file.sealed.store(true, Relaxed);
        Ok(())
    }
}

fn range(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}
