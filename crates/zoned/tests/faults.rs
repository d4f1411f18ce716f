//! Zones that fail, writes that fail, and blocks that hold something else: what suffers is the object concerned, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use vellum_zoned::device::emulator::{Fault, LARGE_ZONE, Profile, Random, SMALL_ZONE, Survival, Trigger};
use vellum_zoned::device::{Condition, Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Error, Placement, Store};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn profiles() -> [(Profile, Placement); 2] {
    [
        (
            SMALL_ZONE.scaled(48, 16).with_limits(12, 12),
            Placement { groups: 4, checkpoint_groups: 1, stripe: 2 },
        ),
        (LARGE_ZONE.scaled(32, 48).with_limits(14, 14), Placement::NONE),
    ]
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.draw() as u8).collect()
}

fn formatted(profile: &Profile, placement: Placement) -> (Arc<Emulated>, Store) {
    let device = Arc::new(Emulated::in_memory(profile.clone(), 1).expect("a device"));
    let store = Store::format(as_device(&device), placement).expect("a store");
    (device, store)
}

fn as_device(device: &Arc<Emulated>) -> Arc<dyn ZonedDevice> {
    Arc::clone(device) as Arc<dyn ZonedDevice>
}

/// Some objects of both classes.
fn filled(store: &Store) -> Model {
    let mut model = Model::new();
    for number in 0..8_u8 {
        let class = if number % 2 == 0 { Class::Normal } else { Class::Checkpoint };
        let data = bytes(u64::from(number), 25_000 + 1000 * usize::from(number));
        store.put(&[number], class, &data).expect("put");
        model.insert(vec![number], data);
    }
    store.sync().expect("sync");
    model
}

/// All objects are as they should be, but for those that have blocks in a zone that cannot be read; how many those are.
fn compare(store: &Store, device: &Emulated, model: &Model) -> usize {
    assert_eq!(store.list().len(), model.len());
    let is_offline = |zone: &u32| device.report(*zone).is_ok_and(|zone| zone.condition == Condition::Offline);
    let mut unreadable = 0;
    for (name, data) in model {
        match store.get(name) {
            Ok(held) => assert!(held == *data, "{name:?} holds something else"),
            Err(Error::Unreadable { zone, .. }) => {
                assert!(zone == u32::MAX || is_offline(&zone), "{name:?} cannot be read, but could be");
                unreadable += 1;
            }
            Err(error) => panic!("{name:?}: {error}"),
        }
    }
    unreadable
}

#[test]
fn an_offline_zone_loses_only_its_objects() {
    for (profile, placement) in profiles() {
        for name in 0..8_u8 {
            let (device, store) = formatted(&profile, placement);
            let mut model = filled(&store);
            let zone = *store.places(&[name]).expect("places").first().expect("a zone");
            let hit = model.keys().filter(|name| store.places(name).expect("places").contains(&zone)).count();
            device.fail_zone(zone, Condition::Offline);
            assert_eq!(compare(&store, &device, &model), hit);
            assert!(matches!(store.get(&[name]), Err(Error::Unreadable { .. })));
            let store = Store::open(as_device(&device)).expect("a store");
            assert_eq!(compare(&store, &device, &model), hit);
            let report = store.check().expect("a check");
            assert_eq!(report.unreadable.len(), hit);
            // It can be written anew, and removed.
            store.put(&[name], Class::Normal, b"new").expect("put");
            model.insert(vec![name], b"new".to_vec());
            assert_eq!(compare(&store, &device, &model), hit - 1);
            for name in model.keys() {
                store.remove(name).expect("remove");
            }
            store.sync().expect("sync");
            assert!(store.check().expect("a check").is_clean());
        }
    }
}

#[test]
fn data_of_a_read_only_zone_is_moved() {
    for (profile, placement) in profiles() {
        for name in 0..8_u8 {
            let (device, store) = formatted(&profile, placement);
            let model = filled(&store);
            let zones = store.places(&[name]).expect("places");
            zones.iter().for_each(|zone| device.fail_zone(*zone, Condition::ReadOnly));
            assert_eq!(compare(&store, &device, &model), 0);
            let store = Store::open(as_device(&device)).expect("a store");
            store.sync().expect("sync");
            assert!(store.places(&[name]).expect("places").iter().all(|zone| !zones.contains(zone)));
            // It needs the zones no longer.
            zones.iter().for_each(|zone| device.fail_zone(*zone, Condition::Offline));
            assert_eq!(compare(&store, &device, &model), 0);
            assert!(store.check().expect("a check").is_clean());
        }
    }
}

/// A history with an error at one change of the device: every change in turn.
#[test]
fn a_failed_change_affects_no_other_object() {
    for (profile, placement) in profiles() {
        let changes = {
            let (device, store) = formatted(&profile, placement);
            let before = device.changes();
            history(&store, &mut filled(&store));
            device.changes() - before
        };
        let mut refused = 0;
        for fault in [Fault::Error, Fault::ReadOnly, Fault::Offline] {
            for at in 0..changes {
                let (device, store) = formatted(&profile, placement);
                device.inject(Trigger::Change(at), fault);
                let what = format!("{}, {fault:?} at change {at}", profile.name);
                let mut model = Model::new();
                let done = fill_and_more(&store, &mut model);
                if let Err(error) = done {
                    // A flush that failed: nobody can say what is durable, so nothing is written any more.
                    let is_flush = matches!(error, Error::Device(_) | Error::ReadOnly(_));
                    assert!(is_flush, "{what}: {error}");
                    assert!(
                        matches!(store.put(b"x", Class::Normal, b"x"), Err(Error::ReadOnly(_))),
                        "{what}: {error}"
                    );
                    refused += 1;
                    let after = Arc::new(device.after_power_loss(Survival::Drawn(at)).expect("a device"));
                    let store =
                        Store::open(as_device(&after)).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(store.check().expect("a check").problems.is_empty(), "{what}");
                    continue;
                }
                store.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
                let lost = compare(&store, &device, &model);
                let store = Store::open(as_device(&device)).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(compare(&store, &device, &model), lost, "{what}");
                let most = if fault == Fault::Offline { 8 } else { 0 };
                assert!(lost <= most, "{what}: {lost} objects are lost");
            }
        }
        println!("{}: 3 x {changes} errors, of which {refused} were of flushes", profile.name);
        assert!(refused > 0 && refused < changes, "{refused} of {changes}");
    }
}

fn fill_and_more(store: &Store, model: &mut Model) -> Result<(), Error> {
    for number in 0..8_u8 {
        let class = if number % 2 == 0 { Class::Normal } else { Class::Checkpoint };
        let data = bytes(u64::from(number), 25_000 + 1000 * usize::from(number));
        store.put(&[number], class, &data)?;
        model.insert(vec![number], data);
    }
    store.sync()?;
    try_history(store, model)
}

fn history(store: &Store, model: &mut Model) {
    try_history(store, model).expect("nothing fails");
}

fn try_history(store: &Store, model: &mut Model) -> Result<(), Error> {
    for round in 0..3_u8 {
        for number in 0..4_u8 {
            let data = bytes(u64::from(round) * 10 + u64::from(number), 30_000);
            store.put(&[number], Class::Normal, &data)?;
            model.insert(vec![number], data);
        }
        store.remove(&[4 + round])?;
        model.remove(&vec![4 + round]);
        store.sync()?;
        store.collect()?;
    }
    Ok(())
}

#[test]
fn a_corrupt_block_affects_only_its_object() {
    for (profile, placement) in profiles() {
        let (device, store) = formatted(&profile, placement);
        let model = filled(&store);
        let zone = store.places(&[3]).expect("places")[0];
        device.corrupt(zone, 0);
        let lost: Vec<&Vec<u8>> = model.keys().filter(|name| store.get(name).is_err()).collect();
        assert_eq!(lost.len(), 1);
        let name = lost[0].clone();
        // The rest of it can be read.
        let mut end = vec![0; 1000];
        let offset = model[&name].len() as u64 - 1000;
        assert_eq!(store.read(&name, offset, &mut end), Ok(1000));
        assert!(
            matches!(store.read(&name, 0, &mut end), Err(Error::Unreadable { zone: of, block: 0, .. }) if of == zone)
        );
        assert_eq!(store.check().expect("a check").unreadable.len(), 1);
        // It stays so when its zone is collected, and is never taken for something sound.
        while store.collect().expect("collect") && store.places(&name).expect("places").contains(&zone) {}
        assert!(store.get(&name).is_err());
        let store = Store::open(as_device(&device)).expect("a store");
        assert!(store.get(&name).is_err());
        assert_eq!(model.keys().filter(|name| store.get(name).is_err()).count(), 1);
        store.write_at(&name, 0, &vec![0; 100_000]).expect("an overwrite of whole blocks");
        assert_eq!(store.get(&name), Ok(vec![0; 100_000]));
    }
}

#[test]
fn a_read_error_affects_only_its_object() {
    for (profile, placement) in profiles() {
        let (device, store) = formatted(&profile, placement);
        let model = filled(&store);
        let zone = store.places(&[1]).expect("places")[0];
        device.inject(Trigger::ReadOf(zone, 0), Fault::Error);
        assert_eq!(model.keys().filter(|name| store.get(name).is_err()).count(), 1);
    }
}

#[test]
fn metadata_survive_the_loss_of_any_one_zone() {
    for (profile, placement) in profiles() {
        let zones = {
            let (_, store) = formatted(&profile, placement);
            filled(&store);
            [vec![0, 1], store.log_zones().concat()].concat()
        };
        for zone in zones {
            for condition in [Condition::ReadOnly, Condition::Offline] {
                let (device, store) = formatted(&profile, placement);
                let mut model = filled(&store);
                device.fail_zone(zone, condition);
                // While it is used, and when it is opened.
                store.put(b"more", Class::Normal, b"more").expect("put");
                model.insert(b"more".to_vec(), b"more".to_vec());
                store.sync().expect("sync");
                assert_eq!(compare(&store, &device, &model), 0);
                let (device, store) = formatted(&profile, placement);
                let model = filled(&store);
                drop(store);
                device.fail_zone(zone, condition);
                let store =
                    Store::open(as_device(&device)).unwrap_or_else(|error| panic!("zone {zone}: {error}"));
                assert_eq!(compare(&store, &device, &model), 0);
                store.put(b"more", Class::Normal, b"more").expect("put");
                store.sync().expect("sync");
            }
        }
    }
}

#[test]
fn a_torn_record_is_read_from_its_other_copy() {
    for (profile, placement) in profiles() {
        let blocks = {
            let (device, store) = formatted(&profile, placement);
            filled(&store);
            device.report(store.log_zones()[0][0]).expect("report").pointer
        };
        assert!(blocks >= 2);
        for block in 0..blocks {
            for copy in 0..2 {
                let (device, store) = formatted(&profile, placement);
                let model = filled(&store);
                device.corrupt(store.log_zones()[0][copy], block);
                let report = store.check().expect("a check");
                assert!(!report.problems.is_empty(), "block {block} of copy {copy}: {report:?}");
                drop(store);
                let store = Store::open(as_device(&device)).expect("a store");
                assert_eq!(compare(&store, &device, &model), 0);
                assert!(store.check().expect("a check").is_clean(), "the log is whole again");
            }
            // A closed store says it, too; but of its last record nobody knows whether it was written twice.
            for copy in 0..2 {
                let (device, store) = formatted(&profile, placement);
                filled(&store);
                let zone = store.log_zones()[0][copy];
                drop(store);
                device.corrupt(zone, block);
                let report =
                    Store::open_read_only(as_device(&device)).expect("a store").check().expect("a check");
                let last = device.report(zone).expect("report").pointer - 1;
                assert_eq!(report.is_clean(), block == last, "block {block} of copy {copy}: {report:?}");
                assert_eq!(report.notes.is_empty(), block < last, "block {block} of copy {copy}: {report:?}");
            }
            // Both copies: this is said, and nothing is taken for the end of the log that was synced and is followed by more.
            if block + 1 < blocks {
                let (device, store) = formatted(&profile, placement);
                filled(&store);
                store.put(b"later", Class::Normal, b"x").expect("put");
                store.sync().expect("sync");
                let [first, second] = store.log_zones()[0];
                device.corrupt(first, block);
                device.corrupt(second, block);
                let opened = Store::open(as_device(&device));
                assert!(matches!(opened, Err(Error::Damaged(_))), "block {block}: {opened:?}");
            }
        }
    }
}

#[test]
fn a_device_without_a_store_is_refused() {
    let (profile, placement) = profiles()[0].clone();
    let device = Arc::new(Emulated::in_memory(profile.clone(), 1).expect("a device"));
    assert!(matches!(Store::open(as_device(&device)), Err(Error::Damaged(_))));
    device.write(0, 0, &bytes(1, 4096)).expect("write");
    assert!(matches!(Store::open(as_device(&device)), Err(Error::Damaged(_))));
    let (device, store) = formatted(&profile, placement);
    drop(store);
    for zone in 0..2 {
        for block in 0..device.report(zone).expect("report").pointer {
            device.corrupt(zone, block);
        }
    }
    assert!(matches!(Store::open(as_device(&device)), Err(Error::Damaged(_))));
    let few = Arc::new(Emulated::in_memory(profile.scaled(8, 16), 1).expect("a device"));
    assert!(matches!(Store::format(as_device(&few), placement), Err(Error::Damaged(_))));
}

/// Nothing follows it in the log, but the store was closed.
#[test]
fn damage_of_the_last_sync_is_reported_and_isolated() {
    for (profile, placement) in profiles() {
        let (device, store) = formatted(&profile, placement);
        store.put(b"old", Class::Normal, &bytes(1, 9000)).expect("put");
        store.sync().expect("sync");
        store.put(b"new", Class::Checkpoint, &bytes(2, 9000)).expect("put");
        store.sync().expect("sync");
        let zone = store.places(b"new").expect("places")[0];
        drop(store);
        device.corrupt(zone, 0);
        let store = Store::open(as_device(&device)).expect("a store");
        assert!(matches!(store.get(b"new"), Err(Error::Unreadable { .. })), "{:?}", store.list());
        assert_eq!(store.get(b"old"), Ok(bytes(1, 9000)));
    }
}
