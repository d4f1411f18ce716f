//! Writing to zones that are shared, and making room: what is live in a zone moves to others, and the zone is reset.

use super::blocks;
use super::change::{Change, DeviceExtent, EXTENT_BLOCKS_MAX, LOST};
use super::core::{Core, Lane};
use super::error::{Error, Result};
use super::state::LiveBlocks;
use super::zones::{For, Role};
use crate::device;

/// How often a write is tried in another zone after an error.
const WRITE_TRIES: usize = 4;
/// A zone is collected when at least one block of so many can be had back.
pub(super) const LEAST_GAIN: u64 = 16;
/// When a zone was reset so much less often than another, what it holds is moved, so that it is used.
const WEAR_SPREAD: u32 = 16;

impl Core {
    /// Writes some first blocks of `data`, at most an extent, where a lane is. In another zone if this one fails.
    pub(super) fn write_to_lane(&mut self, lane: Lane, data: &[u8]) -> Result<(DeviceExtent, usize)> {
        let size = self.root.block_size as usize;
        let mut last = Error::NoSpace;
        for _ in 0..WRITE_TRIES {
            let zone = self.lane_zone(lane)?;
            let info = self.zones.get(zone);
            let most = (info.capacity - info.pointer).min(self.device.geometry().write_blocks_max) as usize;
            let count = (data.len() / size).min(most).min(EXTENT_BLOCKS_MAX);
            let at = info.pointer;
            let done = self.write_at(zone, at, &data[..count * size]);
            let info = self.zones.get(zone);
            if done.is_err() || info.pointer >= info.capacity {
                self.lanes[lane as usize] = None;
                self.zones.set_role(zone, Role::Data);
            }
            match done {
                Ok(()) => {
                    self.written_blocks[lane as usize] += count as u64;
                    return Ok((DeviceExtent { zone, block: at as u32 }, count));
                }
                Err(error @ Error::Device(device::Error::NoPower)) => return Err(error),
                Err(error) => {
                    tracing::error!("zone {zone}, block {at}: {error}; it is written elsewhere");
                    last = error;
                }
            }
        }
        Err(last)
    }

    fn lane_zone(&mut self, lane: Lane) -> Result<u32> {
        if let Some(zone) = self.lanes[lane as usize] {
            return Ok(zone);
        }
        if lane == Lane::Normal {
            self.make_room()?;
        }
        let zone = self.take(For::Normal, Role::Lane)?;
        self.lanes[lane as usize] = Some(zone);
        Ok(zone)
    }

    /// Refuses with NO_SPACE when a zone for data cannot be taken, even after collecting.
    pub(super) fn make_room(&mut self) -> Result<()> {
        for _ in 0..self.zones.all.len() {
            if self.zones.free() > self.reserve() {
                return Ok(());
            }
            self.commit()?;
            if self.zones.free() > self.reserve() {
                return Ok(());
            }
            if self.checkpoint_is_due() {
                self.checkpoint()?;
            } else if !self.collect()? {
                if !self.checkpoint_frees() {
                    return Err(Error::NoSpace);
                }
                self.checkpoint()?;
            }
        }
        Err(Error::NoSpace)
    }

    /// Collects the zone with the most to gain for what it costs. False: none is worth it.
    ///
    /// Of two zones with as much in them the older one is taken, because what has lived long lives on, and the younger one empties by itself
    /// (cost and benefit, after Rosenblum and Ousterhout's log-structured file system).
    pub(super) fn collect(&mut self) -> Result<bool> {
        if self.zones.free() == 0 {
            return Ok(false);
        }
        let live = |zone: u32| self.state.zones.get(zone as usize).map_or(0, |used| used.live_blocks);
        let gains = |zone: &u32| {
            let info = self.zones.get(*zone);
            let least = (info.capacity / LEAST_GAIN).max(1);
            info.is_usable && info.capacity - live(*zone).min(info.capacity) >= least
        };
        let written = self.written_blocks[0];
        let benefit = |zone: u32| {
            let (capacity, live) = (self.zones.get(zone).capacity as f64, live(zone) as f64);
            let age = written.saturating_sub(self.born.get(zone as usize).copied().unwrap_or(0)) + 1;
            (capacity - live) * age as f64 / live.max(0.5)
        };
        let data = self.zones.with_role(Role::Data).filter(gains);
        let Some(victim) = data.max_by(|a, b| benefit(*a).total_cmp(&benefit(*b))) else {
            return Ok(false);
        };
        self.move_zone(victim)?;
        self.commit()?;
        self.release_empty();
        Ok(true)
    }

    /// Moves what lies in the zone that was reset least often, if that is much less often than another.
    pub(super) fn level_wear(&mut self) -> Result<()> {
        if !self.is_worn || !self.device.wears() {
            return Ok(());
        }
        self.is_worn = false;
        let resets = |zone: u32| self.state.zones.get(zone as usize).map_or(0, |used| used.resets);
        let full = |zone: &u32| {
            let info = self.zones.get(*zone);
            info.is_usable && info.pointer >= info.capacity
        };
        let most = (0..self.zones.all.len() as u32).map(resets).max().unwrap_or(0);
        let coldest = self.zones.with_role(Role::Data).filter(full).min_by_key(|zone| resets(*zone));
        match coldest {
            Some(zone) if resets(zone) + WEAR_SPREAD < most && self.zones.free() > self.reserve() => {
                self.move_zone(zone)?;
                self.commit()
            }
            _ => Ok(()),
        }
    }

    /// Moves what can still be read out of zones that went read-only.
    pub(super) fn evacuate(&mut self) -> Result<()> {
        if !self.zones.has_unusable {
            return Ok(());
        }
        let failed = |zone: &u32| {
            let is_live = self.state.zones.get(*zone as usize).is_some_and(|used| used.live_blocks > 0);
            let state = self.device.report(*zone).map(|zone| zone.condition);
            is_live && state == Ok(device::Condition::ReadOnly)
        };
        let unusable = self.zones.with_role(Role::Data).filter(|zone| !self.zones.get(*zone).is_usable);
        let zones: Vec<u32> = unusable.filter(failed).collect();
        for zone in zones {
            if self.zones.free() <= self.reserve() {
                return Ok(());
            }
            self.move_zone(zone)?;
            self.commit()?;
        }
        Ok(())
    }

    /// Writes what is live in a zone to the collection's lane. Blocks that cannot be read are lost from then on.
    pub(super) fn move_zone(&mut self, zone: u32) -> Result<()> {
        let Some(used) = self.state.zones.get(zone as usize) else { return Ok(()) };
        let live: Vec<(u32, LiveBlocks)> = used.live.iter().map(|(block, live)| (*block, *live)).collect();
        for (block, live) in live {
            self.move_extent(DeviceExtent { zone, block }, live)?;
        }
        Ok(())
    }

    fn move_extent(&mut self, place: DeviceExtent, live: LiveBlocks) -> Result<()> {
        let size = self.root.block_size as usize;
        let Some(object) = self.state.objects.get(&live.object) else { return Ok(()) };
        let Some(extent) = object.extents.get(&live.at) else { return Ok(()) };
        let (bytes_in_all, sums) = (object.size, extent.sums.clone());
        let mut data = vec![0; sums.len() * size];
        let whole = blocks::read(&*self.device, place, &sums, &mut data);
        // One by one where not all can be read.
        let step = if whole.is_ok() { sums.len() } else { 1 };
        let mut done = 0;
        while done < sums.len() {
            let end = (done + step).min(sums.len());
            let part = &mut data[done * size..end * size];
            let from = DeviceExtent { zone: place.zone, block: place.block + done as u32 };
            let read = if whole.is_ok() {
                Ok(())
            } else {
                blocks::read(&*self.device, from, &sums[done..end], part)
            };
            let (to, count) = match read {
                Ok(()) => self.write_to_lane(Lane::Collection, part)?,
                Err(error) => {
                    tracing::error!(
                        "object {}, block {}: {error}; it is lost",
                        live.object,
                        live.at + done as u64
                    );
                    (DeviceExtent { zone: LOST, block: 0 }, end - done)
                }
            };
            let sums = sums[done..done + count].to_vec();
            let at = live.at + done as u64;
            self.change(Change::Map { object: live.object, at, place: to, size: bytes_in_all, sums })?;
            done += count;
        }
        Ok(())
    }
}
