//! What each zone is for, which one is taken next, and how many are active.

use super::format::Placement;
use crate::device::{Condition, Zone, ZonedDevice};
use std::collections::BTreeSet;

/// What a zone is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Roots.
    Root,
    /// The log.
    Log,
    /// A lane writes to it.
    Lane,
    /// A writer has it for itself.
    Owned,
    /// Holds data, or did; nobody writes to it.
    Data,
    /// Empty.
    Free,
    /// Can never be written again, and holds nothing.
    Dead,
}

/// A zone, as the store knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZoneInfo {
    pub(super) role: Role,
    pub(super) capacity: u64,
    /// The next block that is written; the capacity when the zone is full.
    pub(super) pointer: u64,
    /// Whether it can be written, now or after a reset.
    pub(super) is_usable: bool,
}

impl ZoneInfo {
    /// Whether some of it is written, and more can be: such a zone is active.
    pub(super) fn is_begun(&self) -> bool {
        self.is_usable && self.pointer > 0 && self.pointer < self.capacity
    }
}

/// Whom a zone is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Images of checkpoints.
    Checkpoint,
    /// Everything else.
    Normal,
}

/// All zones.
#[derive(Debug)]
pub(super) struct Zones {
    pub(super) all: Vec<ZoneInfo>,
    active_max: usize,
    /// How many are free.
    free: u64,
    /// Zones that nobody writes to any more, since somebody asked.
    left: BTreeSet<u32>,
    /// Whether one of them can be written no more, so that what it holds may have to be moved.
    pub(super) has_unusable: bool,
}

impl Zones {
    /// As the device reports them; what they are for is said later.
    pub(super) fn new(reported: &[Zone], active_max: u32) -> Self {
        let all = reported.iter().map(|zone| ZoneInfo {
            role: if zone.condition.is_usable() { Role::Data } else { Role::Dead },
            capacity: zone.capacity,
            pointer: zone.pointer,
            is_usable: zone.condition.is_usable(),
        });
        let all: Vec<ZoneInfo> = all.collect();
        let has_unusable = all.iter().any(|zone| !zone.is_usable);
        Self { all, active_max: active_max as usize, free: 0, left: BTreeSet::new(), has_unusable }
    }

    pub(super) fn get(&self, zone: u32) -> ZoneInfo {
        let none = ZoneInfo { role: Role::Dead, capacity: 0, pointer: 0, is_usable: false };
        self.all.get(zone as usize).copied().unwrap_or(none)
    }

    pub(super) fn set_role(&mut self, zone: u32, role: Role) {
        if let Some(info) = self.all.get_mut(zone as usize) {
            self.free = self.free + u64::from(role == Role::Free) - u64::from(info.role == Role::Free);
            info.role = role;
            if role == Role::Data {
                self.left.insert(zone);
            }
        }
    }

    /// Zones that nobody writes to any more since this was asked last.
    pub(super) fn take_abandoned(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.left)
    }

    pub(super) fn set_pointer(&mut self, zone: u32, pointer: u64) {
        if let Some(info) = self.all.get_mut(zone as usize) {
            info.pointer = pointer.min(info.capacity);
        }
    }

    /// Asks the device how a zone is, after something went wrong with it.
    pub(super) fn refresh(&mut self, zone: u32, device: &dyn ZonedDevice) {
        if let (Ok(reported), Some(info)) = (device.report(zone), self.all.get_mut(zone as usize)) {
            info.pointer = reported.pointer;
            info.is_usable = reported.condition.is_usable();
            self.has_unusable |= !info.is_usable;
            if reported.condition == Condition::Full {
                info.pointer = info.capacity;
            }
            // A first write that failed may have left it active with nothing in it.
            if reported.condition.is_active() && reported.pointer == 0 {
                let _ = device.reset(zone);
            }
        }
    }

    pub(super) fn with_role(&self, role: Role) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().enumerate().filter(move |(_, info)| info.role == role).map(|(zone, _)| zone as u32)
    }

    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// The free zone that is to be taken next: of the groups that are for it if there is one, and of these the one that costs least, being least
    /// worn.
    pub(super) fn choose(&self, whom: For, placement: &Placement, cost: impl Fn(u32) -> u32) -> Option<u32> {
        let belongs = |zone: u32| match whom {
            For::Checkpoint => placement.is_for_checkpoints(zone),
            For::Normal => placement.is_for_normal(zone),
        };
        let mut best = None;
        for zone in self.with_role(Role::Free) {
            let key = (!belongs(zone), cost(zone));
            if best.is_none_or(|(known, _)| key < known) {
                best = Some((key, zone));
            }
            // None is better; a device that is asked for costs need not be asked for those of all zones.
            if key == (false, 0) {
                break;
            }
        }
        best.map(|(_, zone)| zone)
    }

    /// Whether one more zone can be written to, and `keep` more.
    pub(super) fn has_active_left(&self, keep: usize) -> bool {
        let is_active = |info: &&ZoneInfo| {
            let is_to_begin = info.pointer == 0 && matches!(info.role, Role::Log | Role::Lane | Role::Owned);
            info.is_begun() || (info.is_usable && is_to_begin)
        };
        self.active_max == 0 || self.all.iter().filter(is_active).count() + keep < self.active_max
    }

    /// The zone that costs least to finish, of those to which nobody writes, but for those that have refused it.
    pub(super) fn zone_to_finish(&self, refused: &[u32]) -> Option<u32> {
        let is_one = |zone: &u32| self.get(*zone).is_begun() && !refused.contains(zone);
        self.with_role(Role::Data).filter(is_one).min_by_key(|zone| {
            let info = self.get(*zone);
            info.capacity - info.pointer
        })
    }
}
