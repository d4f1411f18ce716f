//! Records and descriptors that somebody hostile has left: nothing is believed that does not fit.

use super::*;
use crate::key::BLOCKS_MAX;
use proptest::prelude::*;
use rustix::fs::SealFlags;

const SIZES: [u64; 8] =
    [1, 5000, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 600 * BLOCK_BYTES, 9000, 3 * BLOCK_BYTES];

/// What a good one leaves: small files, one of which was lent, and large ones.
fn good() -> PredecessorFds {
    let memory = SlabMemory::resumable().unwrap();
    let mut files: Vec<SlabFile> = vec![];
    for (inode, size) in (0..).zip(SIZES) {
        let version = file(inode, 5, size);
        let made = memory.create(version).unwrap();
        for block in (0..version.blocks()).take(3) {
            memory.write(&made, &content(version, block), block * BLOCK_BYTES).unwrap();
        }
        files.push(made);
    }
    memory.seal(&files[4]).unwrap();
    memory.seal(&files[6]).unwrap();
    let table = copy(memory.records.as_ref().unwrap().words().as_fd(), SlabMemory::RECORDS);
    let sheets: Vec<Arc<Slab>> = memory.sheets.lock().clone();
    let all = sheets.iter().map(|sheet| &sheet.memory).chain(files.iter().filter_map(SlabFile::file));
    left(vec![table], all.map(|file| (file.as_raw_fd(), copy(file, SlabMemory::FILES))).collect())
}

#[test]
fn valid_records_are_all_adopted() {
    assert_eq!(recover(good(), LIMITS, |version, block| Some(content(version, block))), 15);
    // Not more than there may be.
    let few = Limits { bytes: 5 * BLOCK_BYTES, files: 2 };
    assert!((1..15).contains(&recover(good(), few, |_, _| None)));
    let narrow = Limits { files: 0, ..LIMITS };
    assert_eq!(recover(good(), narrow, |_, _| None), 3);
    assert_eq!(recover(PredecessorFds::default(), LIMITS, |_, _| None), 0);
    // A block that the file has not got.
    let left = good();
    set_word(left.records.first().unwrap(), records::small(0, 2) + word::BITS, 3);
    assert_eq!(recover(left, LIMITS, |_, _| None), 14);
}

/// A record that is in use, of those that `good` has.
fn record() -> impl Strategy<Value = usize> {
    prop_oneof![(0..5_u32).prop_map(|slot| records::small(0, slot)), (0..5_u32).prop_map(records::wide)]
}

#[derive(Clone, Debug)]
enum Bad {
    /// A word says something else; where it is one of a record, its sum may be right all the same.
    Word { first: usize, word: usize, value: u64, sum: bool },
    /// A record is another one's, as it should be there.
    Again { from: usize, to: usize },
    /// A word of the header or of the list of sheets.
    Header(usize, u64),
    /// A bit of a block is set or not.
    Bit(usize, u32),
    /// A descriptor is missing, or something else.
    Descriptor(usize, Instead),
    /// Memory behind a record's back is a hole.
    Hole(usize, u64),
}

#[derive(Clone, Copy, Debug)]
enum Instead {
    Missing,
    Short,
    Long,
    Sealed,
    HalfSealed,
    File,
    ReadOnly,
    Twice,
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..12_u64,
        Just(BLOCK_BYTES),
        Just(3 * BLOCK_BYTES),
        Just(BLOCKS_MAX * BLOCK_BYTES),
        Just(u64::MAX),
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        // Numbers of descriptors.
        0..60_u64,
    ]
}

fn bad() -> impl Strategy<Value = Bad> {
    let kind = prop::sample::select(vec![
        Instead::Missing,
        Instead::Short,
        Instead::Long,
        Instead::Sealed,
        Instead::HalfSealed,
        Instead::File,
        Instead::ReadOnly,
        Instead::Twice,
    ]);
    prop_oneof![
        4 => (record(), 0..16_usize, value(), any::<bool>())
            .prop_map(|(first, word, value, sum)| Bad::Word { first, word, value, sum }),
        2 => (record(), record()).prop_map(|(from, to)| Bad::Again { from, to }),
        1 => (prop_oneof![0..3_usize, records::SHEETS..records::SHEETS + 3], value())
            .prop_map(|(at, value)| Bad::Header(at, value)),
        1 => (record(), 0..64_u32).prop_map(|(first, bit)| Bad::Bit(first, bit)),
        2 => (0..7_usize, kind).prop_map(|(at, kind)| Bad::Descriptor(at, kind)),
        1 => (0..7_usize, 0..3_u64).prop_map(|(at, block)| Bad::Hole(at, block)),
    ]
}

fn version_at(table: &OwnedFd, first: usize) -> Version {
    let word = |at: usize| word_of(table, first + at);
    let object = Object { filesystem: word(word::FILESYSTEM), inode: word(word::INODE) };
    Version { key: Key { object, version: word(word::VERSION) }, size: word(word::SIZE) }
}

fn spoil(left: &mut PredecessorFds, bad: &Bad) {
    let table = left.records.first().unwrap();
    let mut numbers: Vec<RawFd> = left.files.keys().copied().collect();
    numbers.sort_unstable();
    match *bad {
        Bad::Word { first, word, value, sum } => {
            set_word(table, first + word, value);
            if sum {
                set_word(table, first + word::SUM, records::sum(first, version_at(table, first)));
            }
        }
        Bad::Again { from, to } => {
            for word in 0..records::SMALL_WORDS {
                set_word(table, to + word, word_of(table, from + word));
            }
            set_word(table, to + word::SUM, records::sum(to, version_at(table, to)));
        }
        Bad::Header(at, value) => set_word(table, at, value),
        Bad::Bit(first, bit) => {
            let word = first + word::BITS;
            set_word(table, word, word_of(table, word) ^ 1 << bit);
        }
        Bad::Descriptor(at, kind) => {
            let Some(number) = numbers.get(at) else { return };
            let Some(old) = left.files.remove(number) else { return };
            let same = || copy(&old, SlabMemory::FILES);
            let new = match kind {
                Instead::Missing => return,
                Instead::Short | Instead::Long => {
                    let new = same();
                    let size = fstat(&new).unwrap().st_size as u64;
                    // Not where it is sealed.
                    let size = if matches!(kind, Instead::Short) { size / 2 } else { size + PAGE_BYTES };
                    ftruncate(&new, size).ok();
                    new
                }
                Instead::Sealed | Instead::HalfSealed => {
                    let new = same();
                    let seals = if matches!(kind, Instead::Sealed) { MemFd::SEALS } else { SealFlags::WRITE };
                    fcntl_add_seals(&new, seals).ok();
                    new
                }
                Instead::File => {
                    let new = tempfile::tempfile().unwrap();
                    new.set_len(fstat(&old).unwrap().st_size as u64).unwrap();
                    new.into()
                }
                Instead::ReadOnly => File::open(format!("/proc/self/fd/{}", old.as_raw_fd())).unwrap().into(),
                Instead::Twice => {
                    let size = |file: &OwnedFd| fstat(file).unwrap().st_size;
                    let Some(other) = left.files.values().find(|other| size(other) == size(&old)) else {
                        return;
                    };
                    other.try_clone().unwrap()
                }
            };
            left.files.insert(*number, new);
        }
        Bad::Hole(at, block) => {
            if let Some(file) = numbers.get(at).and_then(|number| left.files.get(number)) {
                MemFd.release(&file.try_clone().unwrap().into(), block * BLOCK_BYTES, BLOCK_BYTES).ok();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn inconsistent_records_are_dropped(all in prop::collection::vec(bad(), 1..6)) {
        let mut left = good();
        all.iter().for_each(|bad| spoil(&mut left, bad));
        // What somebody says of contents, and is right in itself, is believed: but a hole, or another's place, is nobody's contents.
        let is_told = all.iter().all(|bad| match bad {
            Bad::Word { sum, .. } => !sum,
            Bad::Descriptor(_, instead) => !matches!(instead, Instead::Twice),
            Bad::Hole(..) | Bad::Bit(..) => true,
            Bad::Again { .. } | Bad::Header(..) => false,
        });
        recover(left, LIMITS, |version, block| is_told.then(|| content(version, block)));
    }
}
