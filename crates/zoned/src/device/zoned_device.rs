//! The trait of zoned devices.

use super::error::Result;
use super::geometry::Geometry;
use super::zone::Zone;
use std::fmt::Debug;

/// A device of zones that are written from their start to their capacity, and emptied as a whole.
///
/// Zones have numbers from 0, and blocks have numbers from 0 in their zone. Calls may come from several threads; those to one zone are put in
/// an order.
///
/// # When power is lost
/// What was done before a [`flush`](Self::flush) that was answered stays. Of what was done to a zone since then (writes, finishing, resetting),
/// any number of first ones stays, and the last write that stays may be there in part, up to any of its blocks; zones do not wait for each
/// other. Between the pointer that was flushed and the one found afterwards, a block may hold anything. So what was not flushed must be known
/// by a checksum. Of a zone that may [`run_ahead`](Self::run_ahead), the pointer found may also be further than what was ever written.
///
/// # Errors
/// A call that answers [`Error::OutOfRange`](super::Error::OutOfRange), `OffPointer`, `Full`, `Unwritten`, `TooManyActive`, `TooManyOpen` or
/// `BadCondition` has changed nothing. After any other error of a write, the zone's pointer is what [`report`](Self::report) says, and blocks
/// that the write would have filled hold anything.
pub trait ZonedDevice: Debug + Send + Sync {
    /// Sizes and limits.
    fn geometry(&self) -> &Geometry;

    /// The zone as it is. It has passed [`Zone::check`].
    fn report(&self, zone: u32) -> Result<Zone>;

    /// Reads whole blocks from `block` on into `into`, all below the write pointer. Blocks of a finished zone that were never written are zeros.
    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()>;

    /// Writes whole blocks at the write pointer, which `block` must be, and moves it. Opens the zone; when too many are open then, one that was
    /// opened by a write is closed.
    fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()>;

    /// Writes whole blocks wherever the write pointer is, and says where that was.
    fn append(&self, zone: u32, data: &[u8]) -> Result<u64>;

    /// Empties the zone. What it held cannot be read any more.
    fn reset(&self, zone: u32) -> Result<()>;

    /// Makes the zone full without writing the rest of it. On some devices this takes as long as writing the rest.
    fn finish(&self, zone: u32) -> Result<()>;

    /// Opens the zone, so that no other one can have the device close it.
    fn open(&self, zone: u32) -> Result<()>;

    /// Closes the zone, which stays active; one with nothing in it may be empty again, or active until it is reset (NVMe).
    fn close(&self, zone: u32) -> Result<()>;

    /// Waits until all that was answered before would survive a loss of power.
    fn flush(&self) -> Result<()>;

    /// Allows the pointer of a zone that is written to, up to its next reset, to be found up to `blocks` further after a loss of power. Blocks
    /// that were not written hold anything then, also what was there before a reset. So a device that notes its pointers itself need not note
    /// every write before a flush is answered.
    fn run_ahead(&self, _zone: u32, _blocks: u64) {}

    /// Whether zones wear out by being reset, so that all are to be used alike.
    fn wears(&self) -> bool {
        true
    }

    /// Whether the space of an empty zone is there. Where it is not, a filesystem has to find it first, and every flush has to write where it is.
    fn has_space(&self, _zone: u32) -> bool {
        true
    }

    /// Zones that one writer does well to write side by side, where nothing else is known.
    fn side_by_side(&self) -> u32 {
        1
    }

    /// All zones.
    fn report_all(&self) -> Result<Vec<Zone>> {
        (0..self.geometry().zones).map(|zone| self.report(zone)).collect()
    }
}
