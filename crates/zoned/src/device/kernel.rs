//! A zoned block device of the kernel's, by the ioctls of `linux/blkzoned.h` and direct I/O.
//!
//! What the kernel offers differs from the trait in these points:
//! - There is no append on a block device: it is a write under the zone's lock.
//! - A read beyond the write pointer is answered by some devices with zeros; here it is refused by the pointer that is kept in memory.
//! - Limits are read from `/sys/dev/block`; kernels before 5.9 have no files for them, which is taken for no limit.
//!
//! Positions and lengths in reports are in sectors of 512 bytes; they are checked against each other before any is used.

use super::aligned_buffer::{AlignedBuf, is_aligned};
use super::error::{Error, Result};
use super::geometry::{Geometry, ZONES_MAX};
use super::zone::{Condition, Zone};
use super::zoned_device::ZonedDevice;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fdatasync, fstat, major, minor, open};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::Path;
use vellum_sys::zoned::{
    BlockZone, REPORTED_AT_ONCE, ZoneAction, act_on_zones, report_zones, zone_count, zone_sectors,
};

const SECTOR: u64 = 512;
/// `BLK_ZONE_TYPE_SEQWRITE_REQ`: the only type that is used.
const SEQUENTIAL: u8 = 2;
/// Most bytes of one write; the kernel splits it as the device needs.
const WRITE_MAX: u64 = 1 << 20;

/// A zoned block device, which no other program has open exclusively.
#[derive(Debug)]
pub struct Kernel {
    file: OwnedFd,
    geometry: Geometry,
    /// The zones as they were reported, and moved on since.
    zones: Vec<Mutex<Zone>>,
}

/// What the kernel says of a device beside the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLimits {
    /// Bytes of a block.
    pub block_size: u32,
    /// Zones that may be open at once; 0: any number.
    pub open_max: u32,
    /// Zones that may be active at once; 0: any number.
    pub active_max: u32,
}

impl KernelLimits {
    /// As `/sys` has them for an open block device.
    pub fn read(file: &OwnedFd) -> Result<Self> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Err(Error::Untrusted("not a block device".to_owned()));
        }
        let queue = format!("/sys/dev/block/{}:{}/queue", major(stat.st_rdev), minor(stat.st_rdev));
        let block_size = setting(&queue, "logical_block_size").unwrap_or(SECTOR);
        let block_size = u32::try_from(block_size).unwrap_or(0);
        let (open_max, active_max) = (limit(&queue, "max_open_zones"), limit(&queue, "max_active_zones"));
        Ok(Self { block_size, open_max, active_max })
    }
}

impl Kernel {
    /// Opens a device, for this process alone. EBUSY when it is mounted or opened by another one. Zones that need not be written sequentially are
    /// taken for offline.
    pub fn open_path(path: &Path) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        let limits = KernelLimits::read(&file)?;
        Self::open_file(file, limits)
    }

    /// A device that was opened as by [`open_path`](Self::open_path), with direct I/O, and maybe by another process.
    pub fn open_file(file: OwnedFd, limits: KernelLimits) -> Result<Self> {
        let KernelLimits { block_size, open_max, active_max } = limits;
        let block_size = u64::from(block_size);
        let sectors = u64::from(zone_sectors(&file)?);
        let zones = zone_count(&file)?;
        if zones == 0 || sectors == 0 {
            return Err(Error::Untrusted("a device without zones".to_owned()));
        }
        let geometry = Geometry {
            block_size: limits.block_size,
            zones,
            zone_blocks: sectors * SECTOR / block_size.max(1),
            open_max: if active_max == 0 { open_max } else { open_max.min(active_max) },
            active_max,
            write_blocks_max: WRITE_MAX / block_size.max(1),
        };
        geometry.check()?;
        if geometry.zone_blocks * block_size != sectors * SECTOR {
            return Err(Error::Untrusted(format!("zones of {sectors} sectors, with blocks of {block_size}")));
        }
        let mut new = Self { file, geometry, zones: Vec::new() };
        new.zones = new.ask(0, zones.min(ZONES_MAX))?.into_iter().map(Mutex::new).collect();
        Ok(new)
    }

    /// Zones from `first` on, as the kernel reports them.
    fn ask(&self, first: u32, count: u32) -> Result<Vec<Zone>> {
        let mut zones = Vec::with_capacity(count as usize);
        while zones.len() < count as usize {
            let next = first + zones.len() as u32;
            let left = count as usize - zones.len();
            let reported = report_zones(&self.file, self.sector(next), left.min(REPORTED_AT_ONCE))?;
            if reported.is_empty() {
                return Err(Error::Untrusted(format!("no report of zone {next}")));
            }
            for (number, reported) in reported.iter().enumerate() {
                zones.push(self.zone_of(next + number as u32, reported)?);
            }
        }
        Ok(zones)
    }

    /// A report, checked.
    fn zone_of(&self, number: u32, reported: &BlockZone) -> Result<Zone> {
        zone_of(&self.geometry, number, reported)
    }

    fn sector(&self, zone: u32) -> u64 {
        self.geometry.byte_at(zone, 0) / SECTOR
    }

    fn lock(&self, zone: u32) -> Result<parking_lot::MutexGuard<'_, Zone>> {
        Ok(self.zones.get(zone as usize).ok_or(Error::OutOfRange)?.lock())
    }

    fn put(&self, number: u32, block: Option<u64>, data: &[u8]) -> Result<u64> {
        let blocks = self.geometry.blocks_of_write(data.len())?;
        let mut zone = self.lock(number)?;
        check_usable(*zone)?;
        if block.is_some_and(|block| block >= self.geometry.zone_blocks) {
            return Err(Error::OutOfRange);
        }
        if block.is_some_and(|block| block != zone.pointer) && zone.condition != Condition::Full {
            return Err(Error::OffPointer { pointer: zone.pointer });
        }
        if zone.condition == Condition::Full || blocks > zone.capacity - zone.pointer {
            return Err(Error::Full);
        }
        let at = zone.pointer;
        let result = self.write_all(self.geometry.byte_at(number, at), data);
        match result {
            Ok(()) => {
                zone.pointer += blocks;
                let is_full = zone.pointer == zone.capacity;
                zone.condition = match zone.condition {
                    _ if is_full => Condition::Full,
                    Condition::ExplicitOpen => Condition::ExplicitOpen,
                    _ => Condition::ImplicitOpen,
                };
                Ok(at)
            }
            Err(error) => {
                if let Ok(now) = self.ask(number, 1) {
                    *zone = now[0];
                }
                Err(error)
            }
        }
    }

    fn write_all(&self, at: u64, data: &[u8]) -> Result<()> {
        let copy;
        let mut left = if is_aligned(data) {
            data
        } else {
            copy = AlignedBuf::copy_of(data);
            copy.as_slice()
        };
        let mut at = at;
        while !left.is_empty() {
            let written = match pwrite(&self.file, left, at) {
                Ok(0) => return Err(Error::Io(Errno::IO)),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(of_write(errno)),
            };
            at += written as u64;
            left = &left[written..];
        }
        Ok(())
    }

    fn act(&self, number: u32, action: ZoneAction) -> Result<()> {
        let mut zone = self.lock(number)?;
        check_usable(*zone)?;
        let allowed = match action {
            ZoneAction::Open => zone.condition != Condition::Full,
            ZoneAction::Close => zone.condition.is_active(),
            ZoneAction::Reset | ZoneAction::Finish => true,
        };
        if !allowed {
            return Err(Error::BadCondition);
        }
        let sectors = self.geometry.byte_at(1, 0) / SECTOR;
        let result = act_on_zones(&self.file, action, self.sector(number), sectors);
        *zone = self.ask(number, 1)?[0];
        result.map_err(of_write)
    }
}

fn zone_of(geometry: &Geometry, number: u32, reported: &BlockZone) -> Result<Zone> {
    let per_block = u64::from(geometry.block_size) / SECTOR;
    let start = geometry.byte_at(number, 0) / SECTOR;
    // The last zone of some devices is shorter; it is not used.
    let sound = reported.start == start
        && reported.len <= geometry.zone_blocks * per_block
        && reported.capacity <= reported.len
        && reported.capacity.is_multiple_of(per_block)
        && reported.capacity > 0;
    if !sound {
        return Err(Error::Untrusted(format!("zone {number} is reported as {reported:?}")));
    }
    let capacity = reported.capacity / per_block;
    let condition = match reported.condition {
        _ if reported.kind != SEQUENTIAL => Condition::Offline,
        1 => Condition::Empty,
        2 => Condition::ImplicitOpen,
        3 => Condition::ExplicitOpen,
        4 => Condition::Closed,
        13 => Condition::ReadOnly,
        14 => Condition::Full,
        15 => Condition::Offline,
        _ => return Err(Error::Untrusted(format!("zone {number} is reported as {reported:?}"))),
    };
    let pointer = match condition {
        Condition::Full => capacity,
        Condition::Offline => 0,
        // Of a read-only zone the pointer means nothing by the standard: all of it may be read.
        Condition::ReadOnly => capacity,
        _ => {
            let written =
                reported.write_pointer.checked_sub(start).filter(|written| written % per_block == 0);
            let untrusted = || Error::Untrusted(format!("zone {number} is reported as {reported:?}"));
            written.ok_or_else(untrusted)? / per_block
        }
    };
    let zone = Zone { capacity, pointer, condition };
    zone.check(geometry)?;
    Ok(zone)
}

fn check_usable(zone: Zone) -> Result<()> {
    match zone.condition {
        Condition::ReadOnly => Err(Error::ReadOnly),
        Condition::Offline => Err(Error::Offline),
        _ => Ok(()),
    }
}

/// What the kernel makes of `BLK_STS_ZONE_ACTIVE_RESOURCE` and `BLK_STS_ZONE_OPEN_RESOURCE`.
fn of_write(errno: Errno) -> Error {
    match errno {
        Errno::OVERFLOW => Error::TooManyActive,
        Errno::TOOMANYREFS => Error::TooManyOpen,
        errno => Error::Io(errno),
    }
}

fn setting(queue: &str, name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("{queue}/{name}")).ok()?.trim().parse().ok()
}

fn limit(queue: &str, name: &str) -> u32 {
    setting(queue, name).and_then(|limit| u32::try_from(limit).ok()).unwrap_or(0)
}

impl ZonedDevice for Kernel {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn report(&self, zone: u32) -> Result<Zone> {
        let mut kept = self.lock(zone)?;
        *kept = self.ask(zone, 1)?[0];
        Ok(*kept)
    }

    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        let blocks = self.geometry.blocks_of(into.len())?;
        let end = block.checked_add(blocks).ok_or(Error::OutOfRange)?;
        let kept = *self.lock(zone)?;
        match kept.condition {
            Condition::Offline => return Err(Error::Offline),
            _ if end > kept.capacity => return Err(Error::OutOfRange),
            _ if end > kept.pointer => return Err(Error::Unwritten),
            _ => {}
        }
        let mut aligned = AlignedBuf::zeroed(into.len());
        let mut done = 0;
        while done < into.len() {
            let at = self.geometry.byte_at(zone, block) + done as u64;
            match pread(&self.file, &mut aligned.as_mut_slice()[done..], at) {
                Ok(0) => return Err(Error::Io(Errno::IO)),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Io(errno)),
            }
        }
        into.copy_from_slice(aligned.as_slice());
        Ok(())
    }

    fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()> {
        self.put(zone, Some(block), data).map(drop)
    }

    fn append(&self, zone: u32, data: &[u8]) -> Result<u64> {
        self.put(zone, None, data)
    }

    fn reset(&self, zone: u32) -> Result<()> {
        self.act(zone, ZoneAction::Reset)
    }

    fn finish(&self, zone: u32) -> Result<()> {
        self.act(zone, ZoneAction::Finish)
    }

    fn open(&self, zone: u32) -> Result<()> {
        self.act(zone, ZoneAction::Open)
    }

    fn close(&self, zone: u32) -> Result<()> {
        self.act(zone, ZoneAction::Close)
    }

    fn flush(&self) -> Result<()> {
        fdatasync(&self.file)?;
        Ok(())
    }

    fn report_all(&self) -> Result<Vec<Zone>> {
        let zones = self.ask(0, self.geometry.zones)?;
        for (kept, zone) in self.zones.iter().zip(&zones) {
            *kept.lock() = *zone;
        }
        Ok(zones)
    }
}
