//! Memory files in which small cached files lie side by side, for a hundred thousand of them would be as many descriptors.
//!
//! A small file has a slot of a *sheet*, a memory file with many slots, of which only what is written takes memory. When it is sealed, to
//! be lent, it moves to a memory file of its own. Large files have one from the beginning.
//!
//! Where a process shares its descriptors with one that outlives it, the memory can be kept for a successor: `records` says what is in
//! it, and `recovery` is how a successor goes on with that.

mod records;
mod recovery;

use self::records::{Record, Records};
use crate::key::{BLOCK_BYTES, BlockIndex, Version};
use crate::memory::{MemFd, Memory};
use crate::sync::Mutex;
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use vellum_sys::crash_point;

pub use recovery::{Limits, PredecessorFds, RecoveredFile};

/// The largest file that lies in a slot: it has one block.
const SLOT_BYTES: u64 = BLOCK_BYTES;
/// Slots of a sheet.
const SLOTS: u32 = 1024;
const SHEET_BYTES: u64 = SLOTS as u64 * SLOT_BYTES;

/// Memory files of the kernel, of which small cached files share some.
#[derive(Debug, Default)]
pub struct SlabMemory {
    sheets: Mutex<Vec<Arc<Slab>>>,
    /// None: nothing is kept for a successor.
    records: Option<Arc<Records>>,
}

#[derive(Debug)]
struct Slab {
    memory: File,
    /// In the order in which they were made.
    number: usize,
    slots: Mutex<Numbers>,
}

/// Numbers that are given out, the lowest first, and come back.
#[derive(Debug, Default)]
struct Numbers {
    /// The first one that has never been taken.
    next: u32,
    /// Those that have been given back.
    free: Vec<u32>,
}

impl Numbers {
    fn take(&mut self, end: u32) -> Option<u32> {
        self.free.pop().or_else(|| {
            let next = (self.next < end).then_some(self.next)?;
            self.next += 1;
            Some(next)
        })
    }
}

/// A file of [`SlabMemory`].
#[derive(Debug)]
pub struct SlabFile {
    version: Version,
    /// What a successor finds of it. The first of its parts to go.
    record: Option<Record>,
    /// None: it is large.
    slot: Option<Slot>,
    /// Of a small one, once it is sealed. It never changes from then on, nor does the slot.
    own: OnceLock<File>,
}

#[derive(Debug)]
struct Slot {
    sheet: Arc<Slab>,
    number: u32,
}

impl Slot {
    fn at(&self, offset: u64) -> u64 {
        u64::from(self.number) * SLOT_BYTES + offset
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        crash_point::reach();
        // One that cannot be emptied is not given to others.
        if MemFd.release(&self.sheet.memory, self.at(0), SLOT_BYTES).is_ok() {
            self.sheet.slots.lock().free.push(self.number);
        }
    }
}

impl SlabFile {
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
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.version.size);
        if fits { Ok((&slot.sheet.memory, slot.at(offset))) } else { Err(Errno::IO) }
    }

    fn release(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        match &self.slot {
            Some(_) if self.own.get().is_some() => Err(Errno::PERM),
            // Whole pages: more than the file's own bytes, but never another's.
            Some(slot) if offset < SLOT_BYTES => {
                let bytes = bytes.min(SLOT_BYTES - offset);
                MemFd.release(&slot.sheet.memory, slot.at(offset), bytes)
            }
            Some(_) => Ok(()),
            None => MemFd.release(self.own.get().ok_or(Errno::IO)?, offset, bytes),
        }
    }
}

impl SlabMemory {
    /// How its memory files are called in /proc; there are others of the name.
    pub const FILES: &CStr = MemFd::NAME;
    /// How the memory is called in which its records are.
    pub const RECORDS: &CStr = records::MEMORY.name;

    /// An empty one that a successor can go on with, which has the same descriptors.
    pub fn resumable() -> Result<Self, Errno> {
        let records = Records::create()?;
        records.complete(1);
        Ok(Self { sheets: Mutex::default(), records: Some(records) })
    }

    fn slot(&self) -> Result<Slot, Errno> {
        let mut sheets = self.sheets.lock();
        let take = |sheet: &Arc<Slab>| {
            let number = sheet.slots.lock().take(SLOTS)?;
            Some(Slot { sheet: Arc::clone(sheet), number })
        };
        // The newest has most room.
        if let Some(slot) = sheets.iter().rev().find_map(take) {
            return Ok(slot);
        }
        let (memory, number) = (MemFd::file(SHEET_BYTES)?, sheets.len());
        if let Some(records) = &self.records {
            records.sheet(number, memory.as_raw_fd());
        }
        let sheet = Arc::new(Slab { memory, number, slots: Mutex::default() });
        sheets.push(Arc::clone(&sheet));
        take(&sheet).ok_or(Errno::NOMEM)
    }
}

impl Memory for SlabMemory {
    type File = SlabFile;

    fn create(&self, version: Version) -> Result<SlabFile, Errno> {
        let records = self.records.as_ref();
        if self.is_shared(version.size) {
            let slot = self.slot()?;
            let record = records.and_then(|records| records.in_slot(slot.sheet.number, slot.number, version));
            return Ok(SlabFile { version, record, slot: Some(slot), own: OnceLock::new() });
        }
        let own = MemFd::file(version.size)?;
        let record = records.and_then(|records| records.of_descriptor(version, own.as_raw_fd()));
        Ok(SlabFile { version, record, slot: None, own: own.into() })
    }

    fn is_shared(&self, bytes: u64) -> bool {
        bytes <= SLOT_BYTES
    }

    fn write(&self, file: &SlabFile, data: &[u8], offset: u64) -> Result<(), Errno> {
        let (memory, at) = file.at(offset, data.len() as u64)?;
        crash_point::reach();
        MemFd.write(memory, data, at)?;
        // A part of a block is none that a successor could use.
        let block = BlockIndex(offset / BLOCK_BYTES);
        let is_whole =
            offset.is_multiple_of(BLOCK_BYTES) && data.len() as u64 == file.version.block_len(block);
        if let Some(record) = file.record.as_ref().filter(|_| is_whole) {
            record.publish(block.0);
        }
        Ok(())
    }

    fn read(&self, file: &SlabFile, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        let (memory, at) = file.at(offset, buf.len() as u64)?;
        MemFd.read(memory, buf, at)
    }

    fn release(&self, file: &SlabFile, offset: u64, bytes: u64) -> Result<(), Errno> {
        if let Some(record) = &file.record {
            let end = offset.saturating_add(bytes).min(file.version.size);
            (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).for_each(|block| record.hide(block));
        }
        crash_point::reach();
        file.release(offset, bytes)
    }

    fn seal(&self, file: &SlabFile) -> Result<(), Errno> {
        if let Some(own) = file.own.get() {
            crash_point::reach();
            return MemFd.seal(own);
        }
        let own = MemFd::file(file.version.size)?;
        let mut data = vec![0; usize::try_from(file.version.size).map_err(|_| Errno::NOMEM)?];
        self.read(file, &mut data, 0)?;
        MemFd.write(&own, &data, 0)?;
        MemFd.seal(&own)?;
        let descriptor = own.as_raw_fd();
        // Who is just reading the slot goes on reading it: it is emptied when the last one has gone.
        file.own.set(own).map_err(|_| Errno::BUSY)?;
        if let Some(record) = &file.record {
            record.moved(descriptor);
        }
        Ok(())
    }

    fn hide(&self, file: &SlabFile) {
        if let Some(record) = &file.record {
            record.end();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
