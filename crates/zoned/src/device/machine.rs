//! The conditions of zones and the limits of open and active ones, for devices that keep them themselves.

use super::error::{Error, Result};
use super::geometry::Geometry;
use super::zone::{Condition, Zone};
use std::collections::VecDeque;

/// All zones of a device, without what they hold.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    geometry: Geometry,
    zones: Vec<Zone>,
    open: u32,
    active: u32,
    /// Those opened by a write, the oldest first.
    implicit: VecDeque<u32>,
}

impl Machine {
    /// Takes the zones as they were found, closed as after a loss of power.
    pub(super) fn new(geometry: &Geometry, mut zones: Vec<Zone>) -> Result<Self> {
        geometry.check()?;
        if zones.len() != geometry.zones as usize {
            return Err(Error::Untrusted(format!("{} zones reported, not {}", zones.len(), geometry.zones)));
        }
        for zone in &mut zones {
            zone.check(geometry)?;
            if zone.condition.is_open() {
                zone.condition = if zone.pointer == 0 { Condition::Empty } else { Condition::Closed };
            }
        }
        let active = zones.iter().filter(|zone| zone.condition.is_active()).count() as u32;
        Ok(Self { geometry: geometry.clone(), zones, open: 0, active, implicit: VecDeque::new() })
    }

    /// All zones empty.
    pub(super) fn empty(geometry: &Geometry, capacity: u64) -> Result<Self> {
        let zone = Zone { capacity, pointer: 0, condition: Condition::Empty };
        geometry.check()?;
        Self::new(geometry, vec![zone; geometry.zones as usize])
    }

    pub(super) fn zones(&self) -> &[Zone] {
        &self.zones
    }

    pub(super) fn zone(&self, zone: u32) -> Result<Zone> {
        self.zones.get(zone as usize).copied().ok_or(Error::OutOfRange)
    }

    /// Refuses a read of `blocks` from `block` on that is not all below the write pointer.
    pub(super) fn check_read(&self, zone: u32, block: u64, blocks: u64) -> Result<()> {
        let zone = self.zone(zone)?;
        let end = block.checked_add(blocks).ok_or(Error::OutOfRange)?;
        match zone.condition {
            Condition::Offline => Err(Error::Offline),
            _ if end > zone.capacity => Err(Error::OutOfRange),
            _ if end > zone.pointer => Err(Error::Unwritten),
            _ => Ok(()),
        }
    }

    /// Opens the zone for a write of `blocks` at the pointer, which is at `block` if that is given. Says where the pointer is.
    pub(super) fn begin_write(&mut self, number: u32, block: Option<u64>, blocks: u64) -> Result<u64> {
        let zone = self.zone(number)?;
        self.check_usable(zone)?;
        if let Some(block) = block {
            if block >= self.geometry.zone_blocks {
                return Err(Error::OutOfRange);
            }
            if zone.condition != Condition::Full && block != zone.pointer {
                return Err(Error::OffPointer { pointer: zone.pointer });
            }
        }
        if zone.condition == Condition::Full || blocks > zone.capacity - zone.pointer {
            return Err(Error::Full);
        }
        if !zone.condition.is_open() {
            self.make_room(zone)?;
            self.enter(number, Condition::ImplicitOpen);
        }
        Ok(zone.pointer)
    }

    /// Moves the pointer of a zone that [`begin_write`](Self::begin_write) has opened.
    pub(super) fn advance(&mut self, number: u32, blocks: u64) {
        let Some(zone) = self.zones.get_mut(number as usize) else { return };
        zone.pointer = zone.pointer.saturating_add(blocks).min(zone.capacity);
        if zone.pointer == zone.capacity {
            self.enter(number, Condition::Full);
        }
    }

    pub(super) fn reset(&mut self, number: u32) -> Result<()> {
        self.check_usable(self.zone(number)?)?;
        self.enter(number, Condition::Empty);
        self.set_pointer(number, 0);
        Ok(())
    }

    pub(super) fn finish(&mut self, number: u32) -> Result<()> {
        let zone = self.zone(number)?;
        self.check_usable(zone)?;
        if zone.condition == Condition::Empty {
            self.make_room(zone)?;
        }
        self.enter(number, Condition::Full);
        self.set_pointer(number, zone.capacity);
        Ok(())
    }

    pub(super) fn open(&mut self, number: u32) -> Result<()> {
        let zone = self.zone(number)?;
        self.check_usable(zone)?;
        if zone.condition == Condition::Full {
            return Err(Error::BadCondition);
        }
        if !zone.condition.is_open() {
            self.make_room(zone)?;
        }
        self.enter(number, Condition::ExplicitOpen);
        Ok(())
    }

    pub(super) fn close(&mut self, number: u32) -> Result<()> {
        let zone = self.zone(number)?;
        self.check_usable(zone)?;
        match zone.condition {
            Condition::Closed => Ok(()),
            condition if condition.is_open() => {
                self.enter(number, if zone.pointer == 0 { Condition::Empty } else { Condition::Closed });
                Ok(())
            }
            _ => Err(Error::BadCondition),
        }
    }

    /// The zone goes read-only or offline.
    pub(super) fn fail(&mut self, number: u32, condition: Condition) {
        if (number as usize) < self.zones.len() {
            self.enter(number, condition);
        }
    }

    fn check_usable(&self, zone: Zone) -> Result<()> {
        match zone.condition {
            Condition::ReadOnly => Err(Error::ReadOnly),
            Condition::Offline => Err(Error::Offline),
            _ => Ok(()),
        }
    }

    /// Makes room for one more open zone, and one more active one if `zone` is none yet.
    fn make_room(&mut self, zone: Zone) -> Result<()> {
        if !zone.condition.is_active()
            && self.geometry.active_max != 0
            && self.active >= self.geometry.active_max
        {
            return Err(Error::TooManyActive);
        }
        if self.geometry.open_max != 0 && self.open >= self.geometry.open_max {
            let oldest = self.implicit.front().copied().ok_or(Error::TooManyOpen)?;
            let empty = self.zone(oldest)?.pointer == 0;
            self.enter(oldest, if empty { Condition::Empty } else { Condition::Closed });
        }
        Ok(())
    }

    fn set_pointer(&mut self, number: u32, pointer: u64) {
        if let Some(zone) = self.zones.get_mut(number as usize) {
            zone.pointer = pointer;
        }
    }

    fn enter(&mut self, number: u32, condition: Condition) {
        let Some(zone) = self.zones.get_mut(number as usize) else { return };
        let before = std::mem::replace(&mut zone.condition, condition);
        self.open = self.open + u32::from(condition.is_open()) - u32::from(before.is_open());
        self.active = self.active + u32::from(condition.is_active()) - u32::from(before.is_active());
        if before == Condition::ImplicitOpen {
            self.implicit.retain(|open| *open != number);
        }
        if condition == Condition::ImplicitOpen {
            self.implicit.push_back(number);
        }
    }
}
