//! What is on a zoned device: roots, records of the log, and the changes in them; and checkpoints among its objects.

/// Bytes of a device, or of an object.
pub(crate) fn feed(data: &[u8]) -> bool {
    vellum_engine::checkpoint::parse_hostile(data);
    vellum_zoned::store::parse_hostile(data)
}
