//! Writing a new object, from its start to its end.

use super::blocks;
use super::change::{Change, Class, EXTENT_BLOCKS_MAX, Place, SIZE_MAX, check_name};
use super::core::{Core, Lane};
use super::error::{Error, Result};
use super::shared::Shared;
use super::zones::{For, Role};
use crate::device;
use std::sync::Arc;

/// How often a write is tried in another zone after an error.
const WRITE_TRIES: usize = 4;

/// Writes a new object, which is there, whole, from [`commit`](Self::commit) on; without that it never was.
///
/// The image of a checkpoint goes to zones of its own, as many side by side as the store's placement says, and without the store's lock.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    object: u64,
    class: Class,
    size: u64,
    /// What is not written yet: less than a chunk.
    buffer: Vec<u8>,
    /// Zones that are written side by side, for images of checkpoints.
    zones: Vec<Option<Own>>,
    /// Chunks written.
    chunks: usize,
    is_committed: bool,
}

/// A zone that this writer has for itself.
#[derive(Clone, Copy, Debug)]
struct Own {
    zone: u32,
    pointer: u64,
    capacity: u64,
}

impl Writer {
    pub(super) fn new(shared: &Arc<Shared>, class: Class) -> Result<Self> {
        let mut core = shared.core.lock();
        core.check_writable()?;
        let object = core.state.next_object;
        core.make_room()?;
        core.change(Change::Create { object, class })?;
        let zones = match class {
            Class::Normal => Vec::new(),
            Class::Checkpoint => vec![None; core.root.placement.stripe as usize],
        };
        drop(core);
        Ok(Self {
            shared: Arc::clone(shared),
            object,
            class,
            size: 0,
            buffer: Vec::new(),
            zones,
            chunks: 0,
            is_committed: false,
        })
    }

    fn block_size(&self) -> usize {
        self.shared.device.geometry().block_size as usize
    }

    /// Bytes that are written at once.
    fn chunk(&self) -> usize {
        let most = self.shared.device.geometry().write_blocks_max.min(EXTENT_BLOCKS_MAX as u64) as usize;
        most * self.block_size()
    }

    /// Appends `data`.
    pub fn write(&mut self, mut data: &[u8]) -> Result<()> {
        if self.size + (self.buffer.len() + data.len()) as u64 > SIZE_MAX {
            return Err(Error::TooLarge);
        }
        let chunk = self.chunk();
        while self.buffer.len() + data.len() >= chunk {
            let (some, rest) = data.split_at(chunk - self.buffer.len());
            self.buffer.extend_from_slice(some);
            data = rest;
            self.write_buffer()?;
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    /// Hands whole blocks that are still in memory to the device; the rest of a block waits for more, or for the commit.
    pub fn flush(&mut self) -> Result<()> {
        let whole = self.buffer.len() / self.block_size() * self.block_size();
        let rest = self.buffer.split_off(whole);
        self.write_buffer()?;
        self.buffer = rest;
        Ok(())
    }

    /// Gives the object its name. An object that had it is gone. Durable after a sync.
    pub fn commit(mut self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.write_buffer()?;
        let mut core = self.shared.core.lock();
        core.check_writable()?;
        core.make_room()?;
        core.change(Change::Link { object: self.object, name: name.to_vec() })?;
        self.is_committed = true;
        give_back(&mut core, &self.zones);
        Ok(())
    }

    /// Writes what is in the buffer, filled up with zeros to a whole block.
    fn write_buffer(&mut self) -> Result<()> {
        let size = self.block_size();
        let shared = Arc::clone(&self.shared);
        let mut bytes = std::mem::take(&mut self.buffer);
        let mut left = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(size), 0);
        let mut data = bytes.as_slice();
        while !data.is_empty() {
            // The lock is held from the write to the change, so that the zone is not taken for empty in between.
            let (mut core, place, count) = match self.class {
                Class::Normal => {
                    let mut core = shared.core.lock();
                    core.check_writable()?;
                    let (place, count) = core.write_to_lane(Lane::Normal, data)?;
                    (core, place, count)
                }
                Class::Checkpoint => {
                    let (place, count) = self.write_own(data)?;
                    (shared.core.lock(), place, count)
                }
            };
            let (written, rest) = data.split_at(count * size);
            let some = left.min(written.len() as u64);
            let sums = blocks::sums(written, size as u32);
            let at = self.size / size as u64;
            self.size += some;
            left -= some;
            core.change(Change::Map { object: self.object, at, place, size: self.size, sums })?;
            if core.zones.get(place.zone).role == Role::Owned && !self.has_zone(place.zone) {
                core.zones.set_role(place.zone, Role::Data);
            }
            if core.is_full_of_changes() {
                core.commit()?;
            }
            data = rest;
        }
        bytes.clear();
        self.buffer = bytes;
        Ok(())
    }

    fn has_zone(&self, zone: u32) -> bool {
        self.zones.iter().flatten().any(|own| own.zone == zone)
    }

    /// Writes some first blocks to a zone of this writer's. To another zone if that fails.
    fn write_own(&mut self, data: &[u8]) -> Result<(Place, usize)> {
        let size = self.block_size();
        let mut slot = self.chunks % self.zones.len().max(1);
        self.chunks += 1;
        let mut last = Error::NoSpace;
        for _ in 0..WRITE_TRIES {
            let own = match self.zones.get(slot).copied().flatten() {
                Some(own) => own,
                None => match (self.take_zone(), self.any_zone()) {
                    (Ok(own), _) => own,
                    // Fewer side by side are slower, and enough.
                    (Err(Error::TooManyWriters | Error::NoSpace), Some((other, own))) => {
                        slot = other;
                        own
                    }
                    (Err(error), _) => return Err(error),
                },
            };
            let count = (data.len() / size).min((own.capacity - own.pointer) as usize);
            let done = self.shared.device.write(own.zone, own.pointer, &data[..count * size]);
            let mut core = self.shared.core.lock();
            let next = Own { pointer: own.pointer + count as u64, ..own };
            match done {
                Ok(()) => {
                    core.zones.set_pointer(own.zone, next.pointer);
                    core.written_blocks[0] += count as u64;
                    // A full one stays owned until what it holds is known.
                    self.zones[slot] = (next.pointer < next.capacity).then_some(next);
                    return Ok((Place { zone: own.zone, block: own.pointer as u32 }, count));
                }
                Err(device::Error::NoPower) => return Err(device::Error::NoPower.into()),
                Err(error) => {
                    tracing::error!(
                        "zone {}, block {}: {error}; it is written elsewhere",
                        own.zone,
                        own.pointer
                    );
                    core.zones.refresh(own.zone, &*self.shared.device);
                    core.zones.set_role(own.zone, Role::Data);
                    self.zones[slot] = None;
                    last = error.into();
                }
            }
        }
        Err(last)
    }

    /// A zone of this writer's, and where it stands in the list.
    fn any_zone(&self) -> Option<(usize, Own)> {
        self.zones.iter().enumerate().find_map(|(slot, own)| Some((slot, (*own)?)))
    }

    fn take_zone(&self) -> Result<Own> {
        let mut core = self.shared.core.lock();
        core.make_room()?;
        let zone = core.take(For::Checkpoint, Role::Owned)?;
        let info = core.zones.get(zone);
        Ok(Own { zone, pointer: info.pointer, capacity: info.capacity })
    }
}

/// Zones that nobody writes to any more.
fn give_back(core: &mut Core, zones: &[Option<Own>]) {
    for own in zones.iter().flatten() {
        core.zones.set_role(own.zone, Role::Data);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let mut core = self.shared.core.lock();
        give_back(&mut core, &self.zones);
        // Without its record the object is gone, too, when the store is opened next.
        let _ = core.change(Change::Drop { object: self.object });
    }
}
