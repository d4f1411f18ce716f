//! A file or a disk without zones, used as a zoned device.

use super::error::Result;
use super::geometry::Geometry;
use super::machine::Machine;
use super::zone::Zone;
use super::zone_file::{CONVENTIONAL, Shape, ZoneFile};
use super::zoned_device::ZonedDevice;
use parking_lot::RwLock;
use std::fs::File;

/// Most bytes of one write.
const WRITE_MAX: u64 = 1 << 30;

/// A file or a disk on which zones are laid out. No zone ever fails by itself, and there is no limit of open zones.
#[derive(Debug)]
pub struct Conventional {
    geometry: Geometry,
    uuid: [u8; 16],
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    file: ZoneFile,
}

impl Conventional {
    /// Lays `zones` zones of `zone_blocks` blocks out on `file`. What it held is lost; a regular file gets the size that is needed.
    pub fn create(file: File, block_size: u32, zones: u32, zone_blocks: u64) -> Result<Self> {
        let write_blocks_max = WRITE_MAX / u64::from(block_size.max(1));
        let geometry =
            Geometry { block_size, zones, zone_blocks, open_max: 0, active_max: 0, write_blocks_max };
        let mut label = [0; 32];
        label[..CONVENTIONAL.len()].copy_from_slice(CONVENTIONAL.as_bytes());
        let file =
            ZoneFile::create(file, Shape { geometry: geometry.clone(), capacity: zone_blocks, label })?;
        let machine = Machine::empty(&geometry, zone_blocks)?;
        Ok(Self { geometry, uuid: file.uuid(), inner: RwLock::new(Inner { machine, file }) })
    }

    /// Opens what [`create`](Self::create) has made.
    pub fn open(file: File) -> Result<Self> {
        let (file, zones) = ZoneFile::open(file)?;
        let geometry = file.shape().geometry.clone();
        let machine = Machine::new(&geometry, zones)?;
        Ok(Self { geometry, uuid: file.uuid(), inner: RwLock::new(Inner { machine, file }) })
    }

    /// Drawn when the zones were laid out.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn put(&self, zone: u32, block: Option<u64>, data: &[u8]) -> Result<u64> {
        let blocks = self.geometry.blocks_of_write(data.len())?;
        let inner = &mut *self.inner.write();
        let at = inner.machine.begin_write(zone, block, blocks)?;
        inner.file.write(zone, at, data, inner.machine.zones())?;
        inner.machine.wrote(zone, blocks);
        inner.file.note(zone);
        Ok(at)
    }
}

impl ZonedDevice for Conventional {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn report(&self, zone: u32) -> Result<Zone> {
        self.inner.read().machine.zone(zone)
    }

    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        let blocks = self.geometry.blocks_of(into.len())?;
        let inner = self.inner.read();
        inner.machine.check_read(zone, block, blocks)?;
        inner.file.read(zone, block, into)
    }

    fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()> {
        self.put(zone, Some(block), data).map(drop)
    }

    fn append(&self, zone: u32, data: &[u8]) -> Result<u64> {
        self.put(zone, None, data)
    }

    fn reset(&self, zone: u32) -> Result<()> {
        let inner = &mut *self.inner.write();
        inner.machine.reset(zone)?;
        inner.file.note_reset(zone);
        Ok(())
    }

    fn finish(&self, zone: u32) -> Result<()> {
        let inner = &mut *self.inner.write();
        let before = inner.machine.zone(zone)?;
        let zones = inner.machine.zones().to_vec();
        inner.machine.finish(zone)?;
        inner.file.zero_rest(zone, before.pointer, &zones)?;
        inner.file.note(zone);
        Ok(())
    }

    fn open(&self, zone: u32) -> Result<()> {
        self.inner.write().machine.open(zone)
    }

    fn close(&self, zone: u32) -> Result<()> {
        self.inner.write().machine.close(zone)
    }

    fn flush(&self) -> Result<()> {
        let inner = &mut *self.inner.write();
        inner.file.flush(inner.machine.zones())
    }
}
