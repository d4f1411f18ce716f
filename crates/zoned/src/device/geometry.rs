//! What a device is like.

use super::error::{Error, Result};

/// Sizes of blocks that are supported, in bytes.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];
/// Most zones of a device.
pub const ZONES_MAX: u32 = 1 << 22;
/// Most bytes of a device, so that they, and what lies in front of the zones of a file, can be counted.
const BYTES_MAX: u64 = 1 << 62;
/// Most blocks of a zone, so that a position in one fits 32 bits.
const ZONE_BLOCKS_MAX: u64 = 1 << 31;

/// A device's sizes and limits. They do not change while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block, the unit of reads and writes: 512 or 4096.
    pub block_size: u32,
    /// How many zones there are.
    pub zones: u32,
    /// From the start of a zone to that of the next, in blocks.
    pub zone_blocks: u64,
    /// How many zones may be open (being written) at once; 0: any number.
    pub open_max: u32,
    /// How many zones may be active (open, or closed and neither empty nor full) at once; 0: any number.
    pub active_max: u32,
    /// Most blocks of one write or append.
    pub write_blocks_max: u64,
}

impl Geometry {
    /// Refuses what cannot be.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Untrusted(what));
        if !BLOCK_SIZES.contains(&self.block_size) {
            return refuse(format!("blocks of {} bytes; 512 and 4096 are supported", self.block_size));
        }
        if self.zones == 0 || self.zones > ZONES_MAX {
            return refuse(format!("{} zones; 1 to {ZONES_MAX} are supported", self.zones));
        }
        if self.zone_blocks == 0 || self.zone_blocks > ZONE_BLOCKS_MAX {
            return refuse(format!(
                "zones of {} blocks; 1 to {ZONE_BLOCKS_MAX} are supported",
                self.zone_blocks
            ));
        }
        // Positions on the device are counted in bytes.
        let bytes = u128::from(self.zones) * u128::from(self.zone_blocks) * u128::from(self.block_size);
        if bytes > u128::from(BYTES_MAX) {
            return refuse(format!("{bytes} bytes; at most {BYTES_MAX} are supported"));
        }
        if self.write_blocks_max == 0 {
            return refuse("writes of no blocks".to_owned());
        }
        if self.active_max != 0 && self.open_max > self.active_max {
            return refuse(format!("{} open zones, but only {} active ones", self.open_max, self.active_max));
        }
        Ok(())
    }

    /// How many blocks `len` bytes are. OUT_OF_RANGE when they are not whole blocks, or none.
    pub fn blocks_of(&self, len: usize) -> Result<u64> {
        let size = self.block_size as usize;
        if len == 0 || !len.is_multiple_of(size) {
            return Err(Error::OutOfRange);
        }
        Ok((len / size) as u64)
    }

    /// How many blocks a write of `len` bytes has. OUT_OF_RANGE also when they are too many for one.
    pub fn blocks_of_write(&self, len: usize) -> Result<u64> {
        let blocks = self.blocks_of(len)?;
        if blocks > self.write_blocks_max { Err(Error::OutOfRange) } else { Ok(blocks) }
    }

    /// Where a block of a zone is on the device, in bytes.
    #[must_use]
    pub fn byte_at(&self, zone: u32, block: u64) -> u64 {
        (u64::from(zone) * self.zone_blocks + block) * u64::from(self.block_size)
    }
}
