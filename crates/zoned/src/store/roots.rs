//! Roots: the first two zones, each with a list of roots, the last of which counts.

use super::error::{Error, Result};
use super::format::Root;
use super::zones::Zones;
use crate::device::{Geometry, ZonedDevice};

/// The zones from 0 on that have roots.
pub(super) const ROOT_ZONES: u32 = 2;
/// Read at once when a root is looked for, in blocks.
const READ_BLOCKS: u64 = 64;

/// The root with the highest generation. An error when there is none.
pub(super) fn find(device: &dyn ZonedDevice) -> Result<Root> {
    let mut best: Option<Root> = None;
    for zone in 0..ROOT_ZONES.min(device.geometry().zones) {
        if let Some(root) = last_in(device, zone)?
            && best.is_none_or(|best| root.generation > best.generation)
        {
            best = Some(root);
        }
    }
    let root = best.ok_or_else(|| Error::Damaged("there is no store on this device".to_owned()))?;
    check(&root, device.geometry())?;
    Ok(root)
}

fn check(root: &Root, geometry: &Geometry) -> Result<()> {
    let same = root.block_size == geometry.block_size
        && root.zones == geometry.zones
        && root.zone_blocks == geometry.zone_blocks;
    if same { Ok(()) } else { Error::damaged("the store was made on a device of another geometry") }
}

/// The last root of a zone; None also where it cannot be read.
pub(super) fn last_in(device: &dyn ZonedDevice, zone: u32) -> Result<Option<Root>> {
    let size = device.geometry().block_size as usize;
    let Ok(reported) = device.report(zone) else { return Ok(None) };
    let mut end = reported.pointer;
    while end > 0 {
        let start = end.saturating_sub(READ_BLOCKS);
        let mut bytes = vec![0; (end - start) as usize * size];
        if device.read(zone, start, &mut bytes).is_err() {
            // One by one, for some may be readable.
            for (number, block) in bytes.chunks_mut(size).enumerate() {
                if device.read(zone, start + number as u64, block).is_err() {
                    block.fill(0);
                }
            }
        }
        for block in bytes.chunks(size).rev() {
            if let Some(root) = Root::decode(block)? {
                return Ok(Some(root));
            }
        }
        end = start;
    }
    Ok(None)
}

/// Writes a root to both zones and flushes, one after the other: a zone that is full is emptied only while the other one has a root that is
/// flushed. `is_sound` says which zone has its last root, before and after. An error when none has this one.
pub(super) fn write(
    device: &dyn ZonedDevice,
    zones: &mut Zones,
    is_sound: &mut [bool; 2],
    root: &Root,
) -> Result<()> {
    let block = root.encode();
    let mut written = [false; 2];
    let mut last = None;
    for zone in 0..ROOT_ZONES {
        let number = zone as usize;
        let other_has_one = is_sound[1 - number];
        match write_one(device, zones, zone, &block, is_sound[number], other_has_one) {
            Ok(()) => written[number] = true,
            Err(error) => {
                tracing::error!("zone {zone}: root {} cannot be written: {error}", root.generation);
                last = Some(error);
                zones.refresh(zone, device);
            }
        }
        // A zone whose write failed still has its older root, unless it was emptied.
        is_sound[number] = written[number] || (is_sound[number] && zones.get(zone).pointer > 0);
    }
    match last {
        Some(error) if written == [false; 2] => Err(error),
        _ => Ok(()),
    }
}

fn write_one(
    device: &dyn ZonedDevice,
    zones: &mut Zones,
    zone: u32,
    block: &[u8],
    is_sound: bool,
    other_has_one: bool,
) -> Result<()> {
    let info = zones.get(zone);
    if info.pointer > 0 && (info.pointer >= info.capacity || !is_sound) && other_has_one {
        device.reset(zone)?;
        zones.set_pointer(zone, 0);
    }
    let pointer = zones.get(zone).pointer;
    device.write(zone, pointer, block)?;
    zones.set_pointer(zone, pointer + 1);
    device.flush()?;
    Ok(())
}
