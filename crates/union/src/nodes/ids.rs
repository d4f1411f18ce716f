//! What a node id is made of: a slot, and a serial number that is never given twice.

use vellum_vfs::NodeId;

/// Slots that are allocated together; given back when all of them are free.
pub(crate) const CHUNK: usize = 1024;
/// Most chunks: 67 million nodes.
pub(crate) const MAX_CHUNKS: usize = 65_536;
/// The id of a slot and a serial number.
pub(crate) const fn id_of(slot: usize, serial: u32) -> NodeId {
    NodeId((serial as u64) << 32 | slot as u64)
}

/// The slot and the serial number of an id.
pub(crate) const fn slot_of(id: NodeId) -> (usize, u32) {
    ((id.0 & 0xffff_ffff) as usize, (id.0 >> 32) as u32)
}
