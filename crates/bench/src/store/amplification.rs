//! How often a block is written in the end, when a store that is 80 % full is overwritten: over time, on an emulated device, so that
//! the same numbers come out on every machine.

use super::fixture::{BLOCK, of_store};
use crate::failure::{Result, While};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vellum_zoned::device::emulator::{LARGE_ZONE, Random};
use vellum_zoned::device::{self, Emulated, Geometry, Zone, ZonedDevice};
use vellum_zoned::store::{Class, Placement, Store};

/// Zones of the device, and blocks of each.
const ZONES: u32 = 512;
const ZONE_BLOCKS: u64 = 512;
/// Part of the blocks for data that are live.
const FULL: f64 = 0.8;
/// How often all of it is overwritten.
const TIMES: u64 = 8;
/// Numbers for each time.
const MOMENTS_EACH: u64 = 4;
/// Overwrites between two syncs.
const SYNC_EVERY: u64 = 64;
/// Of a skewed pattern: so much of the overwrites goes to so little of the blocks, in percent.
const SKEW: (u64, u64) = (80, 20);

/// Which blocks are overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// All alike.
    Uniform,
    /// Four fifths of the overwrites go to a fifth of the blocks.
    Skewed,
}

/// What was written until some moment since the one before.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Moment {
    /// How often all was overwritten so far.
    pub overwritten: f64,
    /// Times that a block of data was written, moves included.
    pub data: f64,
    /// Times that a block was written, with log and roots.
    pub all: f64,
}

/// A pattern, over time.
#[derive(Clone, Debug, Serialize)]
pub struct Amplification {
    pub pattern: Pattern,
    /// Numbers over time.
    pub moments: Vec<Moment>,
}

impl Pattern {
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Skewed];

    /// As tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "all blocks alike",
            Self::Skewed => "80 % to a fifth",
        }
    }

    fn draw(self, random: &mut Random, blocks: u64) -> u64 {
        let hot = blocks * SKEW.1 / 100;
        match self {
            Self::Uniform => random.below(blocks),
            Self::Skewed if random.below(100) < SKEW.0 => random.below(hot.max(1)),
            Self::Skewed => hot + random.below((blocks - hot).max(1)),
        }
    }
}

pub(super) fn measure(pattern: Pattern, scale: f64) -> Result<Amplification> {
    let zones = ((f64::from(ZONES) * scale) as u32).clamp(128, ZONES);
    let device = Emulated::in_memory(LARGE_ZONE.scaled(zones, ZONE_BLOCKS), 1);
    let device = Arc::new(CountingDevice::new(Arc::new(device.doing(|| "an emulated device")?)));
    let shared = Arc::clone(&device) as Arc<dyn ZonedDevice>;
    let store = of_store(Store::format(shared, Placement::NONE))?;
    let blocks = (store.space().0 as f64 * FULL) as u64;
    let data = vec![1; (BLOCK << 8) as usize];
    let mut writer = of_store(store.writer(Class::Normal))?;
    for at in (0..blocks).step_by(1 << 8) {
        let some = (blocks - at).min(1 << 8) * BLOCK;
        of_store(writer.write(&data[..some as usize]))?;
    }
    of_store(writer.commit(b"data"))?;
    of_store(store.sync())?;
    let mut random = Random::new(9);
    let mut moments = Vec::new();
    let each = blocks / MOMENTS_EACH;
    for moment in 1..=TIMES * MOMENTS_EACH {
        crate::interrupt::check()?;
        let (before, all) = (store.stats(), device.blocks());
        for number in 0..each {
            let at = pattern.draw(&mut random, blocks) * BLOCK;
            of_store(store.write_at(b"data", at, &data[..BLOCK as usize]))?;
            if number % SYNC_EVERY == 0 {
                of_store(store.sync())?;
            }
        }
        let after = store.stats();
        let moved = after.moved_blocks - before.moved_blocks;
        moments.push(Moment {
            overwritten: moment as f64 / MOMENTS_EACH as f64,
            data: 1.0 + moved as f64 / each as f64,
            all: (device.blocks() - all) as f64 / each as f64,
        });
    }
    Ok(Amplification { pattern, moments })
}

/// Counts what is written to a device, whatever the store says of that.
#[derive(Debug)]
struct CountingDevice {
    device: Arc<dyn ZonedDevice>,
    blocks: AtomicU64,
}

impl CountingDevice {
    fn new(device: Arc<dyn ZonedDevice>) -> Self {
        Self { device, blocks: AtomicU64::new(0) }
    }

    /// Blocks written so far.
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    fn count(&self, data: &[u8]) {
        let blocks = data.len() as u64 / u64::from(self.geometry().block_size);
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }
}

impl ZonedDevice for CountingDevice {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn report(&self, zone: u32) -> device::Result<Zone> {
        self.device.report(zone)
    }

    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> device::Result<()> {
        self.device.read(zone, block, into)
    }

    fn write(&self, zone: u32, block: u64, data: &[u8]) -> device::Result<()> {
        self.count(data);
        self.device.write(zone, block, data)
    }

    fn append(&self, zone: u32, data: &[u8]) -> device::Result<u64> {
        self.count(data);
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
