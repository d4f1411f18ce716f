//! Memory files in which small cached files lie side by side, for a hundred thousand of them would be as many descriptors.
//!
//! A small file has a slot of a *sheet*, a memory file with many slots, of which only what is written takes memory. When it is sealed, to
//! be lent, it moves to a memory file of its own. Large files have one from the beginning.

use crate::key::BLOCK_BYTES;
use crate::memory::{MemFd, Memory};
use crate::sync::Mutex;
use rustix::io::Errno;
use std::fs::File;
use std::sync::{Arc, OnceLock};

/// The largest file that lies in a slot: it has one block.
const SLOT_BYTES: u64 = BLOCK_BYTES;
/// Slots of a sheet.
const SLOTS: u32 = 1024;

/// Memory files of the kernel, of which small cached files share some.
#[derive(Debug, Default)]
pub struct Packed(Mutex<Vec<Arc<Sheet>>>);

#[derive(Debug)]
struct Sheet {
    memory: File,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// The first one that has never been taken.
    next: u32,
    /// Those that have been given back.
    free: Vec<u32>,
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let next = (self.next < SLOTS).then_some(self.next)?;
            self.next += 1;
            Some(next)
        })
    }
}

/// A file of [`Packed`].
#[derive(Debug)]
pub struct PackedFile {
    bytes: u64,
    /// None: it is large.
    slot: Option<Slot>,
    /// Of a small one, once it is sealed. It never changes from then on, nor does the slot.
    own: OnceLock<File>,
}

#[derive(Debug)]
struct Slot {
    sheet: Arc<Sheet>,
    number: u32,
}

impl Slot {
    fn at(&self, offset: u64) -> u64 {
        u64::from(self.number) * SLOT_BYTES + offset
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // One that cannot be emptied is not given to others.
        if MemFd.release(&self.sheet.memory, self.at(0), SLOT_BYTES).is_ok() {
            self.sheet.slots.lock().free.push(self.number);
        }
    }
}

impl PackedFile {
    /// A memory file that holds it alone. None: it is small, and has never been sealed.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        self.own.get()
    }

    /// Where so many bytes at an offset of it lie. EIO: it is shorter.
    fn at(&self, offset: u64, len: u64) -> Result<(&File, u64), Errno> {
        if let Some(own) = self.own.get() {
            return Ok((own, offset));
        }
        let slot = self.slot.as_ref().ok_or(Errno::IO)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        if fits { Ok((&slot.sheet.memory, slot.at(offset))) } else { Err(Errno::IO) }
    }
}

impl Packed {
    fn slot(&self) -> Result<Slot, Errno> {
        let mut sheets = self.0.lock();
        let take = |sheet: &Arc<Sheet>| {
            let number = sheet.slots.lock().take()?;
            Some(Slot { sheet: Arc::clone(sheet), number })
        };
        // The newest has most room.
        if let Some(slot) = sheets.iter().rev().find_map(take) {
            return Ok(slot);
        }
        let memory = MemFd.create(u64::from(SLOTS) * SLOT_BYTES)?;
        let sheet = Arc::new(Sheet { memory, slots: Mutex::default() });
        sheets.push(Arc::clone(&sheet));
        take(&sheet).ok_or(Errno::NOMEM)
    }
}

impl Memory for Packed {
    type File = PackedFile;

    fn create(&self, bytes: u64) -> Result<PackedFile, Errno> {
        let file = PackedFile { bytes, slot: None, own: OnceLock::new() };
        if self.is_shared(bytes) {
            return Ok(PackedFile { slot: Some(self.slot()?), ..file });
        }
        let own = OnceLock::from(MemFd.create(bytes)?);
        Ok(PackedFile { own, ..file })
    }

    fn is_shared(&self, bytes: u64) -> bool {
        bytes <= SLOT_BYTES
    }

    fn write(&self, file: &PackedFile, data: &[u8], offset: u64) -> Result<(), Errno> {
        let (memory, at) = file.at(offset, data.len() as u64)?;
        MemFd.write(memory, data, at)
    }

    fn read(&self, file: &PackedFile, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let (memory, at) = file.at(offset, buf.len() as u64)?;
        MemFd.read(memory, buf, at)
    }

    fn release(&self, file: &PackedFile, offset: u64, bytes: u64) -> Result<(), Errno> {
        match &file.slot {
            Some(_) if file.own.get().is_some() => Err(Errno::PERM),
            // Whole pages: more than the file's own bytes, but never another's.
            Some(slot) if offset < SLOT_BYTES => {
                let bytes = bytes.min(SLOT_BYTES - offset);
                MemFd.release(&slot.sheet.memory, slot.at(offset), bytes)
            }
            Some(_) => Ok(()),
            None => MemFd.release(file.own.get().ok_or(Errno::IO)?, offset, bytes),
        }
    }

    fn seal(&self, file: &PackedFile) -> Result<(), Errno> {
        if let Some(own) = file.own.get() {
            return MemFd.seal(own);
        }
        let own = MemFd.create(file.bytes)?;
        let mut data = vec![0; usize::try_from(file.bytes).map_err(|_| Errno::NOMEM)?];
        self.read(file, &mut data, 0)?;
        MemFd.write(&own, &data, 0)?;
        MemFd.seal(&own)?;
        // Who is just reading the slot goes on reading it: it is emptied when the last one has gone.
        file.own.set(own).map_err(|_| Errno::BUSY)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::key::PAGE_BYTES;
    use rustix::fs::fstat;

    /// Bytes of memory that all sheets take.
    fn taken(memory: &Packed) -> u64 {
        let sheets = memory.0.lock();
        let blocks = |sheet: &Arc<Sheet>| fstat(&sheet.memory).map_or(0, |stat| stat.st_blocks as u64);
        sheets.iter().map(|sheet| blocks(sheet) * 512).sum()
    }

    #[test]
    fn small_files_share_a_descriptor_and_nothing_else() {
        let memory = Packed::default();
        let files: Vec<PackedFile> = (0..3000).map(|_| memory.create(PAGE_BYTES).unwrap()).collect();
        assert_eq!(memory.0.lock().len(), 3);
        for (number, file) in files.iter().enumerate() {
            memory.write(file, &number.to_le_bytes(), 100).unwrap();
        }
        let read = |file: &PackedFile| {
            let mut buf = [0; 8];
            memory.read(file, &mut buf, 100).map(|()| usize::from_le_bytes(buf))
        };
        assert!(files.iter().enumerate().all(|(number, file)| read(file) == Ok(number)));
        assert_eq!(taken(&memory), 3000 * PAGE_BYTES);
        // No further than their end.
        assert_eq!(memory.read(&files[0], &mut [0; 2], PAGE_BYTES - 1), Err(Errno::IO));
        assert_eq!(memory.write(&files[0], &[1; 2], PAGE_BYTES - 1), Err(Errno::IO));
        memory.release(&files[7], 0, 4 * SLOT_BYTES).unwrap();
        assert_eq!((read(&files[6]), read(&files[7]), read(&files[8])), (Ok(6), Ok(0), Ok(8)));
        drop(files);
        assert_eq!(taken(&memory), 0);
        // Slots are used again, and empty.
        let again: Vec<PackedFile> = (0..3000).map(|_| memory.create(PAGE_BYTES).unwrap()).collect();
        assert!(memory.0.lock().len() == 3 && again.iter().all(|file| read(file) == Ok(0)));
    }

    #[test]
    fn what_is_sealed_is_alone() {
        let memory = Packed::default();
        let (file, other) = (memory.create(10).unwrap(), memory.create(10).unwrap());
        memory.write(&file, b"0123456789", 0).unwrap();
        memory.write(&other, b"abcdefghij", 0).unwrap();
        assert!(file.file().is_none());
        memory.seal(&file).unwrap();
        let own = file.file().unwrap();
        assert_eq!(fstat(own).unwrap().st_size, 10);
        let mut buf = [0; 10];
        assert_eq!(rustix::io::pread(own, &mut buf, 0), Ok(10));
        assert_eq!(&buf, b"0123456789");
        memory.read(&file, &mut buf[..4], 6).unwrap();
        assert_eq!(&buf[..4], b"6789");
        assert_eq!(memory.write(&file, b"x", 0), Err(Errno::PERM));
        assert_eq!(memory.release(&file, 0, PAGE_BYTES), Err(Errno::PERM));
        memory.write(&other, b"A", 0).unwrap();
        // A large one has its own from the beginning.
        let large = memory.create(SLOT_BYTES + 1).unwrap();
        assert!(large.file().is_some() && !memory.is_shared(SLOT_BYTES + 1));
    }
}
