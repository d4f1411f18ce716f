//! Pacing: background writes (images of checkpoints) go to a device as fast as they may without holding up anybody else.
//!
//! [`Pacer`] decides when the next piece may go. It sees what others wait for their reads and writes, knows from quiet moments how long
//! that takes when nobody disturbs them ([`LatencyBaseline`]), and moves the rate so that one in a hundred takes longer than is allowed. It knows
//! no clock and no device: times are given to it, so it can be tried in virtual time.

mod baseline;
mod budget;
mod meter;
mod pacer;

pub use baseline::{Direction, LatencyBaseline};
pub use budget::Budget;
pub use meter::Meter;
pub use pacer::{PaceDecision, Pacer};

/// Nanoseconds on the clock of whoever asks.
pub type Nanos = u64;
/// A second.
pub(crate) const SECOND: Nanos = 1_000_000_000;
