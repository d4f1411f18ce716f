//! Clients that use zones side by side, and how they fare.

use crate::device::Result;
use crate::pace::{Direction, Nanos};

/// Somebody who reads or writes one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// The zone.
    pub(super) zone: u32,
    /// What he does: reads anywhere in what is written, writes at the pointer.
    pub(super) direction: Direction,
    /// Bytes of a call.
    pub(super) bytes: u64,
    /// Calls under way at once.
    pub(super) depth: usize,
    /// From the end of a call to the next one.
    pub(super) pause: Nanos,
}

impl Client {
    /// One that takes all that the zone gives.
    pub(super) fn greedy(zone: u32, direction: Direction) -> Self {
        Self { zone, direction, bytes: 256 << 10, depth: 16, pause: 0 }
    }

    /// One that calls now and then, and waits.
    pub(super) fn light(zone: u32, direction: Direction) -> Self {
        Self { zone, direction, bytes: 4096, depth: 1, pause: 1_000_000 }
    }
}

/// How a client fared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ClientLatency {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Mean time of a call, in nanoseconds.
    pub(super) wait: f64,
}

/// Lets clients work side by side.
pub(super) trait Bench {
    /// All of them at once, for a while. The zones are empty or were used here before.
    fn run_together(&mut self, clients: &[Client]) -> Result<Vec<ClientLatency>>;

    /// Whether the time for all this is over.
    fn is_time_up(&self) -> bool;
}
