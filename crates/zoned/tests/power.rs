//! Losses of power, at every change of the device and with what may then be left, on both profiles.
//!
//! A history of puts, removes, renames and syncs is run until the device loses power at its n-th change, for every n. Whatever of it survives,
//! the store that is then opened holds what the history had made at some moment between the last sync that was answered and the loss. And that
//! again when power is lost while the store is being opened.

use std::collections::BTreeMap;
use std::sync::Arc;
use vellum_zoned::device::emulator::{Fault, LARGE_ZONE, Profile, Random, SMALL_ZONE, Survival, Trigger};
use vellum_zoned::device::{Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Placement, Store};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Both, each also with pointers that are found ahead of what was written.
fn profiles() -> [(Profile, Placement); 4] {
    let placed = Placement { groups: 4, checkpoint_groups: 1, stripe: 2 };
    let small = SMALL_ZONE.scaled(32, 8).with_limits(12, 12);
    let large = LARGE_ZONE.scaled(24, 24).with_limits(14, 14);
    [
        (small.clone(), placed),
        (small.running_ahead(), placed),
        (large.clone(), Placement::NONE),
        (large.running_ahead(), Placement::NONE),
    ]
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.draw() as u8).collect()
}

/// How far a history has come: what the store held after each step, and which of these a sync has made sure.
struct Past {
    moments: Vec<Model>,
    synced: usize,
}

/// Runs a history that follows from `seed`, until the device has no power.
fn run(store: &Store, seed: u64, steps: usize) -> Past {
    let mut random = Random::new(seed);
    let mut past = Past { moments: vec![Model::new()], synced: 0 };
    for step in 0..steps as u64 {
        let mut next = past.moments.last().expect("a moment").clone();
        let name = vec![b'n', random.below(5) as u8];
        let done = match random.below(10) {
            0..=4 => {
                let class = if random.below(2) == 0 { Class::Normal } else { Class::Checkpoint };
                let data = bytes(seed ^ step, random.below(30_000) as usize);
                next.insert(name.clone(), data.clone());
                store.put(&name, class, &data)
            }
            5 => {
                if next.remove(&name).is_none() {
                    continue;
                }
                store.remove(&name)
            }
            6 => {
                let Some(data) = next.remove(&name) else { continue };
                next.insert(b"renamed".to_vec(), data);
                store.rename(&name, b"renamed")
            }
            7 => store.collect().map(drop),
            _ => store.sync().map(|()| past.synced = past.moments.len() - 1),
        };
        // What was refused for want of power may be there nevertheless.
        past.moments.push(next);
        if done.is_err() {
            break;
        }
    }
    past
}

/// What a store holds, all of it read.
fn held(store: &Store) -> Model {
    store
        .list()
        .into_iter()
        .map(|entry| (entry.name.clone(), store.get(&entry.name).expect("readable")))
        .collect()
}

fn found(device: &Arc<Emulated>, past: &Past, what: &str) {
    // What a loss of power may leave is no damage.
    let looked = Store::open_read_only(Arc::clone(device) as Arc<dyn ZonedDevice>);
    let report = looked.unwrap_or_else(|error| panic!("{what}: {error}")).check().expect("a check");
    assert!(report.is_clean(), "{what}, before it is opened to be written: {report:?}");
    let store = Store::open(Arc::clone(device) as Arc<dyn ZonedDevice>)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let held = held(&store);
    let at = past.moments[past.synced..].iter().position(|moment| *moment == held);
    assert!(
        at.is_some(),
        "{what}: holds what never was between the last sync and the loss: {:?}",
        held.keys()
    );
    store.sync().expect("sync");
    let report = store.check().expect("a check");
    assert!(report.is_clean(), "{what}: {report:?}");
    // And it can be used.
    store.put(b"after", Class::Normal, b"power").unwrap_or_else(|error| panic!("{what}: {error}"));
    store.sync().expect("sync");
    assert_eq!(store.get(b"after").as_deref(), Ok(b"power".as_slice()));
}

fn survivals(seed: u64) -> Vec<Survival> {
    let drawn = (0..4).map(|number| Survival::Drawn(seed * 31 + number));
    [Survival::Nothing, Survival::Everything].into_iter().chain(drawn).collect()
}

fn device(profile: &Profile, seed: u64) -> Arc<Emulated> {
    Arc::new(Emulated::in_memory(profile.clone(), seed).expect("a device"))
}

fn formatted(profile: &Profile, placement: Placement, seed: u64) -> (Arc<Emulated>, Store) {
    let device = device(profile, seed);
    let store = Store::format(Arc::clone(&device) as Arc<dyn ZonedDevice>, placement).expect("a store");
    (device, store)
}

fn every_loss(seed: u64, steps: usize, stride: usize) {
    println!("seed {seed}");
    let mut losses = 0;
    for (profile, placement) in profiles() {
        let (whole, store) = formatted(&profile, placement, seed);
        let before = whole.changes();
        run(&store, seed, steps);
        let changes = whole.changes() - before;
        assert!(changes > 20, "{changes} changes");
        for at in (0..changes).step_by(stride) {
            let (device, store) = formatted(&profile, placement, seed);
            device.inject(Trigger::Change(at), Fault::PowerLoss);
            let past = run(&store, seed, steps);
            for survival in survivals(seed + at) {
                let after = Arc::new(device.after_power_loss(survival).expect("a device"));
                found(&after, &past, &format!("{}, seed {seed}, change {at}, {survival:?}", profile.name));
                losses += 1;
            }
        }
    }
    println!("{losses} losses");
}

#[test]
fn at_every_change() {
    (0..6).for_each(|seed| every_loss(seed, 40, 1));
}

#[test]
fn in_long_histories() {
    (100..104).for_each(|seed| every_loss(seed, 300, 23));
}

#[test]
fn while_the_store_is_opened() {
    for (profile, placement) in profiles() {
        for seed in 0..8 {
            let (device, store) = formatted(&profile, placement, seed);
            device.inject(Trigger::Change(60 + seed * 9), Fault::PowerLoss);
            let past = run(&store, seed, 60);
            for at in 0.. {
                let again = Arc::new(device.after_power_loss(Survival::Drawn(seed)).expect("a device"));
                again.inject(Trigger::Change(at), Fault::PowerLoss);
                let opened = Store::open(Arc::clone(&again) as Arc<dyn ZonedDevice>);
                for survival in survivals(seed + at) {
                    let after = Arc::new(again.after_power_loss(survival).expect("a device"));
                    found(
                        &after,
                        &past,
                        &format!("{}, seed {seed}, at {at} of opening, {survival:?}", profile.name),
                    );
                }
                if opened.is_ok() {
                    break;
                }
            }
        }
    }
}

/// Each block of what a write was under way to is as it was or as it is to be; nothing else has changed.
#[test]
fn overwrites_are_atomic_per_block() {
    for (profile, placement) in profiles() {
        for at in 0..40 {
            let (device, store) = formatted(&profile, placement, 1);
            let old = vec![1; 40_000];
            store.put(b"a", Class::Normal, &old).expect("put");
            store.put(b"b", Class::Normal, &old).expect("put");
            store.sync().expect("sync");
            device.inject(Trigger::Change(at), Fault::PowerLoss);
            let written = store.write_at(b"a", 5000, &vec![2; 20_000]);
            let synced = written.and_then(|()| store.sync());
            for survival in survivals(at) {
                let after = Arc::new(device.after_power_loss(survival).expect("a device"));
                let store = Store::open(after as Arc<dyn ZonedDevice>).expect("a store");
                assert_eq!(store.get(b"b").expect("b"), old);
                let held = store.get(b"a").expect("a");
                let mut new = old.clone();
                new[5000..25_000].fill(2);
                assert_eq!(held.len(), old.len());
                for (number, block) in held.chunks(4096).enumerate() {
                    let range = number * 4096..number * 4096 + block.len();
                    let is_new = block == &new[range.clone()];
                    assert!(
                        is_new || (synced.is_err() && block == &old[range]),
                        "block {number}, change {at}"
                    );
                }
            }
        }
    }
}

/// Ending a process is no loss of power: what was written stays, in whatever order.
#[test]
fn a_store_that_is_not_closed_is_opened_again() {
    for (profile, placement) in profiles() {
        let (device, store) = formatted(&profile, placement, 3);
        let mut writer = store.writer(Class::Checkpoint).expect("a writer");
        writer.write(&bytes(1, 50_000)).expect("write");
        store.put(b"a", Class::Normal, b"1").expect("put");
        store.sync().expect("sync");
        store.put(b"a", Class::Normal, b"2").expect("put");
        // Its threads end with a process, and not with a test: nothing of theirs may be under way.
        writer.flush().expect("flush");
        std::mem::forget(writer);
        let again = Store::open(device as Arc<dyn ZonedDevice>).expect("a store");
        assert_eq!(again.get(b"a").as_deref(), Ok(b"1".as_slice()));
        assert_eq!(again.list().len(), 1, "an image that was not whole is gone");
        assert_eq!(again.stats().live_blocks, 1, "with its blocks");
        let report = again.check().expect("a check");
        assert!(report.is_clean(), "{report:?}");
    }
}
