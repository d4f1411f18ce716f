//! Pointers that may be found further than what was written: of a file with a table of them, which then is not written at every flush, and what the
//! store makes of that.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use vellum_zoned::device::emulator::{Random, SMALL_ZONE, Survival};
use vellum_zoned::device::{Condition, Conventional, Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Placement, Store};

/// Blocks of a zone, and bytes of a block.
const ZONE: u64 = 256;
const BLOCK: usize = 4096;

fn create(path: &Path) -> Conventional {
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
    Conventional::create(file, BLOCK as u32, 40, ZONE).expect("zones")
}

fn open(path: &Path) -> Conventional {
    let file = File::options().read(true).write(true).open(path).expect("a file");
    Conventional::open(file).expect("zones")
}

/// The file as a process that was killed now would leave it.
fn killed(path: &Path, to: &Path) {
    std::fs::copy(path, to).expect("a copy");
}

/// The only page of the table, in both copies.
fn table(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 2 * BLOCK];
    File::open(path).expect("the file").read_exact_at(&mut bytes, BLOCK as u64).expect("a table");
    bytes
}

#[test]
fn run_ahead_writes_are_flushed_without_the_pointer_table() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, copy) = (directory.path().join("zones"), directory.path().join("copy"));
    let device = create(&path);
    device.run_ahead(3, 50);
    let mut tables = 0;
    for block in 0..ZONE - 1 {
        let before = table(&path);
        device.write(3, block, &[block as u8; BLOCK]).expect("write");
        device.flush().expect("flush");
        tables += u64::from(table(&path) != before);
        if block % 17 == 0 || block == ZONE - 2 {
            killed(&path, &copy);
            let found = open(&copy);
            let zone = found.report(3).expect("a zone");
            let most = (block + 1 + 50).min(ZONE - 1);
            assert!((block + 1..=most).contains(&zone.pointer), "{} for {block}", zone.pointer);
            assert_eq!(zone.condition, Condition::Closed);
            let mut read = [0; BLOCK];
            found.read(3, block, &mut read).expect("what was flushed");
            assert_eq!(read, [block as u8; BLOCK]);
            // It goes on there.
            if zone.pointer < ZONE {
                found.write(3, zone.pointer, &[1; BLOCK]).expect("write");
            }
        }
    }
    assert!((1..=6).contains(&tables), "the table was written {tables} times");
    device.write(3, ZONE - 1, &[1; BLOCK]).expect("write");
    device.flush().expect("flush");
    killed(&path, &copy);
    assert_eq!(open(&copy).report(3).expect("a zone").condition, Condition::Full);
}

#[test]
fn write_pointers_survive_a_kill_reset_and_close() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, copy) = (directory.path().join("zones"), directory.path().join("copy"));
    let device = create(&path);
    let pointer = |zone| {
        killed(&path, &copy);
        open(&copy).report(zone).expect("a zone").pointer
    };
    device.run_ahead(3, 50);
    for zone in [3, 4] {
        device.write(zone, 0, &[1; 2 * BLOCK]).expect("write");
    }
    device.flush().expect("flush");
    assert_eq!((pointer(3), pointer(4)), (52, 2));
    device.reset(3).expect("reset");
    device.flush().expect("flush");
    assert_eq!(pointer(3), 0);
    // That was up to the reset.
    device.write(3, 0, &[1; 2 * BLOCK]).expect("write");
    device.flush().expect("flush");
    assert_eq!(pointer(3), 2);
    device.run_ahead(3, 50);
    device.write(3, 2, &[1; BLOCK]).expect("write");
    device.flush().expect("flush");
    assert_eq!(pointer(3), 53);
    drop(device);
    assert_eq!(open(&path).report(3).expect("a zone").pointer, 3);
}

#[test]
fn an_emulated_device_shows_data_from_before_a_reset() {
    let (mut ahead, mut old) = (0, 0);
    for seed in 0..100 {
        let device = Emulated::in_memory(SMALL_ZONE.scaled(4, 32).running_ahead(), 1).expect("a device");
        device.write(0, 0, &[7; 20 * BLOCK]).expect("write");
        device.flush().expect("flush");
        device.reset(0).expect("reset");
        device.run_ahead(0, 8);
        device.write(0, 0, &[8; 2 * BLOCK]).expect("write");
        device.flush().expect("flush");
        let after = device.after_power_loss(Survival::Drawn(seed)).expect("a device");
        let pointer = after.report(0).expect("a zone").pointer;
        assert!((2..=10).contains(&pointer), "{pointer}");
        let mut read = vec![0; pointer as usize * BLOCK];
        after.read(0, 0, &mut read).expect("read");
        assert_eq!(read[..2 * BLOCK], [8; 2 * BLOCK]);
        ahead += u32::from(pointer > 2);
        old += u32::from(read[2 * BLOCK..].contains(&7));
    }
    assert!(ahead > 50 && old > 50, "{ahead} ahead, {old} with what was there before");
}

#[test]
fn a_repeatedly_killed_store_has_its_synced_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut path = directory.path().join("0");
    let store = Store::format(Arc::new(create(&path)), Placement::NONE).expect("a store");
    let mut data = vec![0; 40 * BLOCK];
    store.put(b"a", Class::Normal, &data).expect("room");
    store.sync().expect("sync");
    let mut random = Random::new(5);
    let mut left = vec![store];
    for round in 1..40_u8 {
        let store = left.last().expect("a store");
        for _ in 0..random.below(9) {
            let at = random.below(40) as usize * BLOCK;
            data[at..at + BLOCK].fill(round);
            store.write_at(b"a", at as u64, &data[at..at + BLOCK]).expect("room");
            store.sync().expect("sync");
        }
        let next = directory.path().join(round.to_string());
        killed(&path, &next);
        path = next;
        let store = Store::open(Arc::new(open(&path))).expect("a store");
        assert!(store.get(b"a").expect("an object") == data, "round {round}");
        let report = store.check().expect("a check");
        assert!(report.is_clean(), "round {round}: {report:?}");
        left.push(store);
    }
}

/// A record that says that object "a" is removed, as one block, behind the last one of the log in both its zones.
fn forge(device: &dyn ZonedDevice, zones: [u32; 2], other_log: u8) {
    let at = device.report(zones[0]).expect("a zone").pointer;
    let mut head = vec![0; BLOCK];
    device.read(zones[0], at - 1, &mut head).expect("the last record");
    assert_eq!(&head[..8], b"vlmrecrd");
    // Kind, 0, length of the name, name.
    let change = [4, 0, 1, 0, b'a'];
    head.truncate(64);
    head[12..16].copy_from_slice(&(change.len() as u32).to_le_bytes());
    let sequence = u64::from_le_bytes(head[40..48].try_into().expect("8 bytes")) + 1;
    head[40..48].copy_from_slice(&sequence.to_le_bytes());
    head[56] = 0;
    head[60] ^= other_log;
    head[8..12].fill(0);
    head.extend_from_slice(&change);
    let sum = crc32c::crc32c(&head);
    head[8..12].copy_from_slice(&sum.to_le_bytes());
    head.resize(BLOCK, 0);
    for zone in zones {
        device.write(zone, at, &head).expect("room");
    }
}

#[test]
fn a_record_of_another_log_is_ignored() {
    for other_log in [0, 1] {
        let profile = SMALL_ZONE.scaled(32, 64).with_limits(12, 12);
        let device: Arc<dyn ZonedDevice> = Arc::new(Emulated::in_memory(profile, 1).expect("a device"));
        let store = Store::format(Arc::clone(&device), Placement::NONE).expect("a store");
        store.put(b"a", Class::Normal, b"1").expect("room");
        store.sync().expect("sync");
        let zones = store.log_zones()[0];
        drop(store);
        forge(&*device, zones, other_log);
        let store = Store::open(device).expect("a store");
        assert_eq!(store.get(b"a").is_ok(), other_log != 0, "log {other_log}");
    }
}
