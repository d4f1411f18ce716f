//! What is said at the door of a store, by either end.

/// Bytes of a connection.
pub(crate) fn feed(data: &[u8]) -> bool {
    vellum_service::store_door::parse_hostile(data)
}
