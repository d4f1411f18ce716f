//! Who asks.

use crate::Progress;

/// An id that is not told.
pub const UNKNOWN: u32 = u32::MAX;

/// Tells user and group of a thread by its id; None: it cannot be told.
pub type ThreadIdentity = fn(u32) -> Option<(u32, u32)>;

/// The caller of an operation, as the kernel states it; never taken from the client's own words.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Filesystem user id, in the service's user namespace: of what is made, where something is; [`UNKNOWN`] where a front is told
    /// only that. See [`Context::ids`].
    pub uid: u32,
    /// Filesystem group id, in the same way.
    pub gid: u32,
    /// Thread id of the caller; 0 when the kernel itself asks (writeback).
    pub pid: u32,
    /// File mode creation mask; meaningful in operations that create something.
    pub umask: u32,
    /// Supplementary groups that matter for this operation (the kernel sends those that equal the
    /// parent directory's group); empty when unknown.
    pub groups: &'a [u32],
    /// Tells user and group of a thread, for requests that do not; None where they all do.
    pub who: Option<ThreadIdentity>,
    /// Hears when a name is made for the caller: with the directory's names held, once the name was seen to be free.
    pub progress: &'a dyn Progress,
}

impl Default for Context<'_> {
    fn default() -> Self {
        Self { uid: 0, gid: 0, pid: 0, umask: 0, groups: &[], who: None, progress: &() }
    }
}

impl Context<'_> {
    /// User and group by which the caller's accesses to files are judged; [`UNKNOWN`] if he cannot be asked any more. A caller that
    /// is killed meanwhile may be taken for another who has got his number: what he gets by the answer must be of no use then.
    #[must_use]
    pub fn ids(&self) -> (u32, u32) {
        if self.uid != UNKNOWN {
            return (self.uid, self.gid);
        }
        self.who.and_then(|who| who(self.pid)).unwrap_or((UNKNOWN, UNKNOWN))
    }

    /// Whether the caller is in group `gid`, as far as the request tells.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.groups.contains(&gid) || self.ids().1 == gid
    }
}
