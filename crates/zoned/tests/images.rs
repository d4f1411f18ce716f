//! Images that are large enough to be written by several threads at once: losses of power and errors at every change, on stripes of one zone
//! and of several, and what is read of them.

use std::sync::Arc;
use vellum_zoned::device::emulator::{Fault, LARGE_ZONE, Profile, Random, SMALL_ZONE, Survival, Trigger};
use vellum_zoned::device::{Conventional, Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Error, Placement, Reader, Store};

fn profiles() -> Vec<(Profile, Placement)> {
    let striped = |stripe| Placement { groups: 4, checkpoint_groups: 1, stripe };
    vec![
        (SMALL_ZONE.scaled(64, 8).with_limits(16, 16), striped(1)),
        (SMALL_ZONE.scaled(64, 8).with_limits(16, 16), striped(3)),
        (SMALL_ZONE.scaled(64, 8).with_limits(16, 16).running_ahead(), striped(3)),
        // Fewer zones may be active than the stripe has.
        (SMALL_ZONE.scaled(64, 8).with_limits(12, 12), striped(8)),
        (LARGE_ZONE.scaled(48, 24).with_limits(14, 14), Placement { stripe: 2, ..Placement::NONE }),
    ]
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.draw() as u8).collect()
}

fn formatted(profile: &Profile, placement: Placement) -> (Arc<Emulated>, Store) {
    let device = Arc::new(Emulated::in_memory(profile.clone(), 7).expect("a device"));
    let store = Store::format(Arc::clone(&device) as Arc<dyn ZonedDevice>, placement).expect("a store");
    (device, store)
}

/// Writes an image in uneven parts, with something else beside it.
fn image(store: &Store, name: &[u8], data: &[u8]) -> Result<(), Error> {
    let mut writer = store.writer(Class::Checkpoint)?;
    let (start, rest) = data.split_at(data.len() / 3);
    start.chunks(10_000).try_for_each(|part| writer.write(part))?;
    store.put(b"beside", Class::Normal, &data[..5000])?;
    writer.flush()?;
    writer.write(rest)?;
    writer.commit(name)?;
    store.sync()
}

fn check_clean(store: &Store) {
    store.sync().expect("sync");
    let report = store.check().expect("a check");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn an_image_is_complete_or_absent_after_power_loss() {
    let (old, new) = (bytes(1, 150_001), bytes(2, 260_123));
    for (profile, placement) in profiles() {
        let (device, store) = formatted(&profile, placement);
        image(&store, b"image", &old).expect("an image");
        let before = device.changes();
        image(&store, b"image", &new).expect("another one");
        // Threads meet in other orders each time, so there may be some more changes.
        let changes = device.changes() - before + 3;
        for at in 0..changes {
            let (device, store) = formatted(&profile, placement);
            image(&store, b"image", &old).expect("an image");
            device.inject(Trigger::Change(at), Fault::PowerLoss);
            let synced = image(&store, b"image", &new);
            for survival in
                [Survival::Nothing, Survival::Everything, Survival::Drawn(at), Survival::Drawn(!at)]
            {
                let what = format!("{}, {placement:?}, change {at}, {survival:?}", profile.name);
                let after = Arc::new(device.after_power_loss(survival).expect("a device"));
                let store = Store::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
                let held = store.get(b"image").unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(held == new || (synced.is_err() && held == old), "{what}: neither old nor new");
                check_clean(&store);
                image(&store, b"after", &old).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
}

#[test]
fn a_failed_write_continues_in_another_zone() {
    let (old, new) = (bytes(1, 150_001), bytes(2, 260_123));
    for (profile, placement) in profiles() {
        for fault in [Fault::Error, Fault::ReadOnly] {
            for at in 0.. {
                let what = format!("{}, {placement:?}, change {at}, {fault:?}", profile.name);
                let (device, store) = formatted(&profile, placement);
                image(&store, b"old", &old).expect("an image");
                let before = device.changes();
                device.inject(Trigger::Change(at), fault);
                let done = image(&store, b"image", &new);
                if device.changes() - before <= at {
                    break;
                }
                if let Err(error) = done {
                    // Only where a flush was refused.
                    assert!(matches!(error, Error::ReadOnly(_) | Error::Device(_)), "{what}: {error}");
                    continue;
                }
                assert!(store.get(b"image").is_ok_and(|held| held == new), "{what}");
                assert_eq!(store.entry(b"image").map(|entry| entry.size), Ok(new.len() as u64), "{what}");
                assert!(store.get(b"old").is_ok_and(|held| held == old), "{what}");
                drop(store);
                let store = Store::open(device).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(store.get(b"image").is_ok_and(|held| held == new), "{what}");
            }
        }
    }
}

#[test]
fn an_abandoned_image_leaves_nothing() {
    for (profile, placement) in profiles() {
        let (_device, store) = formatted(&profile, placement);
        store.sync().expect("sync");
        let before = store.stats();
        for _ in 0..20 {
            let mut writer = store.writer(Class::Checkpoint).expect("a writer");
            writer.write(&bytes(3, 200_000)).expect("write");
        }
        store.sync().expect("sync");
        assert_eq!(store.stats().live_blocks, before.live_blocks);
        assert!(store.stats().free_zones + 4 >= before.free_zones, "{:?}", store.stats());
        check_clean(&store);
    }
}

#[test]
fn images_on_a_file_bypass_the_page_cache() {
    // Not in memory, where there is no direct I/O.
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("zones");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    drop(Conventional::create(file, 4096, 64, 1024).expect("zones"));
    let open = || {
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("a file");
        Arc::new(Conventional::open_direct(file).expect("a device"))
    };
    let store = Store::format(open(), Placement { stripe: 3, ..Placement::NONE }).expect("a store");
    let data = bytes(9, 25_000_007);
    std::thread::scope(|scope| {
        for number in 0..2_u8 {
            let (store, data) = (store.clone(), &data);
            scope.spawn(move || image(&store, &[number], data).expect("an image"));
        }
    });
    drop(store);
    let store = Store::open(open()).expect("a store");
    for number in 0..2_u8 {
        assert!(store.get(&[number]).expect("an image") == data);
        let mut reader = store.reader(&[number]).expect("a reader");
        assert!(read_by(&mut reader, 70_001).expect("an image") == data);
    }
    check_clean(&store);
}

/// Bytes that a file takes in its filesystem.
fn allocated(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).expect("a file")) * 512
}

#[test]
fn consecutive_images_reuse_zones() {
    /// Bytes of an image, and of a zone.
    const IMAGE: usize = 12 << 20;
    const ZONE: u64 = 1 << 20;
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = directory.path().join("zones");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    let space = rustix::fs::fstatvfs(&file).expect("a filesystem");
    if space.f_bavail < space.f_blocks / 7 {
        println!("SKIPPED: /var/tmp is short of space, where emptied zones are given back at once");
        return;
    }
    let device = Arc::new(Conventional::create(file, 4096, 64, ZONE / 4096).expect("zones"));
    let store = Store::format(device, Placement::NONE).expect("a store");
    let data = bytes(3, IMAGE);
    let mut most = 0;
    for _ in 0..20 {
        image(&store, b"image", &data).expect("room");
        store.sync().expect("sync");
        most = most.max(allocated(&path));
        store.remove(b"image").expect("an image");
        store.sync().expect("sync");
        // The next one finds blocks of the filesystem that are there, and written.
        assert!(allocated(&path) >= most, "{} of {most} bytes", allocated(&path));
    }
    assert!(most < 2 * IMAGE as u64, "{most} bytes for images of {IMAGE}, one at a time");
    drop(store);
    assert!(allocated(&path) < IMAGE as u64 / 2, "closed, it takes {} bytes", allocated(&path));
}

#[test]
fn a_small_image_on_a_file_takes_one_zone() {
    let file = tempfile::tempfile().expect("a file");
    let device = Arc::new(Conventional::create(file, 4096, 64, 2048).expect("zones"));
    let store = Store::format(device, Placement::NONE).expect("a store");
    for (megabytes, zones) in [(7, 1), (40, 6)] {
        image(&store, b"image", &bytes(4, megabytes << 20)).expect("room");
        let places = store.places(b"image").expect("an image").len();
        assert!(places <= zones, "{megabytes} MiB are in {places} zones of 8 MiB");
    }
}

/// All that a reader has, in parts of at most `part` bytes.
fn read_by(reader: &mut Reader, part: usize) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    let mut into = vec![0; part];
    loop {
        match reader.read(&mut into)? {
            0 => return Ok(all),
            read => all.extend_from_slice(&into[..read]),
        }
    }
}

#[test]
fn a_reader_reads_objects_and_reports_errors() {
    let (device, store) = formatted(&LARGE_ZONE.scaled(64, 512).with_limits(14, 14), Placement::NONE);
    for size in [0, 1, 4096, 5000, 1 << 20, (1 << 20) + 1, 5_000_000, 9 << 20] {
        let data = bytes(size as u64, size);
        for class in [Class::Normal, Class::Checkpoint] {
            store.put(b"a", class, &data).expect("put");
            let mut reader = store.reader(b"a").expect("a reader");
            assert_eq!(reader.size(), size as u64);
            assert!(read_by(&mut reader, 100_000).expect("an object") == data, "{size}");
            assert_eq!(reader.read(&mut [0]), Ok(0));
        }
    }
    // One that is given up in the middle, one whose object goes, and one with a block that is something else.
    let mut reader = store.reader(b"a").expect("a reader");
    assert!(reader.read(&mut [0; 100]).is_ok());
    drop(reader);
    let mut reader = store.reader(b"a").expect("a reader");
    assert!(reader.read(&mut [0; 100]).is_ok());
    store.remove(b"a").expect("remove");
    assert_eq!(read_by(&mut reader, 1 << 20), Err(Error::NotFound));
    assert_eq!(reader.read(&mut [0]), Err(Error::NotFound), "and so it stays");
    store.put(b"b", Class::Checkpoint, &bytes(4, 6 << 20)).expect("put");
    let zones = store.places(b"b").expect("places");
    device.corrupt(*zones.last().expect("a zone"), 1);
    let read = read_by(&mut store.reader(b"b").expect("a reader"), 1 << 20);
    assert!(matches!(read, Err(Error::Unreadable { .. })), "{read:?}");
    assert_eq!(store.reader(b"none").err(), Some(Error::NotFound));
}
