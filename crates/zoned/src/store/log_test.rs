//! The longest first part of a log whose data are there, and how much is read to find it.

use super::change::{Change, Class, DeviceExtent};
use super::format::{Placement, Root};
use super::log::{Tail, replay};
use super::node::FIRST_OBJECT;
use super::state::State;
use crate::device::emulator::{Random, SMALL_ZONE};
use crate::device::{self, Emulated, Geometry, Zone, ZonedDevice};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const ZONES: u32 = 32;
const LOG: [u32; 2] = [2, 3];
const DATA: u32 = 4;

/// A device that counts what is read of it, in blocks.
#[derive(Debug)]
struct Counted {
    device: Emulated,
    read: AtomicU64,
}

impl ZonedDevice for Counted {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }
    fn report(&self, zone: u32) -> device::Result<Zone> {
        self.device.report(zone)
    }
    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> device::Result<()> {
        self.read.fetch_add((into.len() / 4096) as u64, Relaxed);
        self.device.read(zone, block, into)
    }
    fn write(&self, zone: u32, block: u64, data: &[u8]) -> device::Result<()> {
        self.device.write(zone, block, data)
    }
    fn append(&self, zone: u32, data: &[u8]) -> device::Result<u64> {
        self.device.append(zone, data)
    }
    fn reset(&self, zone: u32) -> device::Result<()> {
        self.device.reset(zone)
    }
    fn finish(&self, zone: u32) -> device::Result<()> {
        self.device.finish(zone)
    }
    fn open(&self, zone: u32) -> device::Result<()> {
        self.device.open(zone)
    }
    fn close(&self, zone: u32) -> device::Result<()> {
        self.device.close(zone)
    }
    fn flush(&self) -> device::Result<()> {
        self.device.flush()
    }
}

struct Scene {
    device: Counted,
    root: Root,
    tail: Tail,
    zone_blocks: u64,
}

impl Scene {
    fn new(zone_blocks: u64) -> Self {
        let profile = SMALL_ZONE.scaled(ZONES, zone_blocks);
        let device = Counted { device: Emulated::in_memory(profile, 1).unwrap(), read: AtomicU64::new(0) };
        let root = Root {
            uuid: [7; 16],
            generation: 1,
            log: LOG,
            log_id: 1,
            block_size: 4096,
            zones: ZONES,
            zone_blocks,
            placement: Placement::NONE,
        };
        Self { device, root, tail: Tail::new(1, 1, LOG), zone_blocks }
    }

    /// Writes a record that is written beside its data.
    fn record(&mut self, changes: &[Change]) {
        let mut encoded = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut encoded));
        let record = self.tail.record(&self.root, &encoded, true);
        for zone in LOG {
            self.device.device.write(zone, self.tail.at, &record).unwrap();
        }
        self.tail.at += (record.len() / 4096) as u64;
        self.tail.sequence += 1;
    }

    fn new_state(&self) -> State {
        State::new(vec![self.zone_blocks; ZONES as usize], 4096)
    }

    /// The state, how many records counted, and blocks that were read for it.
    fn replayed(&self) -> (State, u64, u64) {
        let before = self.device.read.load(Relaxed);
        let (state, replayed) = replay(&self.device, &self.root, || self.new_state()).unwrap();
        (state, replayed.records, self.device.read.load(Relaxed) - before)
    }
}

fn create(object: u64) -> Change {
    Change::Create { object, class: Class::Normal }
}

fn map(object: u64, at: u64, (zone, block): (u32, u32), sums: Vec<u32>) -> Change {
    Change::Map { object, at, place: DeviceExtent { zone, block }, size: 1 << 20, sums }
}

/// Each record has the object's one block elsewhere, and it is nowhere.
#[test]
fn a_log_without_data_is_read_three_times() {
    let mut scene = Scene::new(800);
    scene.record(&[create(FIRST_OBJECT)]);
    for block in 0..600 {
        scene.record(&[map(FIRST_OBJECT, 0, (DATA, block), vec![1])]);
    }
    let (state, records, read) = scene.replayed();
    assert_eq!(records, 1);
    assert!(state.objects[&FIRST_OBJECT].extents.is_empty());
    // Two copies, three times, and each lost block by itself.
    assert!(read < 601 * 2 * 4 + 601 * 3, "{read} blocks were read");
}

/// Many records speak of one block each, and then one extent of all of them lives.
#[test]
fn blocks_that_many_records_speak_of_are_read_once() {
    let mut scene = Scene::new(800);
    for block in 0..256 {
        scene.device.device.write(DATA, block, &[0; 4096]).unwrap();
    }
    let sum = super::blocks::sums(&[0; 4096], 4096)[0];
    scene.record(&[create(FIRST_OBJECT), create(FIRST_OBJECT + 1)]);
    for block in 0..256 {
        scene.record(&[map(FIRST_OBJECT, 0, (DATA, block), vec![sum])]);
    }
    scene.record(&[Change::Size { object: FIRST_OBJECT, size: 0 }]);
    scene.record(&[map(FIRST_OBJECT + 1, 0, (DATA, 0), vec![sum; 256])]);
    let (_, records, read) = scene.replayed();
    assert_eq!(records, 259);
    assert!(read < 259 * 2 * 2 + 256 * 2, "{read} blocks were read");
}

/// As the definition says it: every end is tried, from the last one on.
fn longest(scene: &Scene, records: &[Vec<Change>]) -> usize {
    (0..=records.len())
        .rev()
        .find(|end| {
            let mut state = scene.new_state();
            records[..*end].iter().flatten().for_each(|change| state.apply(change).unwrap());
            state.objects.values().flat_map(|object| object.extents.values()).all(|extent| {
                extent.sums.iter().enumerate().all(|(number, sum)| {
                    let (mut block, at) = (vec![0; 4096], u64::from(extent.place.block) + number as u64);
                    let read = scene.device.device.read(extent.place.zone, at, &mut block);
                    read.is_ok() && super::blocks::sums(&block, 4096)[0] == *sum
                })
            })
        })
        .unwrap()
}

#[test]
fn the_log_is_read_up_to_missing_data() {
    let mut cut = 0;
    for seed in 0..300 {
        let (mut random, mut scene) = (Random::new(seed), Scene::new(100));
        // Every block has a number of its own in it, and some another one.
        let wrong = random.below(100);
        let blocks: Vec<u8> = (0..80_u8).collect();
        for block in &blocks {
            let is_wrong = random.below(100) < wrong / 5;
            let byte = if is_wrong { 200 } else { *block };
            scene.device.device.write(DATA, u64::from(*block), &[byte; 4096]).unwrap();
        }
        let sum = |block: u32| super::blocks::sums(&[block as u8; 4096], 4096)[0];
        let mut records = vec![vec![create(FIRST_OBJECT), create(FIRST_OBJECT + 1)]];
        let mut next = 0;
        while next < 90 {
            let (object, at) = (FIRST_OBJECT + random.below(2), random.below(8));
            let count = 1 + random.below(4) as u32;
            let mut changes = vec![map(object, at, (DATA, next), (next..next + count).map(sum).collect())];
            next += count;
            if random.below(4) == 0 {
                let (at, count) = (random.below(8), 1 + random.below(4));
                changes.push(Change::Punch { object, at, count });
            }
            records.push(changes);
        }
        records.iter().for_each(|changes| scene.record(changes));
        let (_, found, _) = scene.replayed();
        let expected = longest(&scene, &records);
        cut += usize::from(expected < records.len());
        assert_eq!(found, expected as u64, "seed {seed}");
    }
    assert!(cut > 100, "{cut}");
}
