//! Zoned block devices: the ioctls of `linux/blkzoned.h`.
//!
//! A device is divided into zones; sequential zones are written at their write pointer only. All positions and lengths here are in
//! sectors of 512 bytes, whatever the device's block size is. What the kernel reports is passed on as it is: whoever uses it checks it.

use rustix::io::Result;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::AsFd;

/// The type of these ioctls.
const TYPE: u8 = 0x12;
const REPORT: Opcode = opcode::read_write::<ReportHead>(TYPE, 130);
const RESET: Opcode = opcode::write::<Range>(TYPE, 131);
const ZONE_SIZE: Opcode = opcode::read::<u32>(TYPE, 132);
const ZONE_COUNT: Opcode = opcode::read::<u32>(TYPE, 133);
const OPEN: Opcode = opcode::write::<Range>(TYPE, 134);
const CLOSE: Opcode = opcode::write::<Range>(TYPE, 135);
const FINISH: Opcode = opcode::write::<Range>(TYPE, 136);
/// `BLK_ZONE_REP_CAPACITY`: the field `capacity` of the zones is filled in.
const HAS_CAPACITY: u32 = 1;
/// Zones asked for by one call.
pub const REPORTED_AT_ONCE: usize = 64;

/// `struct blk_zone_report` without its zones: what the number of the ioctl is made from.
#[repr(C)]
#[derive(Clone, Copy)]
struct ReportHead {
    sector: u64,
    nr_zones: u32,
    flags: u32,
}

/// `struct blk_zone_report` with room for zones.
#[repr(C)]
#[derive(Clone, Copy)]
struct Report {
    head: ReportHead,
    zones: [BlockZone; REPORTED_AT_ONCE],
}

/// `struct blk_zone`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockZone {
    /// Where the zone begins.
    pub start: u64,
    /// From its beginning to that of the next zone.
    pub len: u64,
    /// Where the next write goes, counted from the beginning of the device.
    pub write_pointer: u64,
    /// `BLK_ZONE_TYPE_*`: 1 conventional, 2 sequential, 3 better written sequentially.
    pub kind: u8,
    /// `BLK_ZONE_COND_*`.
    pub condition: u8,
    non_seq: u8,
    reset: u8,
    reserved: [u8; 4],
    /// How much can be written, from its beginning on; at most `len`.
    pub capacity: u64,
    reserved_too: [u8; 24],
}

/// `struct blk_zone_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    sector: u64,
    nr_sectors: u64,
}

/// What is done to zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneAction {
    /// Empties them.
    Reset,
    /// Opens them, so that they keep what the device needs for writing until they are closed.
    Open,
    /// Gives that back.
    Close,
    /// Makes them full, wherever their write pointers are.
    Finish,
}

/// The length of a zone in sectors; 0 where the device has no zones.
pub fn zone_sectors(device: impl AsFd) -> Result<u32> {
    // SAFETY: the opcode is BLKGETZONESZ, which writes a u32.
    let request = unsafe { Getter::<ZONE_SIZE, u32>::new() };
    // SAFETY: the opcode is BLKGETZONESZ, which writes a u32, for which `request` has room.
    unsafe { ioctl(device, request) }
}

/// How many zones the device has; 0 where it has none.
pub fn zone_count(device: impl AsFd) -> Result<u32> {
    // SAFETY: the opcode is BLKGETNRZONES, which writes a u32.
    let request = unsafe { Getter::<ZONE_COUNT, u32>::new() };
    // SAFETY: the opcode is BLKGETNRZONES, which writes a u32, for which `request` has room.
    unsafe { ioctl(device, request) }
}

/// Up to `max` zones, at most [`REPORTED_AT_ONCE`], from the one on that begins at `sector`. Kernels before 5.9 say no capacity; it is the length
/// then. ENOTTY: the device has no zones.
pub fn report_zones(device: impl AsFd, sector: u64, max: usize) -> Result<Vec<BlockZone>> {
    let asked = max.min(REPORTED_AT_ONCE);
    let head = ReportHead { sector, nr_zones: asked as u32, flags: 0 };
    let mut report = Report { head, zones: [BlockZone::default(); REPORTED_AT_ONCE] };
    // SAFETY: the opcode is BLKREPORTZONE, which reads and writes a head, and behind it at most as many zones as `nr_zones` says.
    let request = unsafe { Updater::<REPORT, Report>::new(&mut report) };
    // SAFETY: `report` has room for REPORTED_AT_ONCE zones, and no more are asked for.
    unsafe { ioctl(device, request) }?;
    let filled = (report.head.nr_zones as usize).min(asked);
    let mut zones = report.zones[..filled].to_vec();
    if report.head.flags & HAS_CAPACITY == 0 {
        zones.iter_mut().for_each(|zone| zone.capacity = zone.len);
    }
    Ok(zones)
}

/// Does `action` to the zones from `sector` on, `sectors` long: whole zones. EIO where the device refuses; EOVERFLOW or ETOOMANYREFS where a
/// limit of zones that are active or open is reached.
pub fn act_on_zones(device: impl AsFd, action: ZoneAction, sector: u64, sectors: u64) -> Result<()> {
    let range = Range { sector, nr_sectors: sectors };
    match action {
        ZoneAction::Reset => act::<RESET>(device, range),
        ZoneAction::Open => act::<OPEN>(device, range),
        ZoneAction::Close => act::<CLOSE>(device, range),
        ZoneAction::Finish => act::<FINISH>(device, range),
    }
}

fn act<const OPCODE: Opcode>(device: impl AsFd, range: Range) -> Result<()> {
    // SAFETY: the opcodes of `act_on_zones` all read a `blk_zone_range`.
    let request = unsafe { Setter::<OPCODE, Range>::new(range) };
    // SAFETY: the kernel reads the range, which `request` holds.
    unsafe { ioctl(device, request) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn layouts_and_numbers_are_the_kernels() {
        assert_eq!(size_of::<BlockZone>(), 64);
        assert_eq!(size_of::<ReportHead>(), 16);
        assert_eq!(size_of::<Report>(), 16 + 64 * REPORTED_AT_ONCE);
        // _IOWR and _IOW of 0x12 and the sizes above, on machines with the generic numbers of ioctls.
        assert_eq!((REPORT, RESET, FINISH), (0xc010_1282, 0x4010_1283, 0x4010_1288));
    }

    #[test]
    fn a_device_without_zones_is_recognised() {
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(zone_count(&file), Err(Errno::NOTTY));
        assert_eq!(report_zones(&file, 0, 8), Err(Errno::NOTTY));
        assert_eq!(act_on_zones(&file, ZoneAction::Reset, 0, 8), Err(Errno::NOTTY));
    }
}
