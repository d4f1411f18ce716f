//! Limits of a log.

use std::time::Duration;

/// Most bytes of data of one record; longer writes are several.
pub(super) const DATA_MAX: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// Least and most bytes of a log.
pub(super) const RING_MIN: u64 = if cfg!(test) { 16 << 10 } else { 4 << 20 };
pub(super) const RING_MAX: u64 = 64 << 30;

/// How much may be in the log, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritebackLimits {
    /// Bytes, heads of records among them. Who would go beyond waits until others are written.
    pub bytes: u64,
    /// How old a change may be before it is written.
    pub age: Duration,
}

impl WritebackLimits {
    pub const BYTES_MIN: u64 = RING_MIN;
    pub const BYTES_MAX: u64 = RING_MAX;
}
