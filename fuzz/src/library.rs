//! What a container shows in the place of the library, and where its processes have it.

/// Any bytes as both.
pub(crate) fn feed(bytes: &[u8]) -> bool {
    vellum_checkpoint::library::parse_hostile(bytes)
}
