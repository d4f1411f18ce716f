//! What a service leaves to its successor of an upper layer that is to be written.

/// Bytes of the log, or what stands in it.
pub(crate) fn feed(data: &[u8]) -> bool {
    vellum_branch::parse_hostile_log(data)
}
