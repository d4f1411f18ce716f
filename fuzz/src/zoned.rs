//! What is on a zoned device: roots, records of the log, and the changes in them.

/// Bytes of a device.
pub(crate) fn feed(data: &[u8]) -> bool {
    vellum_zoned::store::parse_hostile(data)
}
