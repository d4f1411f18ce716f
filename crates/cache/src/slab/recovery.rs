//! What a predecessor has left, as far as it can be believed.
//!
//! Whoever wrote the records is dead, and may have been anything. So they are read once, and the copy is checked: that each file lies within
//! memory that is there, has the size and the seals that it has to have, and is no other file's; that what counts as there is; and that
//! all of it together is no more than the cache may hold. What does not fit is dropped. That the bytes are those of the storage is the
//! predecessor's word: it read them.
//!
//! Records of its own are written before anything is freed, so that a death in the middle leaves one of the two whole.

use super::records::{self, Record, Records, bits_of_wide, small, wide, word};
use super::{Numbers, SHEET_BYTES, SLOT_BYTES, SLOTS, Slab, SlabFile, SlabMemory, Slot};
use crate::key::{BLOCK_BYTES, BLOCKS_MAX, BlockIndex, Key, Object, Version, charged};
use crate::memory::{MemFd, Memory};
use crate::sync::Mutex;
use hashbrown::{HashMap, HashSet};
use rustix::fs::{FileType, OFlags, fcntl_get_seals, fcntl_getfl, fstat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, OnceLock};
use vellum_sys::{PersistentMemory, SEAL_EXEC, crash_point};

const WORD_BYTES: usize = size_of::<u64>();

/// Descriptors that a predecessor had open.
#[derive(Debug, Default)]
pub struct PredecessorFds {
    /// Of the kind [`SlabMemory::RECORDS`].
    pub records: Vec<OwnedFd>,
    /// Of the kind [`SlabMemory::FILES`], by the numbers that they had.
    pub files: HashMap<RawFd, OwnedFd>,
}

/// How much of it is taken.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes, in pages.
    pub bytes: u64,
    /// Files with a descriptor of their own.
    pub files: usize,
}

/// A file that was found in it.
#[derive(Debug)]
pub struct RecoveredFile {
    /// Which contents.
    pub version: Version,
    /// Where they are.
    pub memory: SlabFile,
    /// Those of its blocks that are there, in order.
    pub blocks: Vec<BlockIndex>,
    /// It was lent: all of it is there, and may be used by others without a word.
    pub sealed: bool,
}

impl SlabMemory {
    /// Goes on with what a predecessor has left, and is kept for a successor itself. Whatever is not among what was found is freed.
    pub fn adopt(left: PredecessorFds, limits: Limits) -> Result<(Self, Vec<RecoveredFile>), Errno> {
        let PredecessorFds { records, files } = left;
        let old: Vec<PredecessorRecords> =
            records.into_iter().filter_map(PredecessorRecords::parse_table).collect();
        let newest = old.iter().max_by_key(|old| old.generation);
        let Some((newest, generation)) = newest.and_then(|old| Some((old, old.generation.checked_add(1)?)))
        else {
            return Ok((Self::resumable()?, Vec::new()));
        };
        let records = Records::create()?;
        let files = Files { all: files, seen: HashSet::new() };
        let mut taking =
            Recovery { old: newest, files, limits, records: &records, sheets: vec![], claims: vec![] };
        taking.take_small();
        taking.take_wide();
        let Recovery { files, sheets, claims, .. } = taking;
        records.complete(generation);
        // From here on a successor has the new records, so what they do not name may go.
        drop((old, files));
        let sheets = sheets.into_iter().map(SlotClaims::emptied).collect::<Vec<_>>();
        // Files of a sheet of which something is missing are all dropped: what is in them is not known.
        let found = claims.into_iter().map(|claim| claim.found(&sheets));
        let found = found.filter_map(|(found, is_there)| is_there.then_some(found)).collect();
        let sheets = Mutex::new(sheets.into_iter().map(|(sheet, _)| sheet).collect());
        Ok((Self { sheets, records: Some(records) }, found))
    }
}

/// Records of a predecessor.
struct PredecessorRecords {
    memory: PersistentMemory,
    generation: u64,
}

impl PredecessorRecords {
    /// None: they are none, of another version, or not complete.
    fn parse_table(descriptor: OwnedFd) -> Option<Self> {
        let memory = PersistentMemory::open(&records::MEMORY, descriptor).ok()?;
        let generation = memory.load(records::GENERATION, Acquire);
        (generation > 0).then_some(Self { memory, generation })
    }

    fn read(&self, first: usize, words: usize) -> Option<Vec<u64>> {
        let mut bytes = vec![0; words * WORD_BYTES];
        self.memory.read(&mut bytes, (first * WORD_BYTES) as u64).ok()?;
        let words = bytes.chunks_exact(WORD_BYTES).filter_map(|word| word.try_into().ok());
        Some(words.map(u64::from_ne_bytes).collect())
    }
}

/// Which contents a record tells of. None: it is not in use, or says what cannot be.
fn version_of(first: usize, record: &[u64]) -> Option<Version> {
    let get = |word: usize| record.get(word).copied();
    let object = Object { filesystem: get(word::FILESYSTEM)?, inode: get(word::INODE)? };
    let key = Key { object, version: get(word::VERSION)? };
    let version = Version { key, size: get(word::SIZE)? };
    let is_right = get(word::HEAD)? == records::IN_USE && get(word::SUM)? == records::sum(first, version);
    (is_right && version.size > 0 && version.blocks() <= BLOCKS_MAX).then_some(version)
}

/// The blocks whose bits are set. None: there are none, or some beyond the end.
fn blocks_of(version: Version, bits: &[u64]) -> Option<Vec<BlockIndex>> {
    let end = usize::try_from(version.blocks()).ok()?;
    let is_set = |block: usize| bits.get(block / 64).is_some_and(|word| word >> (block % 64) & 1 == 1);
    if (end..bits.len() * 64).any(is_set) {
        return None;
    }
    let blocks: Vec<_> =
        (0..end).filter(|block| is_set(*block)).map(|block| BlockIndex(block as u64)).collect();
    Some(blocks).filter(|blocks| !blocks.is_empty())
}

/// Memory files that nobody has claimed yet.
struct Files {
    all: HashMap<RawFd, OwnedFd>,
    /// By device and inode, for one may have several descriptors.
    seen: HashSet<(u64, u64)>,
}

impl Files {
    /// The one that a word of a record names, and whether it is sealed. None: there is none of that size and kind, or not any more.
    fn take(&mut self, word: u64, bytes: u64) -> Option<(File, bool)> {
        let number = RawFd::try_from(word.checked_sub(1)?).ok()?;
        let file = self.all.remove(&number)?;
        // Of files that are no memory files it says that they have no seals, by an error.
        let seals = fcntl_get_seals(&file).ok()?.difference(SEAL_EXEC);
        let stat = fstat(&file).ok()?;
        let is_right = (seals.is_empty() || seals == MemFd::SEALS)
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_nlink == 0
            && u64::try_from(stat.st_size) == Ok(bytes)
            && fcntl_getfl(&file).ok()? & OFlags::RWMODE == OFlags::RDWR
            && self.seen.insert((stat.st_dev, stat.st_ino));
        is_right.then(|| (file.into(), !seals.is_empty()))
    }
}

/// Where a file lies.
enum FileLocation {
    /// The number of a sheet and of a slot in it.
    Slot(usize, u32),
    Own(File),
}

/// A file that is taken, and stands in the new records.
struct Claim {
    version: Version,
    record: Option<Record>,
    place: FileLocation,
    blocks: Vec<BlockIndex>,
    sealed: bool,
}

/// A sheet with the slots that are taken, in order, and the bytes of each.
struct SlotClaims {
    memory: File,
    number: usize,
    slots: Vec<(u32, u64)>,
}

struct Recovery<'a> {
    old: &'a PredecessorRecords,
    files: Files,
    limits: Limits,
    records: &'a Arc<Records>,
    sheets: Vec<SlotClaims>,
    claims: Vec<Claim>,
}

impl Recovery<'_> {
    /// Files in slots, and those that were there before they were lent.
    fn take_small(&mut self) {
        let Some(sheets) = self.old.read(records::SHEETS, records::SHEETS_MAX) else { return };
        for (old_number, descriptor) in
            sheets.into_iter().enumerate().filter(|(_, descriptor)| *descriptor > 0)
        {
            let memory = self.files.take(descriptor, SHEET_BYTES);
            let Some((memory, false)) = memory else { continue };
            let first = small(old_number, 0);
            let Some(all) = self.old.read(first, SLOTS as usize * records::SMALL_WORDS) else { continue };
            // Sheets of which nothing is taken have no successor, so numbers close up.
            let number = self.sheets.len();
            let mut slots = Vec::new();
            for (slot, record) in (0..).zip(all.chunks_exact(records::SMALL_WORDS)) {
                let version = version_of(small(old_number, slot), record);
                let Some(version) = version.filter(|version| version.size <= SLOT_BYTES) else { continue };
                let bits = record.get(word::BITS..).unwrap_or_default();
                match (record.get(word::DESCRIPTOR).copied(), blocks_of(version, bits)) {
                    (Some(0), Some(blocks)) if self.fits(version, &blocks, false) => {
                        if slots.is_empty() {
                            self.records.sheet(number, memory.as_raw_fd());
                        }
                        slots.push((slot, charged(version.size)));
                        let record = self.records.in_slot(number, slot, version);
                        self.claim(version, record, FileLocation::Slot(number, slot), blocks, false);
                    }
                    (Some(descriptor), _) => self.take_own(descriptor, version, |_| Some(bits.to_vec())),
                    (None, _) => {}
                }
            }
            if !slots.is_empty() {
                self.sheets.push(SlotClaims { memory, number, slots });
            }
        }
    }

    /// Files with a descriptor from the beginning.
    fn take_wide(&mut self) {
        let Some(end) = self.old.read(records::WIDE_END, 1) else { return };
        let end = end.first().map_or(0, |end| (*end).min(records::WIDE_MAX.into())) as u32;
        let Some(all) = self.old.read(wide(0), end as usize * records::WIDE_WORDS) else { return };
        for (number, record) in (0..end).zip(all.chunks_exact(records::WIDE_WORDS)) {
            let Some(version) = version_of(wide(number), record) else { continue };
            let Some(descriptor) = record.get(word::DESCRIPTOR).copied() else { continue };
            let (first, words) = bits_of_wide(number, version.blocks());
            let inside = first.checked_sub(wide(number)).filter(|at| *at < records::WIDE_WORDS);
            self.take_own(descriptor, version, |old| match inside {
                Some(at) => record.get(at..).map(<[u64]>::to_vec),
                None => old.read(first, words),
            });
        }
    }

    /// The descriptor first: however many records there are that name one, it is looked at once.
    fn take_own(
        &mut self,
        descriptor: u64,
        version: Version,
        bits: impl FnOnce(&PredecessorRecords) -> Option<Vec<u64>>,
    ) {
        let Some((memory, sealed)) = self.files.take(descriptor, version.size) else { return };
        let Some(blocks) = bits(self.old).and_then(|bits| blocks_of(version, &bits)) else { return };
        if !self.fits(version, &blocks, true) {
            return;
        }
        // None of what is sealed can be freed by itself, and no small file is alone but for that.
        let is_right =
            if sealed { blocks.len() as u64 == version.blocks() } else { version.size > SLOT_BYTES };
        if is_right {
            let record = self.records.of_descriptor(version, memory.as_raw_fd());
            self.claim(version, record, FileLocation::Own(memory), blocks, sealed);
        }
    }

    fn claim(
        &mut self,
        version: Version,
        record: Option<Record>,
        place: FileLocation,
        blocks: Vec<BlockIndex>,
        sealed: bool,
    ) {
        if let Some(record) = &record {
            blocks.iter().for_each(|block| record.publish(block.0));
        }
        self.claims.push(Claim { version, record, place, blocks, sealed });
    }

    /// Whether the cache may hold it, too: then it is counted.
    fn fits(&mut self, version: Version, blocks: &[BlockIndex], is_wide: bool) -> bool {
        let Limits { bytes, files } = self.limits;
        let left = bytes.checked_sub(taken(version, blocks));
        let files = files.checked_sub(is_wide.into());
        let Some((bytes, files)) = left.zip(files) else { return false };
        self.limits = Limits { bytes, files };
        true
    }
}

/// What so many blocks take in memory.
fn taken(version: Version, blocks: &[BlockIndex]) -> u64 {
    blocks.iter().map(|index| charged(version.block_len(*index))).sum()
}

/// Frees some of a memory file. Whether it is free.
fn free(memory: &File, from: u64, to: u64) -> bool {
    crash_point::reach();
    from >= to || MemFd.release(memory, from, to - from).is_ok()
}

/// Bytes that a memory file takes; 0 where that cannot be known.
fn holds(memory: impl AsFd) -> u64 {
    fstat(memory).ok().and_then(|stat| u64::try_from(stat.st_blocks).ok()).unwrap_or(0) * 512
}

impl SlotClaims {
    /// The sheet, without anything that is not taken. False: some of what is taken is not there.
    fn emptied(self) -> (Arc<Slab>, bool) {
        let Self { memory, number, slots } = self;
        let mut numbers = Numbers { next: SLOTS, free: vec![] };
        let mut from = 0;
        for to in slots.iter().map(|(slot, _)| *slot).chain([SLOTS]) {
            let at = |slot: u32| u64::from(slot) * SLOT_BYTES;
            // What cannot be emptied is not given to others.
            if free(&memory, at(from), at(to)) {
                numbers.free.extend(from..to);
            }
            from = to + 1;
        }
        // From the back, as they are taken.
        numbers.free.reverse();
        let taken: u64 = slots.iter().map(|(_, bytes)| bytes).sum();
        if holds(&memory) > taken {
            // Behind the ends of files.
            for (slot, bytes) in &slots {
                let start = u64::from(*slot) * SLOT_BYTES;
                free(&memory, start + bytes, start + SLOT_BYTES);
            }
        }
        // All else is gone, so what is there is what is taken; it would be less where a file is a hole.
        let is_there = holds(&memory) >= taken;
        (Arc::new(Slab { memory, number, slots: Mutex::new(numbers) }), is_there)
    }
}

impl Claim {
    /// The file. False: some of what is taken is not there.
    fn found(self, sheets: &[(Arc<Slab>, bool)]) -> (RecoveredFile, bool) {
        let Self { version, record, place, blocks, sealed } = self;
        let (slot, own, is_there) = match place {
            FileLocation::Slot(sheet, number) => {
                let found = sheets.get(sheet);
                let slot = found.map(|(sheet, _)| Slot { sheet: Arc::clone(sheet), number });
                (slot, OnceLock::new(), found.is_some_and(|(_, is_there)| *is_there))
            }
            FileLocation::Own(memory) => {
                let is_emptied = sealed || empty(&memory, version, &blocks);
                let is_there = is_emptied && holds(&memory) >= taken(version, &blocks);
                (None, memory.into(), is_there)
            }
        };
        (RecoveredFile { version, memory: SlabFile { version, record, slot, own }, blocks, sealed }, is_there)
    }
}

/// Frees all of a file but some blocks.
fn empty(memory: &File, version: Version, blocks: &[BlockIndex]) -> bool {
    let mut from = 0;
    let ends = blocks.iter().map(|index| index.0).chain([version.blocks()]);
    ends.into_iter().all(|to| {
        let is_free = free(memory, from * BLOCK_BYTES, to * BLOCK_BYTES);
        from = to + 1;
        is_free
    })
}
