//! Whatever is on a device, nothing panics, and what is read has passed its checks.

use proptest::prelude::*;
use std::sync::Arc;
use vellum_zoned::device::emulator::{Random, SMALL_ZONE};
use vellum_zoned::device::{Conventional, Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Placement, Store, parse_hostile};

/// What was kept of real devices.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/zoned");

fn corpus() -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(CORPUS).expect("the corpus");
    files.map(|file| std::fs::read(file.expect("a file").path()).expect("a file")).collect()
}

#[test]
fn the_fuzz_corpus_is_accepted() {
    assert!(corpus().iter().all(|bytes| parse_hostile(bytes)));
    assert!(!parse_hostile(b"something else"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of a real device, of which some are changed, left out, or doubled.
    #[test]
    fn changed_bytes_are_refused_or_make_sense(
        file in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..8),
    ) {
        let corpus = corpus();
        let mut bytes = file.get(&corpus).clone();
        for (at, value, how) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value % 8),
                2 => drop(bytes.drain(at..(at + usize::from(value % 16)).min(bytes.len()))),
                _ => {
                    let part = bytes[at..(at + usize::from(value)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        let _ = parse_hostile(&bytes);
    }
}

/// More bytes than can be counted.
#[test]
fn a_device_that_is_too_large_is_refused() {
    let file = tempfile::tempfile().expect("a file");
    assert!(Conventional::create(file, 4096, 1 << 22, 1 << 31).is_err());
}

/// Blocks anywhere on the device hold something else: what can be read is what was written.
#[test]
fn a_device_with_changed_blocks() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let device = Arc::new(
            Emulated::in_memory(SMALL_ZONE.scaled(32, 16).with_limits(12, 12), 1).expect("a device"),
        );
        let dynamic = || Arc::clone(&device) as Arc<dyn ZonedDevice>;
        let store = Store::format(dynamic(), Placement::NONE).expect("a store");
        for number in 0..6_u8 {
            store.put(&[number], Class::Normal, &[number; 20_000]).expect("put");
            store.sync().expect("sync");
        }
        for _ in 0..1 + random.below(6) {
            let zone = random.below(32) as u32;
            let pointer = device.report(zone).expect("report").pointer;
            device.corrupt(zone, random.below(pointer.max(1)));
        }
        let Ok(store) = Store::open(dynamic()) else { continue };
        for entry in store.list() {
            if let Ok(held) = store.get(&entry.name) {
                assert_eq!(held, vec![entry.name[0]; 20_000], "seed {seed}");
            }
        }
    }
}

/// The table of zones of a file, with changed bytes.
#[test]
fn a_file_with_a_changed_table() {
    use std::os::unix::fs::FileExt;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let file = tempfile::tempfile().expect("a file");
        let device =
            Conventional::create(file.try_clone().expect("a file"), 4096, 1200, 8).expect("a device");
        for zone in 0..20 {
            device.write(zone * 50, 0, &[zone as u8; 4096]).expect("write");
        }
        device.flush().expect("flush");
        drop(device);
        for _ in 0..1 + random.below(3) {
            file.write_all_at(&[random.draw() as u8], random.below(7 * 4096)).expect("write");
        }
        let Ok(device) = Conventional::open(file) else { continue };
        for zone in 0..20 {
            let mut block = [0; 4096];
            if device.read(zone * 50, 0, &mut block).is_ok() {
                assert_eq!(block, [zone as u8; 4096], "seed {seed}");
            }
        }
    }
}
