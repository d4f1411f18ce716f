//! A file or a disk without zones, used as a zoned device.

use super::area::Area;
use super::error::Result;
use super::geometry::Geometry;
use super::machine::Machine;
use super::write_pointers::{CONVENTIONAL, Shape, ZoneFile};
use super::zone::Zone;
use super::zoned_device::ZonedDevice;
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::sync::Arc;

/// Most bytes of one write.
const WRITE_MAX: u64 = 1 << 30;
/// Large writes to different zones that keep a disk busy: while one is being prepared, the other one is under way.
const SIDE_BY_SIDE: u32 = 2;
/// Locks of zones: those of one lock take turns.
const LOCKS: usize = 64;

/// A file or a disk on which zones are laid out. No zone ever fails by itself, and there is no limit of open zones.
///
/// Zones are read and written side by side, also while the device is flushed. Locks are taken in the order: a zone's, `flushing`, `inner`.
#[derive(Debug)]
pub struct Conventional {
    geometry: Geometry,
    uuid: [u8; 16],
    area: Arc<Area>,
    /// Who changes a zone has its lock, so that its changes are in an order.
    zones: Vec<Mutex<()>>,
    /// One writes the table at a time.
    flushing: Mutex<()>,
    /// Never held while data are read or written.
    inner: Mutex<Inner>,
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
        Ok(Self::from_parts(machine, file))
    }

    /// Opens what [`create`](Self::create) has made.
    pub fn open(file: File) -> Result<Self> {
        let (file, zones) = ZoneFile::open(file)?;
        let machine = Machine::new(&file.shape().geometry, zones)?;
        Ok(Self::from_parts(machine, file))
    }

    /// Like [`open`](Self::open); large reads and writes go past the page cache, if the file can be opened once more for that.
    pub fn open_direct(file: File) -> Result<Self> {
        let (mut file, zones) = ZoneFile::open(file)?;
        file.enable_direct_io();
        let machine = Machine::new(&file.shape().geometry, zones)?;
        Ok(Self::from_parts(machine, file))
    }

    fn from_parts(machine: Machine, file: ZoneFile) -> Self {
        Self {
            geometry: file.shape().geometry.clone(),
            uuid: file.uuid(),
            area: Arc::clone(file.area()),
            zones: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            flushing: Mutex::new(()),
            inner: Mutex::new(Inner { machine, file }),
        }
    }

    /// Drawn when the zones were laid out.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn lock(&self, zone: u32) -> MutexGuard<'_, ()> {
        self.zones[zone as usize % LOCKS].lock()
    }

    fn put(&self, zone: u32, block: Option<u64>, data: &[u8]) -> Result<u64> {
        let blocks = self.geometry.blocks_of_write(data.len())?;
        let _zone = self.lock(zone);
        let (at, was_reset) = {
            let inner = &mut *self.inner.lock();
            (inner.machine.begin_write(zone, block, blocks)?, inner.file.is_reset(zone))
        };
        if was_reset {
            self.save()?;
        }
        self.area.write(zone, at, data)?;
        let inner = &mut *self.inner.lock();
        inner.machine.advance(zone, blocks);
        inner.file.note_written(zone, inner.machine.zone(zone)?);
        Ok(at)
    }

    /// Writes the table and makes everything durable that was answered before.
    fn save(&self) -> Result<()> {
        let _flushing = self.flushing.lock();
        let save = {
            let inner = &mut *self.inner.lock();
            inner.file.begin_save(inner.machine.zones())
        };
        let written = save.write(&self.area);
        let inner = &mut *self.inner.lock();
        inner.file.end_save(save, written.is_ok(), inner.machine.zones());
        written
    }
}

/// The space of empty zones is given back.
impl Drop for Conventional {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        // Whatever comes of it: what was flushed is there.
        let _ = inner.file.close(inner.machine.zones());
    }
}

impl ZonedDevice for Conventional {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn report(&self, zone: u32) -> Result<Zone> {
        self.inner.lock().machine.zone(zone)
    }

    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        let blocks = self.geometry.blocks_of(into.len())?;
        self.inner.lock().machine.check_read(zone, block, blocks)?;
        self.area.read(zone, block, into)
    }

    fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()> {
        self.put(zone, Some(block), data).map(drop)
    }

    fn append(&self, zone: u32, data: &[u8]) -> Result<u64> {
        self.put(zone, None, data)
    }

    fn reset(&self, zone: u32) -> Result<()> {
        let _zone = self.lock(zone);
        let inner = &mut *self.inner.lock();
        inner.machine.reset(zone)?;
        inner.file.note_reset(zone);
        Ok(())
    }

    fn finish(&self, zone: u32) -> Result<()> {
        let _zone = self.lock(zone);
        // The table may have to be written first.
        let _flushing = self.flushing.lock();
        let inner = &mut *self.inner.lock();
        let before = inner.machine.zone(zone)?;
        let zones = inner.machine.zones().to_vec();
        inner.machine.finish(zone)?;
        inner.file.zero_rest(zone, before.pointer, &zones)?;
        inner.file.note(zone);
        Ok(())
    }

    fn open(&self, zone: u32) -> Result<()> {
        let _zone = self.lock(zone);
        self.inner.lock().machine.open(zone)
    }

    fn close(&self, zone: u32) -> Result<()> {
        let _zone = self.lock(zone);
        self.inner.lock().machine.close(zone)
    }

    fn flush(&self) -> Result<()> {
        self.save()
    }

    fn run_ahead(&self, zone: u32, blocks: u64) {
        self.inner.lock().file.run_ahead(zone, blocks);
    }

    /// What lies below a file or a disk is nobody's to know.
    fn wears(&self) -> bool {
        false
    }

    fn has_space(&self, zone: u32) -> bool {
        self.inner.lock().file.has_space(zone)
    }

    fn side_by_side(&self) -> u32 {
        SIDE_BY_SIDE
    }

    fn report_all(&self) -> Result<Vec<Zone>> {
        Ok(self.inner.lock().machine.zones().to_vec())
    }
}
