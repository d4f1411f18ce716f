//! The protocol of a store socket, at either end.

/// Bytes of a connection.
pub(crate) fn feed(data: &[u8]) -> bool {
    vellum_service::store_server::parse_hostile(data)
}
