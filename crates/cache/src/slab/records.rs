//! What a successor has to know of cached files, in memory that outlives the process: a record for each file, and a bit for each of its
//! blocks.
//!
//! A process may be killed between any two stores. So the words of a record are written before the one that puts it into use; the bit of a
//! block is set when its data are there, and taken back before its memory is freed; and a record goes out of use by one word, before
//! any of its file's memory goes to others. Whatever the moment, only blocks that are whole are told of.
//!
//! Readers never look at this: they have words of their own ([`crate::file_blocks`]).

use super::{Numbers, SLOTS};
use crate::key::{BLOCKS_MAX, Version};
use crate::sync::Mutex;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use vellum_sys::{MemoryKind, PersistentMemory};

/// Their memory.
pub(super) const MEMORY: MemoryKind =
    MemoryKind { name: c"vellum-cache-records", magic: 0x7665_6c6c_7263_0001, words: WORDS..=WORDS };

/// Words of the header; a page, as is everything here.
const HEADER: usize = PersistentMemory::HEADER;
/// Which of several records is the newest; 0: not all is in it yet.
pub(super) const GENERATION: usize = 1;
/// Records of files with a descriptor of their own are below this number.
pub(super) const WIDE_END: usize = 2;

/// A word for each sheet: its descriptor, plus one.
pub(super) const SHEETS: usize = HEADER;
/// Files in sheets beyond so many are not kept: 256 GiB of slots.
pub(super) const SHEETS_MAX: usize = 4096;

/// A record for each slot of each sheet.
pub(super) const SMALL: usize = SHEETS + SHEETS_MAX;
pub(super) const SMALL_WORDS: usize = 8;

/// Records of files with a descriptor of their own.
pub(super) const WIDE: usize = SMALL + SHEETS_MAX * SLOTS as usize * SMALL_WORDS;
pub(super) const WIDE_WORDS: usize = 16;
/// Files with a descriptor beyond so many are not kept.
pub(super) const WIDE_MAX: u32 = 1 << 16;

/// Bits of those files that have more than fit into their records.
const MORE: usize = WIDE + WIDE_MAX as usize * WIDE_WORDS;
const MORE_WORDS: usize = BLOCKS_MAX as usize / 64;

/// All words.
const WORDS: usize = MORE + WIDE_MAX as usize * MORE_WORDS;

const _: () =
    assert!((SHEETS | SMALL | WIDE | MORE | MORE_WORDS).is_multiple_of(HEADER), "parts begin at pages");
const _: () = assert!(word::BITS < SMALL_WORDS && word::BITS < WIDE_WORDS && WIDE_END < HEADER);

/// Words of a record.
pub(super) mod word {
    pub(in crate::slab) const HEAD: usize = 0;
    pub(in crate::slab) const FILESYSTEM: usize = 1;
    pub(in crate::slab) const INODE: usize = 2;
    pub(in crate::slab) const VERSION: usize = 3;
    pub(in crate::slab) const SIZE: usize = 4;
    /// The file's own descriptor, plus one; 0: it lies in the slot of its number.
    pub(in crate::slab) const DESCRIPTOR: usize = 5;
    /// Of the words before that but the first, and where they are: finds stray writes.
    pub(in crate::slab) const SUM: usize = 6;
    /// And further ones, up to the record's end.
    pub(in crate::slab) const BITS: usize = 7;
}

/// HEAD of a record that is in use.
pub(super) const IN_USE: u64 = 1;

/// What SUM has to be in a record that begins at a word.
pub(super) fn sum(first: usize, version: Version) -> u64 {
    // The golden ratio as an odd number: its bits are well spread.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let key = version.key;
    let parts = [first as u64, key.object.filesystem, key.object.inode, key.version, version.size];
    parts.iter().fold(MEMORY.magic, |sum: u64, part| (sum ^ part).wrapping_mul(SPREAD).rotate_left(29))
}

/// Where the record of a slot begins.
pub(super) const fn small(sheet: usize, slot: u32) -> usize {
    SMALL + (sheet * SLOTS as usize + slot as usize) * SMALL_WORDS
}

/// Where the record of a file with a descriptor begins.
pub(super) const fn wide(number: u32) -> usize {
    WIDE + number as usize * WIDE_WORDS
}

/// The first of the words with the bits of a file that has so many blocks, and how many these are.
pub(super) fn bits_of_wide(number: u32, blocks: u64) -> (usize, usize) {
    let words = usize::try_from(blocks.div_ceil(64)).unwrap_or(usize::MAX);
    let inside = WIDE_WORDS - word::BITS;
    let first = if words <= inside { wide(number) + word::BITS } else { MORE + number as usize * MORE_WORDS };
    (first, words)
}

/// All records of a cache.
#[derive(Debug)]
pub(super) struct Records {
    words: PersistentMemory,
    wide: Mutex<Numbers>,
}

impl Records {
    /// None are in it, and a successor does not look at it before [`Records::complete`].
    pub(super) fn create() -> Result<Arc<Self>, Errno> {
        let words = PersistentMemory::create(&MEMORY, WORDS)?;
        Ok(Arc::new(Self { words, wide: Mutex::default() }))
    }

    /// A successor may believe it from now on, rather than one of a lower generation.
    pub(super) fn complete(&self, generation: u64) {
        self.words.store(GENERATION, generation, Release);
    }

    /// A sheet begins to be used.
    pub(super) fn sheet(&self, number: usize, descriptor: RawFd) {
        if number < SHEETS_MAX {
            self.words.store(SHEETS + number, descriptor_word(descriptor), Release);
        }
    }

    /// A record of a file in a slot. None: it is not kept.
    pub(super) fn in_slot(self: &Arc<Self>, sheet: usize, slot: u32, version: Version) -> Option<Record> {
        let first = (sheet < SHEETS_MAX).then(|| small(sheet, slot))?;
        let bits = (first + word::BITS, 1);
        Some(self.begin(Record { records: Arc::clone(self), first, bits, number: None }, version, 0))
    }

    /// A record of a file that has a descriptor. None: it is not kept.
    pub(super) fn of_descriptor(self: &Arc<Self>, version: Version, descriptor: RawFd) -> Option<Record> {
        let number = self.wide.lock().take(WIDE_MAX)?;
        if self.words.load(WIDE_END, Relaxed) <= u64::from(number) {
            self.words.store(WIDE_END, u64::from(number) + 1, Release);
        }
        let (first, bits) = (wide(number), bits_of_wide(number, version.blocks()));
        let record = Record { records: Arc::clone(self), first, bits, number: Some(number) };
        Some(self.begin(record, version, descriptor_word(descriptor)))
    }

    fn begin(&self, record: Record, version: Version, descriptor: u64) -> Record {
        record.clear();
        let (first, key) = (record.first, version.key);
        self.words.store(first + word::FILESYSTEM, key.object.filesystem, Release);
        self.words.store(first + word::INODE, key.object.inode, Release);
        self.words.store(first + word::VERSION, key.version, Release);
        self.words.store(first + word::SIZE, version.size, Release);
        self.words.store(first + word::DESCRIPTOR, descriptor, Release);
        self.words.store(first + word::SUM, sum(first, version), Release);
        self.words.store(first, IN_USE, Release);
        record
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) const fn words(&self) -> &PersistentMemory {
        &self.words
    }
}

fn descriptor_word(descriptor: RawFd) -> u64 {
    u64::try_from(descriptor).map_or(0, |descriptor| descriptor + 1)
}

/// The record of one file, in use until [`Record::end`], or until this is dropped.
#[derive(Debug)]
pub(super) struct Record {
    records: Arc<Records>,
    first: usize,
    /// The first word with bits of blocks, and how many they are.
    bits: (usize, usize),
    /// Of a file with a descriptor.
    number: Option<u32>,
}

impl Record {
    /// A block is whole.
    pub(super) fn publish(&self, block: u64) {
        self.change(block, |bits, bit| bits | bit);
    }

    /// A block is about to go.
    pub(super) fn hide(&self, block: u64) {
        self.change(block, |bits, bit| bits & !bit);
    }

    fn change(&self, block: u64, change: impl Fn(u64, u64) -> u64) {
        let at = usize::try_from(block / 64).ok().filter(|at| *at < self.bits.1).map(|at| self.bits.0 + at);
        if let Some(at) = at {
            // Changed by one thread at a time, as the memory is.
            self.records.words.store(
                at,
                change(self.records.words.load(at, Relaxed), 1 << (block % 64)),
                Release,
            );
        }
    }

    /// A small file has a descriptor of its own from now on.
    pub(super) fn moved(&self, descriptor: RawFd) {
        self.records.words.store(self.first + word::DESCRIPTOR, descriptor_word(descriptor), Release);
    }

    /// The file is found no more.
    pub(super) fn end(&self) {
        self.records.words.store(self.first, 0, SeqCst);
    }

    /// No block is there.
    fn clear(&self) {
        let (first, words) = self.bits;
        if first < MORE {
            (first..first + words).for_each(|at| self.records.words.store(at, 0, Release));
        } else if self.records.words.clear(first, MORE_WORDS).is_err() {
            // Where memory cannot be given back.
            (first..first + words).for_each(|at| self.records.words.store(at, 0, Release));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.end();
        if let Some(number) = self.number {
            if self.bits.0 >= MORE {
                self.clear();
            }
            self.records.wide.lock().free.push(number);
        }
    }
}
