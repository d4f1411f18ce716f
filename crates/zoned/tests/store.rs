//! The store against a map in memory, on both profiles and on a file without zones; space, wear, and how much is moved.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use vellum_zoned::device::emulator::{LARGE_ZONE, Profile, Random, SMALL_ZONE};
use vellum_zoned::device::{Conventional, Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Error, Placement, Store, VERSION};

/// Zones in groups of which one is for checkpoints.
const GROUPS: Placement = Placement { groups: 4, checkpoint_groups: 1, stripe: 2 };

fn small() -> Profile {
    SMALL_ZONE.scaled(48, 16).with_limits(12, 12)
}

fn large() -> Profile {
    LARGE_ZONE.scaled(40, 48).with_limits(14, 14)
}

fn emulated(profile: Profile) -> Arc<dyn ZonedDevice> {
    Arc::new(Emulated::in_memory(profile, 1).expect("a device"))
}

fn devices() -> Vec<(Arc<dyn ZonedDevice>, Placement)> {
    let file = tempfile::tempfile().expect("a file");
    let conventional = Conventional::create(file, 4096, 40, 32).expect("a device");
    vec![
        (emulated(small()), GROUPS),
        (emulated(large()), Placement::NONE),
        (emulated(small().with_block_size(512).scaled(64, 64)), GROUPS),
        (Arc::new(conventional), Placement::NONE),
    ]
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.draw() as u8).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Put { name: u8, is_checkpoint: bool, len: usize, seed: u64 },
    WriteAt { name: u8, offset: usize, len: usize, seed: u64 },
    Remove { name: u8 },
    Rename { from: u8, to: u8 },
    GiveUp { len: usize },
    Sync,
    Collect,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..8_u8;
    prop_oneof![
        6 => (name(), any::<bool>(), 0..60_000_usize, any::<u64>())
            .prop_map(|(name, is_checkpoint, len, seed)| Op::Put { name, is_checkpoint, len, seed }),
        6 => (name(), 0..70_000_usize, 1..20_000_usize, any::<u64>())
            .prop_map(|(name, offset, len, seed)| Op::WriteAt { name, offset, len, seed }),
        2 => name().prop_map(|name| Op::Remove { name }),
        1 => (name(), name()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => (0..60_000_usize).prop_map(|len| Op::GiveUp { len }),
        2 => Just(Op::Sync),
        1 => Just(Op::Collect),
        1 => Just(Op::Reopen),
    ]
}

type Model = BTreeMap<Vec<u8>, (Class, Vec<u8>)>;

/// Does one thing to the store and to the map. Full devices may refuse it, and it has not happened then.
fn act(store: &mut Store, device: &Arc<dyn ZonedDevice>, model: &mut Model, op: &Op) {
    let name = |number: u8| vec![b'n', number];
    match op {
        Op::Put { name: number, is_checkpoint, len, seed } => {
            let class = if *is_checkpoint { Class::Checkpoint } else { Class::Normal };
            let data = bytes(*seed, *len);
            match store.put(&name(*number), class, &data) {
                Ok(()) => drop(model.insert(name(*number), (class, data))),
                Err(error) => assert_eq!(error, Error::NoSpace),
            }
        }
        Op::WriteAt { name: number, offset, len, seed } => {
            let data = bytes(*seed, *len);
            let result = store.write_at(&name(*number), *offset as u64, &data);
            let Some((_, known)) = model.get_mut(&name(*number)) else {
                assert_eq!(result, Err(Error::NotFound));
                return;
            };
            result.expect("room for an overwrite");
            known.resize(known.len().max(offset + len), 0);
            known[*offset..offset + len].copy_from_slice(&data);
        }
        Op::Remove { name: number } => {
            let known = model.remove(&name(*number)).map(drop).ok_or(Error::NotFound);
            assert_eq!(store.remove(&name(*number)), known);
        }
        Op::Rename { from, to } => {
            let known = model.remove(&name(*from)).ok_or(Error::NotFound);
            let result = store.rename(&name(*from), &name(*to));
            assert_eq!(result, known.clone().map(drop));
            if let Ok(object) = known {
                model.insert(name(*to), object);
            }
        }
        Op::GiveUp { len } => {
            let mut writer = store.writer(Class::Checkpoint).expect("a writer");
            writer.write(&bytes(1, *len)).expect("room");
        }
        Op::Sync => store.sync().expect("sync"),
        Op::Collect => drop(store.collect().expect("collect")),
        Op::Reopen => {
            store.sync().expect("sync");
            *store = Store::open(Arc::clone(device)).expect("a store");
        }
    }
}

fn compare(store: &Store, model: &Model) {
    let listed: Vec<Vec<u8>> = store.list().into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
    for (name, (class, data)) in model {
        let entry = store.entry(name).expect("an object");
        assert_eq!((entry.class, entry.size), (*class, data.len() as u64));
        assert!(store.get(name).expect("an object") == *data, "{name:?} holds something else");
        let mut part = vec![0; 5000];
        let from = data.len() / 3;
        let read = store.read(name, from as u64, &mut part).expect("read");
        assert_eq!(read, part.len().min(data.len() - from));
        assert!(part[..read] == data[from..from + read]);
    }
}

fn check_clean(store: &Store) {
    store.sync().expect("sync");
    let report = store.check().expect("a check");
    assert!(report.is_clean(), "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_a_map(ops in prop::collection::vec(op(), 1..60)) {
        for (device, placement) in devices() {
            let mut store = Store::format(Arc::clone(&device), placement).expect("a store");
            let mut model = Model::new();
            for op in &ops {
                act(&mut store, &device, &mut model, op);
            }
            compare(&store, &model);
            check_clean(&store);
            drop(store);
            let store = Store::open(device).expect("a store");
            compare(&store, &model);
            check_clean(&store);
        }
    }
}

#[test]
fn a_full_device_leaves_room_for_removals() {
    for (device, placement) in devices() {
        for class in [Class::Normal, Class::Checkpoint] {
            let store = Store::format(Arc::clone(&device), placement).expect("a store");
            let object = bytes(1, 30_000);
            let mut count = 0_u32;
            let refused = loop {
                match store.put(&count.to_le_bytes(), class, &object) {
                    Ok(()) => count += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused, Error::NoSpace);
            assert!(count > 5, "{count} objects");
            check_clean(&store);
            // All are there, and each of them can be removed, also after the store was opened again.
            let store = Store::open(Arc::clone(&device)).expect("a full store is opened");
            for number in 0..count {
                assert!(store.get(&number.to_le_bytes()).expect("an object") == object);
            }
            for number in 0..count {
                store.remove(&number.to_le_bytes()).expect("removing on a full device");
                store.sync().expect("and that is synced");
            }
            let again = (0..count).filter(|number| store.put(&number.to_le_bytes(), class, &object).is_ok());
            assert!(again.count() as u32 >= count - 1, "what was freed can be used");
            check_clean(&store);
        }
    }
}

#[test]
fn many_small_objects_fill_a_device_by_their_metadata() {
    let device = emulated(small());
    let store = Store::format(Arc::clone(&device), Placement::NONE).expect("a store");
    let name = |number: u32| [vec![b'x'; 200], number.to_le_bytes().to_vec()].concat();
    let mut count = 0_u32;
    while store.put(&name(count), Class::Normal, b"").is_ok() {
        count += 1;
        assert!(count < 100_000);
    }
    assert!(count > 100, "{count}");
    for number in 0..count {
        store.remove(&name(number)).expect("remove");
        if number % 50 == 0 {
            store.sync().expect("sync");
        }
    }
    check_clean(&store);
    assert!(store.stats().free_zones > store.stats().kept_back_zones);
}

#[test]
fn an_image_has_zones_of_its_own_in_its_group_and_is_freed_without_copying() {
    let device = emulated(small());
    let store = Store::format(Arc::clone(&device), GROUPS).expect("a store");
    store.put(b"data", Class::Normal, &bytes(1, 100_000)).expect("put");
    let before = store.stats();
    let image = bytes(2, 200_000);
    let mut writer = store.writer(Class::Checkpoint).expect("a writer");
    for part in image.chunks(7777) {
        writer.write(part).expect("write");
        // Others write meanwhile.
        store.put(b"beside", Class::Normal, part).expect("put");
    }
    writer.commit(b"image").expect("commit");
    store.sync().expect("sync");
    assert!(store.get(b"image").expect("the image") == image);
    let places = store.places(b"image").expect("places");
    assert!(places.iter().all(|zone| zone % 4 == 0), "{places:?}");
    let others = [store.places(b"data").expect("places"), store.places(b"beside").expect("places")].concat();
    assert!(others.iter().all(|zone| zone % 4 != 0), "{others:?}");
    let reports = |zones: &[u32]| {
        zones.iter().map(|zone| device.report(*zone).expect("report").pointer).collect::<Vec<_>>()
    };
    assert!(reports(&places).iter().all(|pointer| *pointer > 0));
    store.remove(b"image").expect("remove");
    store.sync().expect("sync");
    assert!(reports(&places).iter().all(|pointer| *pointer == 0), "its zones are reset");
    assert_eq!(store.stats().moved_blocks, before.moved_blocks, "nothing was copied");
    assert!(store.get(b"data").is_ok());
    check_clean(&store);
}

#[test]
fn zones_wear_evenly() {
    let device = emulated(small());
    let store = Store::format(Arc::clone(&device), Placement::NONE).expect("a store");
    // Half of the device holds what never changes.
    for number in 0..12_u8 {
        store.put(&[b'c', number], Class::Normal, &bytes(u64::from(number), 100_000)).expect("put");
    }
    let mut random = Random::new(5);
    store.put(b"hot", Class::Normal, &bytes(0, 200_000)).expect("put");
    for round in 0..20_000 {
        let offset = random.below(48) * 4096;
        store.write_at(b"hot", offset, &bytes(round, 4096)).expect("write");
        if round % 8 == 0 {
            store.sync().expect("sync");
        }
    }
    let stats = store.stats();
    println!(
        "resets from {} to {}; {} blocks written, {} moved",
        stats.resets[0], stats.resets[1], stats.written_blocks, stats.moved_blocks
    );
    assert!(stats.resets[1] > 40 && stats.resets[1] - stats.resets[0] <= 24, "{stats:?}");
    for number in 0..12_u8 {
        assert!(store.get(&[b'c', number]).expect("an object") == bytes(u64::from(number), 100_000));
    }
    check_clean(&store);
}

#[test]
fn overwrites_at_80_percent_full_move_little() {
    let device = emulated(LARGE_ZONE.scaled(256, 256).with_limits(14, 14));
    let store = Store::format(Arc::clone(&device), Placement::NONE).expect("a store");
    // Of what there is for data, without roots, log, and what is kept back: on so small a device a tenth of all.
    let blocks = (256 - 28) * 134 * 80 / 100;
    store.put(b"data", Class::Normal, &bytes(0, blocks * 4096)).expect("put");
    let mut random = Random::new(9);
    let before = store.stats();
    for round in 0..3 * blocks {
        let offset = random.below(blocks as u64) * 4096;
        store.write_at(b"data", offset, &[round as u8; 4096]).expect("write");
    }
    let after = store.stats();
    let written = (after.written_blocks - before.written_blocks) as f64;
    let amplification = 1.0 + (after.moved_blocks - before.moved_blocks) as f64 / written;
    println!("write amplification {amplification:.2}, {after:?}");
    assert!(amplification <= 2.5, "{amplification:.2}");
    check_clean(&store);
}

#[test]
fn a_read_only_open_changes_nothing() {
    let device = emulated(small());
    let store = Store::format(Arc::clone(&device), GROUPS).expect("a store");
    store.put(b"a", Class::Normal, b"hello").expect("put");
    store.sync().expect("sync");
    drop(store);
    let before = device.report_all().expect("a report");
    let store = Store::open_read_only(Arc::clone(&device)).expect("a store");
    assert_eq!(store.get(b"a").as_deref(), Ok(b"hello".as_slice()));
    assert!(matches!(store.put(b"b", Class::Normal, b"x"), Err(Error::ReadOnly(_))));
    assert!(matches!(store.remove(b"a"), Err(Error::ReadOnly(_))));
    assert!(store.check().expect("a check").is_clean());
    assert_eq!(device.report_all().expect("a report"), before);
}

#[test]
fn more_images_at_once_than_the_device_has_active_zones_for() {
    for (device, placement) in devices() {
        let store = Store::format(device, placement).expect("a store");
        let mut writers = Vec::new();
        let refused = (0..12_u8).find_map(|number| {
            let mut writer = store.writer(Class::Checkpoint).expect("a writer");
            let result = writer.write(&bytes(u64::from(number), 70_000)).and_then(|()| writer.flush());
            writers.push((number, writer));
            result.err()
        });
        // Everything else goes on, the log through several checkpoints too.
        for round in 0..300_u64 {
            store.put(&[b'n', round as u8 % 4], Class::Normal, &bytes(round, 9000)).expect("put");
            store.sync().expect("sync");
        }
        if refused.is_some() {
            assert!(matches!(refused, Some(Error::TooManyWriters | Error::NoSpace)), "{refused:?}");
            drop(writers.pop());
        }
        assert!(!writers.is_empty());
        for (number, writer) in writers {
            writer.commit(&[number]).expect("commit");
            assert!(store.get(&[number]).expect("an image") == bytes(u64::from(number), 70_000));
        }
        check_clean(&store);
    }
}

#[test]
fn readers_and_writers_side_by_side() {
    let device = emulated(large());
    let store = Store::format(device, Placement::NONE).expect("a store");
    store.put(b"still", Class::Normal, &bytes(1, 50_000)).expect("put");
    std::thread::scope(|scope| {
        for thread in 0..2_u8 {
            let store = store.clone();
            scope.spawn(move || {
                for round in 0..60_u64 {
                    let class = if thread == 0 { Class::Normal } else { Class::Checkpoint };
                    store.put(&[thread], class, &bytes(round, 70_000)).expect("put");
                    if round % 7 == 0 {
                        store.sync().expect("sync");
                    }
                }
            });
        }
        let store = store.clone();
        scope.spawn(move || {
            for _ in 0..200 {
                assert!(store.get(b"still").expect("it stays") == bytes(1, 50_000));
                store.collect().expect("collect");
            }
        });
    });
    assert!(store.get(&[0]).expect("an object") == bytes(59, 70_000));
    check_clean(&store);
}

/// The last root of each of the two zones for roots, as a program of this version would have written it.
fn rewrite_roots(device: &dyn ZonedDevice, version: u32) {
    /// Bytes of a root's form, of which the version is at 8, and the checksum, reckoned with zeros in its place, at 12.
    const FORM: usize = 80;
    for zone in 0..2 {
        let at = device.report(zone).expect("a zone").pointer;
        let mut block = vec![0; device.geometry().block_size as usize];
        device.read(zone, at - 1, &mut block).expect("a root");
        block[8..12].copy_from_slice(&version.to_le_bytes());
        block[12..16].fill(0);
        let sum = crc32c::crc32c(&block[..FORM]);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        device.write(zone, at, &block).expect("room for a root");
    }
}

#[test]
fn a_store_of_an_older_version_is_read_and_becomes_one_of_this_version() {
    for version in 1..=VERSION + 1 {
        for (device, placement) in devices() {
            let store = Store::format(Arc::clone(&device), placement).expect("a store");
            store.put(b"a", Class::Normal, b"before").expect("room");
            store.sync().expect("sync");
            drop(store);
            // What opening writes has been flushed before, as everything was in older versions.
            drop(Store::open(Arc::clone(&device)).expect("a store"));
            rewrite_roots(&*device, version);
            if version > VERSION {
                let refused = Store::open(device).expect_err("a version of the future").to_string();
                assert!(refused.contains(&format!("version {version}")), "{refused}");
                continue;
            }
            let store = Store::open_read_only(Arc::clone(&device)).expect("an older store");
            assert_eq!(store.get(b"a").expect("it is there"), b"before");
            drop(store);
            let store = Store::open(Arc::clone(&device)).expect("an older store");
            store.put(b"b", Class::Checkpoint, b"after").expect("room");
            store.sync().expect("sync");
            drop(store);
            let mut root = vec![0; device.geometry().block_size as usize];
            let at = device.report(0).expect("a zone").pointer;
            device.read(0, at - 1, &mut root).expect("a root");
            assert_eq!(root[8..12], VERSION.to_le_bytes());
            let store = Store::open(device).expect("a store");
            let found = [b"a", b"b"].map(|name| store.get(name).expect("it is there"));
            assert_eq!(found, [b"before".to_vec(), b"after".to_vec()]);
        }
    }
}
