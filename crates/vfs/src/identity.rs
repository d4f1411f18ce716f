//! Who asks.

/// The caller of an operation, as the kernel states it; never taken from the client's own words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Filesystem user id, in the service's user namespace.
    pub uid: u32,
    /// Filesystem group id, in the service's user namespace.
    pub gid: u32,
    /// Thread id of the caller; 0 when the kernel itself asks (writeback).
    pub pid: u32,
    /// File mode creation mask; meaningful in operations that create something.
    pub umask: u32,
    /// Supplementary groups that matter for this operation (the kernel sends those that equal the
    /// parent directory's group); empty when unknown.
    pub groups: &'a [u32],
}

impl Context<'_> {
    /// Whether the caller is in group `gid`, as far as the request tells.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
