//! The store's inside: what is under one lock. Committing, and writing checkpoints of the metadata.

use super::change::Change;
use super::error::{Error, Result};
use super::format::Root;
use super::log::{self, NO_ZONE, Tail};
use super::roots;
use super::state::State;
use super::zones::{For, Role, Zones};
use crate::device::ZonedDevice;
use std::sync::Arc;

/// Zones kept back beside those for metadata: one to collect into, and one for a zone that fails meanwhile.
const SPARE_ZONES: u64 = 2;
/// Data that are flushed together with the record that speaks of them, in bytes, and in zones. They have to be read if power is lost then.
const BESIDE_MAX: u64 = 4 << 20;
const BESIDE_ZONES: u64 = 4;
/// Changes that are committed although nobody has asked for it, in bytes.
const PENDING_MAX: usize = 1 << 20;
/// Blocks by which pointers of the log and of lanes may be found ahead after a loss of power, which is so much space lost until the zone is
/// collected; in small zones this part of one.
const AHEAD_BLOCKS: u64 = 64;
const AHEAD_PART: u64 = 4;

/// Active zones that a checkpoint of the metadata needs beside the log's own: two parts of its log, while it goes from one to the next.
pub(super) const LOG_ACTIVE: usize = 4;
/// How often a checkpoint is begun anew in other zones.
const CHECKPOINT_TRIES: usize = 3;

/// A number for a log.
fn draw_log_id() -> Result<u32> {
    let mut id = [0; 4];
    let drawn = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    drawn.map_err(|errno| Error::Device(errno.into()))?;
    Ok(u32::from_le_bytes(id))
}

/// Who writes to a zone that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Normal data.
    Normal = 0,
    /// What is moved when zones are collected.
    Collection = 1,
}

/// Everything under the lock.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) device: Arc<dyn ZonedDevice>,
    pub(super) root: Root,
    /// Which of the root zones has its last root.
    pub(super) roots_sound: [bool; 2],
    pub(super) state: State,
    pub(super) zones: Zones,
    /// The zones that lanes write to.
    pub(super) lanes: [Option<u32>; 2],
    tail: Tail,
    /// Changes that are not in the log.
    pending: Vec<Change>,
    pending_bytes: usize,
    /// Whether a pending change is one that somebody waits for.
    is_dirty: bool,
    /// Smallest capacity of a zone, in blocks.
    capacity: u64,
    /// Parts of the log that the last checkpoint took, and blocks of it.
    checkpoint_parts: usize,
    checkpoint_blocks: u64,
    /// Whether the last record that was flushed lies beside its data, and none after it says that they were flushed.
    is_unacknowledged: bool,
    /// Blocks of data that were written when all was flushed.
    flushed_blocks: u64,
    /// For each zone, how many blocks users had written when it was begun; 0 for those that were there when the store was opened.
    pub(super) born: Vec<u64>,
    /// Whether zones were reset since wear was looked at.
    pub(super) is_worn: bool,
    /// Why nothing can be written any more.
    fault: Option<String>,
    /// Blocks written for users, and for collecting.
    pub(super) written_blocks: [u64; 2],
    /// Blocks that may still come, by what somebody was told: images leave room for them.
    pub(super) promised_blocks: u64,
}

impl Core {
    /// Of a state that was read, or of none. A checkpoint must follow before anything is written.
    pub(super) fn new(
        device: Arc<dyn ZonedDevice>,
        root: Root,
        state: State,
        zones: Zones,
        old_log: &[[u32; 2]],
    ) -> Self {
        let capacity = zones.all.iter().map(|zone| zone.capacity).min().unwrap_or(0);
        let zone_count = zones.all.len();
        let mut tail = Tail::new(root.generation, root.log_id, [NO_ZONE; 2]);
        tail.parts = old_log.to_vec();
        Self {
            device,
            root,
            roots_sound: [true; 2],
            state,
            zones,
            lanes: [None; 2],
            tail,
            pending: Vec::new(),
            pending_bytes: 0,
            is_dirty: false,
            capacity,
            checkpoint_parts: 1,
            checkpoint_blocks: 0,
            is_unacknowledged: false,
            flushed_blocks: 0,
            born: vec![0; zone_count],
            is_worn: true,
            fault: None,
            written_blocks: [0; 2],
            promised_blocks: 0,
        }
    }

    /// Smallest capacity of a zone, in blocks.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Refuses when nothing can be written.
    pub(super) fn check_writable(&self) -> Result<()> {
        match &self.fault {
            Some(fault) => Err(Error::ReadOnly(fault.clone())),
            None => Ok(()),
        }
    }

    /// Nothing is written from now on.
    pub(super) fn refuse_changes(&mut self, why: &str) {
        self.fault = Some(why.to_owned());
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether something is in memory that the log does not say.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Makes a change in memory, and remembers it for the log.
    pub(super) fn change(&mut self, change: Change) -> Result<()> {
        self.state.apply(&change)?;
        self.is_dirty |= !matches!(change, Change::Wear { .. });
        self.pending_bytes += change.encoded_len();
        self.pending.push(change);
        Ok(())
    }

    /// Whether changes are to be committed before more are made.
    pub(super) fn is_full_of_changes(&self) -> bool {
        self.pending_bytes > PENDING_MAX
    }

    /// Parts of the log that a checkpoint needs at most.
    fn parts_needed(&self) -> u64 {
        let part = self.capacity.saturating_sub(1) * u64::from(self.root.block_size);
        // Records are not split between parts, nor changes between records: at most half is lost by that.
        (2 * self.state.encoded_len()).div_ceil(part.max(1)) + 1
    }

    /// Free zones that data may not take: those that a checkpoint of the metadata and a further part of the log need, and spare ones. With
    /// them, whatever is removed can be committed.
    pub(super) fn reserve(&self) -> u64 {
        2 * self.parts_needed() + 2 + SPARE_ZONES
    }

    /// Takes a free zone, whatever is kept back.
    pub(super) fn take(&mut self, whom: For, role: Role) -> Result<u32> {
        // Nothing that must be written may wait for the end of something that need not.
        let closed_lanes = self.lanes.iter().filter(|lane| lane.is_none()).count();
        let keep = match role {
            Role::Owned => LOG_ACTIVE + closed_lanes,
            Role::Lane => LOG_ACTIVE,
            _ => 0,
        };
        let mut refused = Vec::new();
        while !self.zones.has_active_left(keep) {
            let zone = self.zones.zone_to_finish(&refused).ok_or(Error::TooManyWriters)?;
            if !self.finish(zone) {
                refused.push(zone);
            }
        }
        let wears = self.device.wears();
        let cost = |zone: u32| match self.state.zones.get(zone as usize) {
            Some(used) if wears => used.resets,
            _ => u32::from(!self.device.has_space(zone)),
        };
        let zone = self.zones.choose(whom, &self.root.placement, cost).ok_or(Error::NoSpace)?;
        self.zones.set_role(zone, role);
        if matches!(role, Role::Log | Role::Lane) {
            self.allow_run_ahead(zone);
        }
        if let Some(born) = self.born.get_mut(zone as usize) {
            *born = self.written_blocks[0];
        }
        Ok(zone)
    }

    /// What is written to a zone a little at a time, between many flushes, is known by checksums: that of the log, and that of data which live.
    pub(super) fn allow_run_ahead(&self, zone: u32) {
        self.device.run_ahead(zone, AHEAD_BLOCKS.min(self.capacity / AHEAD_PART));
    }

    /// Makes a zone full, so that it is active no longer; false if it is as it was.
    fn finish(&mut self, zone: u32) -> bool {
        match self.device.finish(zone) {
            Ok(()) => {
                let capacity = self.zones.get(zone).capacity;
                self.zones.set_pointer(zone, capacity);
                true
            }
            Err(error) => {
                tracing::warn!("zone {zone} cannot be finished: {error}");
                self.zones.refresh(zone, &*self.device);
                !self.zones.get(zone).is_begun()
            }
        }
    }

    /// Makes all changes durable. Few data are flushed together with the records that speak of them; of many data that would have to be read when
    /// power is lost, so they are flushed before.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.check_writable()?;
        if !self.is_dirty {
            return Ok(());
        }
        let unflushed = self.written_blocks.iter().sum::<u64>() - self.flushed_blocks;
        let most = (BESIDE_MAX / u64::from(self.root.block_size)).min(BESIDE_ZONES * self.capacity);
        let is_beside = unflushed <= most;
        if !is_beside {
            self.flush()?;
        }
        let is_beside = is_beside && unflushed > 0;
        let written = self.append_pending(is_beside);
        match written {
            Ok(()) => {
                self.flush()?;
                self.tail.flushed = self.tail.sequence;
                self.is_unacknowledged = is_beside;
                self.forget_pending();
                if self.tail.is_degraded() {
                    tracing::warn!("the log has lost a copy; a checkpoint is written");
                    self.checkpoint()?;
                }
            }
            Err(error) => {
                tracing::debug!("the log does not go on ({error}); a checkpoint is written");
                self.checkpoint()?;
            }
        }
        self.release_empty();
        Ok(())
    }

    /// Says in the log that all of it was flushed, if nothing after it does. Whatever comes of that: without it the data are looked at.
    pub(super) fn acknowledge(&mut self) {
        let mut nothing = Vec::new();
        Change::Wear { zone: 0, resets: 0 }.encode(&mut nothing);
        let is_wanted = self.fault.is_none() && self.is_unacknowledged && self.fits(nothing.len());
        // Not if somebody has opened the store anew, and so begun another log.
        if !is_wanted || roots::find(&*self.device) != Ok(self.root) {
            return;
        }
        let mut tail = self.tail.clone();
        if self.write_record(&mut tail, &nothing, false).is_ok() {
            // Where a device keeps its pointers itself, they are not known before that.
            let _ = self.flush();
            self.is_unacknowledged = false;
        }
        self.tail = tail;
    }

    fn forget_pending(&mut self) {
        self.pending.clear();
        (self.pending_bytes, self.is_dirty) = (0, false);
    }

    fn flush(&mut self) -> Result<()> {
        self.flushed_blocks = self.written_blocks.iter().sum();
        self.device.flush().map_err(|error| {
            // What was not flushed may be gone, and nobody can say what.
            self.fault = Some(format!("a flush failed: {error}"));
            Error::Device(error)
        })
    }

    fn append_pending(&mut self, is_beside_data: bool) -> Result<()> {
        let record_max = log::record_max(self.device.geometry(), self.capacity);
        for record in log::pack(self.pending.clone().into_iter(), record_max) {
            // Where the log has grown long, a checkpoint is shorter.
            let is_long = self.tail.parts.len() > 2 * self.checkpoint_parts + 1;
            let is_short_of_zones = self.zones.free() < 2 * self.parts_needed() + 2;
            if !self.fits(record.len()) && (is_long || is_short_of_zones) {
                return Err(Error::NoSpace);
            }
            let mut tail = self.tail.clone();
            let done = self.append(&mut tail, &record, is_beside_data);
            self.tail = tail;
            done?;
        }
        Ok(())
    }

    /// Whether a record of so many bytes of changes goes into the log's last part, with a block left to say where it goes on.
    fn fits(&self, changes: usize) -> bool {
        self.fits_in(&self.tail, changes)
    }

    fn fits_in(&self, tail: &Tail, changes: usize) -> bool {
        let blocks = (changes + super::format::RECORD_HEAD).div_ceil(self.root.block_size as usize) as u64;
        tail.at + blocks < self.capacity
    }

    /// Appends a record, in a further part if it must be.
    fn append(&mut self, tail: &mut Tail, changes: &[u8], is_beside_data: bool) -> Result<()> {
        if !self.fits_in(tail, changes.len()) {
            let zones = self.take_pair()?;
            let mut next = Vec::new();
            Change::Next { zones }.encode(&mut next);
            let done = self.write_record(tail, &next, false);
            let full = tail.zones();
            tail.parts.push(zones);
            done?;
            (tail.is_sound, tail.at) = (zones.map(|zone| zone != NO_ZONE), 0);
            for zone in full.into_iter().filter(|zone| *zone != NO_ZONE) {
                let info = self.zones.get(zone);
                if info.is_begun() {
                    // It only stays active if that fails.
                    let _ = self.finish(zone);
                }
            }
        }
        self.write_record(tail, changes, is_beside_data)
    }

    /// Two zones for the log; the second is none where only one is left.
    fn take_pair(&mut self) -> Result<[u32; 2]> {
        let first = self.take(For::Normal, Role::Log)?;
        Ok([first, self.take(For::Normal, Role::Log).unwrap_or(NO_ZONE)])
    }

    /// Writes a record to both zones. An error when neither has it.
    fn write_record(&mut self, tail: &mut Tail, changes: &[u8], is_beside_data: bool) -> Result<()> {
        let record = tail.record(&self.root, changes, is_beside_data);
        let mut last = Error::Damaged("the log has no zone".to_owned());
        for (number, zone) in tail.zones().into_iter().enumerate() {
            if !tail.is_sound[number] {
                continue;
            }
            if let Err(error) = self.write_at(zone, tail.at, &record) {
                tracing::error!(
                    "zone {zone}: record {} of the log cannot be written: {error}",
                    tail.sequence
                );
                tail.is_sound[number] = false;
                last = error;
            }
        }
        if tail.is_sound == [false; 2] {
            return Err(last);
        }
        let blocks = (record.len() / self.root.block_size as usize) as u64;
        tail.at += blocks;
        tail.blocks += blocks;
        tail.sequence += 1;
        Ok(())
    }

    /// Writes blocks at a zone's pointer.
    pub(super) fn write_at(&mut self, zone: u32, at: u64, data: &[u8]) -> Result<()> {
        match self.device.write(zone, at, data) {
            Ok(()) => {
                self.zones.set_pointer(zone, at + (data.len() / self.root.block_size as usize) as u64);
                Ok(())
            }
            Err(error) => {
                self.zones.refresh(zone, &*self.device);
                Err(error.into())
            }
        }
    }

    /// Writes everything that the log comes to into a log of the next generation, and begins anew with that.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        self.check_writable()?;
        let done = self.write_checkpoint();
        if let Err(error) = &done {
            tracing::error!("no checkpoint of the metadata can be written: {error}");
            self.fault.get_or_insert(format!("the metadata cannot be written: {error}"));
        }
        done
    }

    fn write_checkpoint(&mut self) -> Result<()> {
        let tail = self.rewrite_log()?;
        let log = tail.parts.first().copied().unwrap_or([NO_ZONE; 2]);
        let root = Root { generation: tail.generation, log, log_id: tail.log_id, ..self.root };
        if let Err(error) = roots::write(&*self.device, &mut self.zones, &mut self.roots_sound, &root) {
            self.discard_log(&tail);
            return Err(error);
        }
        self.root = root;
        self.is_unacknowledged = false;
        (self.checkpoint_parts, self.checkpoint_blocks) = (tail.parts.len(), tail.blocks);
        let old = std::mem::replace(&mut self.tail, tail);
        self.forget_pending();
        self.discard_log(&old);
        self.release_empty();
        Ok(())
    }

    /// Writes a log of the next generation, and flushes it. Where both zones of a part fail, it is begun anew in others.
    fn rewrite_log(&mut self) -> Result<Tail> {
        let record_max = log::record_max(self.device.geometry(), self.capacity);
        let mut records = log::pack(self.state.changes(), record_max);
        if records.is_empty() {
            // Every log has a record, so that none looks like one whose records are gone.
            let mut wear = Vec::new();
            Change::Wear { zone: 0, resets: 0 }.encode(&mut wear);
            records.push(wear);
        }
        let mut last = Error::NoSpace;
        for _ in 0..CHECKPOINT_TRIES {
            let mut tail = Tail::new(self.root.generation + 1, draw_log_id()?, self.take_pair()?);
            match records.iter().try_for_each(|record| self.append(&mut tail, record, false)) {
                Ok(()) => {
                    self.flush()?;
                    tail.flushed = tail.sequence;
                    return Ok(tail);
                }
                Err(error) => {
                    self.discard_log(&tail);
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// The zones of a log hold nothing that counts.
    fn discard_log(&mut self, tail: &Tail) {
        for zone in tail.all_zones() {
            self.zones.set_role(zone, Role::Data);
        }
    }

    /// Resets the zones that hold nothing any more. Only after a commit, so that no log knows otherwise.
    pub(super) fn release_empty(&mut self) {
        if self.is_dirty {
            return;
        }
        // Not all zones are looked at: this is at every sync.
        let mut zones = self.state.take_emptied();
        zones.append(&mut self.zones.take_abandoned());
        for zone in zones {
            let is_empty = self.state.zones.get(zone as usize).is_some_and(|used| used.live_blocks == 0);
            if is_empty && self.zones.get(zone).role == Role::Data {
                self.release(zone);
            }
        }
    }

    fn release(&mut self, zone: u32) {
        let info = self.zones.get(zone);
        if !info.is_usable {
            self.zones.set_role(zone, Role::Dead);
            return;
        }
        if info.pointer > 0 {
            if let Err(error) = self.device.reset(zone) {
                tracing::warn!("zone {zone} cannot be reset: {error}");
                self.zones.refresh(zone, &*self.device);
                self.zones.set_role(zone, Role::Dead);
                return;
            }
            let resets = self.state.zones.get(zone as usize).map_or(0, |used| used.resets);
            // Applies to any zone there is, and this is one.
            let _ = self.change(Change::Wear { zone, resets: resets.saturating_add(1) });
            self.is_worn = true;
        }
        self.zones.set_pointer(zone, 0);
        self.zones.set_role(zone, Role::Free);
    }

    /// Whether a checkpoint of the metadata would free zones.
    pub(super) fn checkpoint_frees(&self) -> bool {
        self.tail.parts.len() > self.checkpoint_parts.max(1)
    }

    /// Whether it would, and the log has grown by as much as the checkpoint has: so that checkpoints at most double what the log costs.
    pub(super) fn checkpoint_is_due(&self) -> bool {
        self.checkpoint_frees() && self.tail.blocks >= 2 * self.checkpoint_blocks
    }

    /// All records of the log before this one are flushed, as far as is known without reading it.
    pub(super) fn log_flushed(&self) -> u64 {
        self.tail.flushed
    }

    /// The zones of each part of the log.
    pub(super) fn log_parts(&self) -> &[[u32; 2]] {
        &self.tail.parts
    }
}
