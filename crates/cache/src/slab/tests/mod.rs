//! Small files beside each other, what a death leaves, and what somebody hostile leaves.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod deaths;
mod hostile;

use super::records::word;
use super::*;
use crate::file_blocks::{Entry, SharedMemory};
use crate::key::{Key, Object, PAGE_BYTES};
use crate::policy::S3Fifo;
use crate::store::{Config, Store};
use hashbrown::{HashMap, HashSet};
use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use std::os::fd::{AsFd, OwnedFd, RawFd};

const LIMITS: Limits = Limits { bytes: 40 * BLOCK_BYTES, files: 100 };

/// What a storage has in a block.
fn content(version: Version, block: u64) -> Vec<u8> {
    let key = version.key;
    let seed = key.object.inode * 40_503 + key.version * 977 + block * 31 + 1;
    (0..version.block_len(BlockIndex(block))).map(|at| (at / 8 + seed) as u8).collect()
}

fn file(inode: u64, version: u64, size: u64) -> Version {
    Version { key: Key { object: Object { filesystem: 1, inode }, version }, size }
}

/// A memory file as another one is, with the same seals.
fn copy(from: impl AsFd, name: &CStr) -> OwnedFd {
    crash_point::copy(from, name).unwrap()
}

/// The words at which records may name a descriptor, of so many sheets.
fn descriptor_words(sheets: usize) -> impl Iterator<Item = usize> {
    let small = (0..sheets).flat_map(|sheet| (0..SLOTS).map(move |slot| records::small(sheet, slot)));
    let wide = (0..200).map(records::wide);
    (0..sheets)
        .map(|sheet| records::SHEETS + sheet)
        .chain(small.chain(wide).map(|first| first + word::DESCRIPTOR))
}

fn word_of(table: &impl AsFd, index: usize) -> u64 {
    let mut word = [0; 8];
    rustix::io::pread(table, &mut word, index as u64 * 8).unwrap();
    u64::from_ne_bytes(word)
}

fn set_word(table: &impl AsFd, index: usize, value: u64) {
    rustix::io::pwrite(table, &value.to_ne_bytes(), index as u64 * 8).unwrap();
}

/// What somebody would leave who has these files open, as copies: of the numbers that they have then.
fn left(tables: Vec<OwnedFd>, files: Vec<(RawFd, OwnedFd)>) -> PredecessorFds {
    let numbers: HashMap<RawFd, RawFd> = files.iter().map(|(old, copy)| (*old, copy.as_raw_fd())).collect();
    for table in &tables {
        for at in descriptor_words(3) {
            if let Some(new) = numbers.get(&(word_of(table, at).wrapping_sub(1) as RawFd)) {
                set_word(table, at, *new as u64 + 1);
            }
        }
    }
    PredecessorFds {
        records: tables,
        files: files.into_iter().map(|(_, copy)| (copy.as_raw_fd(), copy)).collect(),
    }
}

/// How many blocks some records say that there are.
fn claimed(table: &OwnedFd) -> u32 {
    let small = (0..SLOTS).map(|slot| records::small(0, slot)).map(|first| (first, first + word::BITS, 1));
    let wide = (0..200).map(|number| {
        let size = word_of(table, records::wide(number) + word::SIZE);
        let (bits, words) = records::bits_of_wide(number, size.div_ceil(BLOCK_BYTES));
        (records::wide(number), bits, words)
    });
    let in_use = small.chain(wide).filter(|(first, ..)| word_of(table, *first) == records::IN_USE);
    in_use.flat_map(|(_, bits, words)| bits..bits + words).map(|at| word_of(table, at).count_ones()).sum()
}

/// Goes on with it, and looks at all that is believed: how many blocks. `says`: what is in a block.
fn recover(left: PredecessorFds, limits: Limits, says: impl Fn(Version, u64) -> Option<Vec<u8>>) -> usize {
    let (memory, found) = SlabMemory::adopt(left, limits).unwrap();
    let config = Config { capacity: limits.bytes, files: limits.files, policy: S3Fifo::queue };
    let memory = Arc::new(memory);
    let mut store = Store::new(config, SharedMemory(Arc::clone(&memory)));
    let mut holds = taken(&memory);
    let (mut all, mut places) = (Vec::new(), HashSet::new());
    for RecoveredFile { version, memory: file, blocks, sealed } in found {
        for block in &blocks {
            let mut data = vec![0; version.block_len(*block) as usize];
            memory.read(&file, &mut data, block.0 * BLOCK_BYTES).unwrap();
            if let Some(right) = says(version, block.0) {
                assert!(data == right, "block {block:?} of {version:?}");
            }
            all.push((version.key, *block));
        }
        let own = file.file().map(|own| (fstat(own).unwrap(), fcntl_get_seals(own).unwrap()));
        holds += own.as_ref().map_or(0, |(stat, _)| stat.st_blocks as u64 * 512);
        assert!(own.as_ref().is_none_or(|(stat, _)| stat.st_size as u64 == version.size));
        assert_eq!(sealed, own.is_some_and(|(_, seals)| seals == MemFd::SEALS));
        let (at, offset) = file.at(0, 1).unwrap();
        assert!(places.insert((fstat(at).unwrap().st_ino, offset)), "nothing lies on another's place");
        let entry = Entry::with_blocks(version, file, |block| blocks.contains(&block));
        store.adopt(version, entry, &blocks, sealed).unwrap();
    }
    let size = store.size();
    assert!(size <= limits.bytes && holds >= size);
    store.audit();
    // It is nobody's, and found by whoever comes.
    assert_eq!(store.stats().ownerless, size);
    let member = store.join(1).unwrap();
    let there = all.iter().filter(|(key, block)| {
        let mut buf = [0; 10];
        store.read(*key, *block, member, 0, &mut buf).unwrap().is_some()
    });
    let there = there.count();
    store.audit();
    // What comes in from now on takes nobody's place; that would be found, for debug builds have sums of all blocks.
    for inode in 1000..1004 {
        let version = file(inode, 1, (inode - 999) * 20_000);
        let fill = store.begin(version, BlockIndex(0)).unwrap();
        store.insert(fill, member, &content(version, 0)).unwrap();
    }
    let damaged =
        all.iter().filter(|(key, block)| store.read(*key, *block, member, 0, &mut [0; 10]).is_err());
    assert_eq!(damaged.count(), 0);
    drop(store);
    assert_eq!(taken(&memory), 0, "all is given back");
    there
}

fn version(size: u64) -> Version {
    Version { key: Key { object: Object { filesystem: 1, inode: 1 }, version: 1 }, size }
}

/// Bytes of memory that all sheets take.
fn taken(memory: &SlabMemory) -> u64 {
    let sheets = memory.sheets.lock();
    let blocks = |sheet: &Arc<Slab>| fstat(&sheet.memory).map_or(0, |stat| stat.st_blocks as u64);
    sheets.iter().map(|sheet| blocks(sheet) * 512).sum()
}

#[test]
fn small_files_share_a_descriptor_and_nothing_else() {
    let memory = SlabMemory::default();
    let files: Vec<SlabFile> = (0..3000).map(|_| memory.create(version(PAGE_BYTES)).unwrap()).collect();
    assert_eq!(memory.sheets.lock().len(), 3);
    for (number, file) in files.iter().enumerate() {
        memory.write(file, &number.to_le_bytes(), 100).unwrap();
    }
    let read = |file: &SlabFile| {
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
    let again: Vec<SlabFile> = (0..3000).map(|_| memory.create(version(PAGE_BYTES)).unwrap()).collect();
    assert!(memory.sheets.lock().len() == 3 && again.iter().all(|file| read(file) == Ok(0)));
}

#[test]
fn a_sealed_file_shares_no_memory() {
    let memory = SlabMemory::default();
    let (file, other) = (memory.create(version(10)).unwrap(), memory.create(version(10)).unwrap());
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
    let large = memory.create(version(SLOT_BYTES + 1)).unwrap();
    assert!(large.file().is_some() && !memory.is_shared(SLOT_BYTES + 1));
}
