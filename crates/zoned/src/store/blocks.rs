//! Blocks that are read are compared with their checksums.

use super::change::{DeviceExtent, LOST};
use super::error::{Error, Result};
use crate::device::ZonedDevice;
use crate::sum::crc32c;

/// Reads as many blocks as there are sums, and compares them.
pub(super) fn read(
    device: &dyn ZonedDevice,
    place: DeviceExtent,
    sums: &[u32],
    into: &mut [u8],
) -> Result<()> {
    let unreadable =
        |block: u32, why: String| Error::Unreadable { zone: place.zone, block: u64::from(block), why };
    if place.zone == LOST {
        return Err(unreadable(0, "lost when its zone failed".to_owned()));
    }
    let read = device.read(place.zone, u64::from(place.block), into);
    read.map_err(|error| unreadable(place.block, error.to_string()))?;
    let size = device.geometry().block_size as usize;
    for (number, (block, sum)) in into.chunks(size).zip(sums).enumerate() {
        if crc32c(block) != *sum {
            return Err(unreadable(place.block + number as u32, "wrong checksum".to_owned()));
        }
    }
    Ok(())
}

/// The checksums of blocks.
pub(super) fn sums(blocks: &[u8], block_size: u32) -> Vec<u32> {
    blocks.chunks(block_size as usize).map(crc32c).collect()
}
