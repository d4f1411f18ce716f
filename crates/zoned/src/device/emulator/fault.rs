//! Failures that are put in.

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with EIO. Of a write, a first part that is drawn is done.
    Error,
    /// The zone goes read-only, and the call fails.
    ReadOnly,
    /// The zone goes offline, and the call fails.
    Offline,
    /// Power is lost: the call and all later ones are not answered. Of a write, a first part that is drawn may be done.
    PowerLoss,
}

/// When it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At the change (write, append, reset, finish, flush) that so many changes come before.
    Change(u64),
    /// At the next write to a zone.
    WriteTo(u32),
    /// At every read of a block; it stays so.
    ReadOf(u32, u64),
}
