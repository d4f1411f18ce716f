//! A device that counts what is written to it, whatever the store says of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vellum_zoned::device::{Geometry, Result, Zone, ZonedDevice};

#[derive(Debug)]
pub(super) struct CountingDevice {
    device: Arc<dyn ZonedDevice>,
    blocks: AtomicU64,
}

impl CountingDevice {
    pub(super) fn new(device: Arc<dyn ZonedDevice>) -> Self {
        Self { device, blocks: AtomicU64::new(0) }
    }

    /// Blocks written so far.
    pub(super) fn blocks(&self) -> u64 {
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

    fn report(&self, zone: u32) -> Result<Zone> {
        self.device.report(zone)
    }

    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        self.device.read(zone, block, into)
    }

    fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()> {
        self.count(data);
        self.device.write(zone, block, data)
    }

    fn append(&self, zone: u32, data: &[u8]) -> Result<u64> {
        self.count(data);
        self.device.append(zone, data)
    }

    fn reset(&self, zone: u32) -> Result<()> {
        self.device.reset(zone)
    }

    fn finish(&self, zone: u32) -> Result<()> {
        self.device.finish(zone)
    }

    fn open(&self, zone: u32) -> Result<()> {
        self.device.open(zone)
    }

    fn close(&self, zone: u32) -> Result<()> {
        self.device.close(zone)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
}
