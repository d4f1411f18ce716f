//! A zone, as a device reports it.

use super::error::{Error, Result};
use super::geometry::Geometry;

/// What can be done with a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Nothing is written.
    Empty,
    /// Opened by a write; the device may close it when others are to be opened.
    ImplicitOpen,
    /// Opened by a command.
    ExplicitOpen,
    /// Partly written, and not open.
    Closed,
    /// Written to its end, or finished.
    Full,
    /// Can be read only, for ever.
    ReadOnly,
    /// Can neither be read nor written, for ever.
    Offline,
}

impl Condition {
    /// Whether it counts for the limit of open zones.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::ImplicitOpen | Self::ExplicitOpen)
    }

    /// Whether it counts for the limit of active zones.
    #[must_use]
    pub fn is_active(self) -> bool {
        self.is_open() || self == Self::Closed
    }

    /// Whether blocks can be written, now or after a reset.
    #[must_use]
    pub fn is_usable(self) -> bool {
        !matches!(self, Self::ReadOnly | Self::Offline)
    }
}

/// A zone's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Blocks that can be written, from the zone's start on; at most [`Geometry::zone_blocks`].
    pub capacity: u64,
    /// The block where the next write goes. `capacity` when the zone is full. Of a zone that is read-only or offline, where it was as far as
    /// the device knows.
    pub pointer: u64,
    /// What can be done with it.
    pub condition: Condition,
}

impl Zone {
    /// Refuses what cannot be.
    pub fn check(&self, geometry: &Geometry) -> Result<()> {
        let at = match self.condition {
            Condition::Empty => self.pointer == 0,
            Condition::Full => self.pointer == self.capacity,
            Condition::ImplicitOpen | Condition::ExplicitOpen | Condition::Closed => {
                self.pointer < self.capacity
            }
            Condition::ReadOnly | Condition::Offline => self.pointer <= self.capacity,
        };
        if !at || self.capacity == 0 || self.capacity > geometry.zone_blocks {
            return Err(Error::Untrusted(format!(
                "a zone of {} blocks says: capacity {}, write pointer {}, {:?}",
                geometry.zone_blocks, self.capacity, self.pointer, self.condition
            )));
        }
        Ok(())
    }
}
