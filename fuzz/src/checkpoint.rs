//! Checkpoints: objects of both versions, and streams.

/// Bytes of one.
pub(crate) fn feed(data: &[u8]) -> bool {
    vellum_checkpoint::parse_hostile(data)
}
