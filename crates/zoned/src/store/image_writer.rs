//! Writing the image of a checkpoint: to zones of its own, several side by side, while the next part of it is being made.
//!
//! A chunk goes to the next zone in turn, by a thread that this zone has, and without the store's lock. What was written becomes known in the
//! order of the image. What cannot be written so is written in the caller's thread, to a zone that can be had.

use super::change::{Change, DeviceExtent, EXTENT_BLOCKS_MAX};
use super::core::Core;
use super::error::{Error, Result};
use super::shared::Shared;
use super::worker_thread::WorkerThread;
use super::zones::{For, Role};
use crate::device::{self, AlignedBuf, ZonedDevice};
use std::collections::VecDeque;
use std::sync::Arc;

/// How often a write is tried in another zone after an error.
const WRITE_TRIES: usize = 4;
/// Bytes that all zones of an image get at once: so many that a disk is busy while the next ones are made.
const AT_ONCE: usize = 4 << 20;
/// Chunks that a zone's thread has at the most: one that it writes, and one that it goes on with.
const DEPTH: usize = 2;
/// Bytes of a chunk at the least.
const CHUNK_LEAST: usize = 1 << 20;

/// A zone that an image has for itself.
#[derive(Clone, Copy, Debug)]
struct ImageZone {
    zone: u32,
    pointer: u64,
    capacity: u64,
}

/// Blocks to be written at a zone's pointer, in the first `len` bytes of a buffer.
#[derive(Debug)]
struct Job {
    own: ImageZone,
    buffer: AlignedBuf,
    len: usize,
}

/// A job that was done: how many blocks were written, and what came after them.
#[derive(Debug)]
struct JobOutcome {
    job: Job,
    /// Not where a write to the same zone had failed before.
    was_tried: bool,
    blocks: u64,
    result: device::Result<()>,
}

/// Part of an image that is being written.
#[derive(Debug)]
struct Flight {
    slot: usize,
    /// The first block, in the image.
    at: u64,
    /// Bytes of the image up to its end.
    size: u64,
    sums: Vec<u32>,
}

/// One of the zones side by side, and who writes to it.
#[derive(Debug, Default)]
struct Slot {
    own: Option<ImageZone>,
    hand: Option<WorkerThread<Job, JobOutcome>>,
}

/// The blocks of an image on their way to the device.
#[derive(Debug)]
pub(super) struct ImageWriter {
    shared: Arc<Shared>,
    object: u64,
    slots: Vec<Slot>,
    /// How many of them are used from the beginning. Of the others one more for each zone that the image has filled, so that a small one does not
    /// leave several zones nearly empty.
    slots_at_first: usize,
    /// Chunks given away so far.
    chunks: usize,
    flights: VecDeque<Flight>,
    /// Buffers that nobody uses.
    spare: Vec<AlignedBuf>,
    chunk: usize,
    /// Blocks of a zone.
    capacity: u64,
}

impl ImageWriter {
    pub(super) fn new(shared: &Arc<Shared>, core: &Core, object: u64) -> Self {
        let slots_at_first = core.root.placement.stripe.max(1) as usize;
        let count = slots_at_first.max(shared.device.side_by_side() as usize);
        let block = core.root.block_size as usize;
        // Never more than a zone holds, and whole blocks.
        let zone = usize::try_from(core.capacity()).unwrap_or(usize::MAX).saturating_mul(block);
        let chunk = (AT_ONCE / count).max(CHUNK_LEAST).min(zone) / block * block;
        let slots = (0..count).map(|_| Slot::default()).collect();
        let (flights, spare) = (VecDeque::new(), Vec::new());
        let (shared, chunk, capacity) = (Arc::clone(shared), chunk.max(block), core.capacity());
        Self { shared, object, slots, slots_at_first, chunks: 0, flights, spare, chunk, capacity }
    }

    /// Bytes that are best handed over at once.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// A buffer that was used for a chunk, if there is one.
    pub(super) fn take_spare_buffer(&mut self) -> Option<AlignedBuf> {
        self.spare.pop()
    }

    /// Writes the whole blocks that `buffer` begins with, `len` bytes with these checksums, to block `at` of the image, which has `size` bytes then.
    /// It may still be under way when this returns.
    pub(super) fn write(
        &mut self,
        buffer: AlignedBuf,
        len: usize,
        at: u64,
        size: u64,
        sums: Vec<u32>,
    ) -> Result<()> {
        let slots = self.slots_in_use(at);
        let slot = self.chunks % slots;
        self.chunks += 1;
        let block = self.block_size();
        // The oldest one there is belongs to the zone whose turn it is.
        while self.flights.len() >= DEPTH * slots {
            self.wait_for_oldest()?;
        }
        if len < self.chunk {
            // The last part, or one that somebody wants written now.
            return self.write_in_thread(&buffer.as_slice()[..len], slot, at, size, &sums);
        }
        let own = match self.slots[slot].own {
            Some(own) if own.pointer < own.capacity => Some(own),
            _ => self.take_zone().ok(),
        };
        let fits = own.filter(|own| (own.capacity - own.pointer) as usize >= len / block);
        let Some(own) = fits else {
            self.slots[slot].own = own;
            return self.write_in_thread(&buffer.as_slice()[..len], slot, at, size, &sums);
        };
        let hand = self.slots[slot].hand.take().or_else(|| self.worker());
        let Some(hand) = hand else {
            self.slots[slot].own = Some(own);
            return self.write_in_thread(&buffer.as_slice()[..len], slot, at, size, &sums);
        };
        let next = ImageZone { pointer: own.pointer + (len / block) as u64, ..own };
        self.slots[slot].own = Some(next);
        match hand.submit(Job { own, buffer, len }) {
            Ok(()) => {
                self.slots[slot].hand = Some(hand);
                self.flights.push_back(Flight { slot, at, size, sums });
                Ok(())
            }
            Err(job) => {
                self.slots[slot].own = Some(own);
                self.write_in_thread(&job.buffer.as_slice()[..len], slot, at, size, &sums)
            }
        }
    }

    /// How many zones are written side by side after so many blocks.
    fn slots_in_use(&self, blocks: u64) -> usize {
        let filled = blocks / self.capacity.max(1);
        (self.slots_at_first as u64).saturating_add(filled).min(self.slots.len() as u64) as usize
    }

    fn worker(&self) -> Option<WorkerThread<Job, JobOutcome>> {
        let device = Arc::clone(&self.shared.device);
        let mut failed = None;
        WorkerThread::new(move |job: Job| {
            if failed == Some(job.own.zone) {
                // By now it may be somebody else's.
                return JobOutcome {
                    job,
                    was_tried: false,
                    blocks: 0,
                    result: Err(device::Error::BadCondition),
                };
            }
            let (blocks, result) = write_all(&*device, &job);
            if result.is_err() {
                failed = Some(job.own.zone);
            }
            JobOutcome { job, was_tried: true, blocks, result }
        })
    }

    fn block_size(&self) -> usize {
        self.shared.device.geometry().block_size as usize
    }

    /// Waits until all is written and known.
    pub(super) fn sync(&mut self) -> Result<()> {
        while !self.flights.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    /// Waits for the oldest part that is under way, and makes it known. What of it was not written goes elsewhere.
    fn wait_for_oldest(&mut self) -> Result<()> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let Some(done) = self.slots[flight.slot].hand.as_ref().and_then(WorkerThread::take) else {
            // Nobody knows what it has written; the zone is not written to again.
            self.slots[flight.slot].hand = None;
            self.leave(flight.slot);
            return Err(Error::Device(device::Error::Io(rustix::io::Errno::IO)));
        };
        let JobOutcome { job, was_tried, blocks, result } = done;
        let (own, block) = (job.own, self.block_size());
        if blocks > 0 {
            self.note_written(own, blocks, &flight, 0)?;
        }
        match result {
            Ok(()) => {}
            Err(device::Error::NoPower) => return Err(device::Error::NoPower.into()),
            Err(error) => {
                if was_tried {
                    self.failed(flight.slot, own, blocks, &error);
                }
                let (from, sums) = (blocks as usize, &flight.sums[blocks as usize..]);
                let rest = &job.buffer.as_slice()[from * block..job.len];
                self.write_in_thread(rest, flight.slot, flight.at + blocks, flight.size, sums)?;
            }
        }
        self.spare.push(job.buffer);
        Ok(())
    }

    /// A zone has refused a write after so many blocks: it is left as it is.
    fn failed(&mut self, slot: usize, own: ImageZone, blocks: u64, error: &device::Error) {
        tracing::error!(
            "zone {}, block {}: {error}; it is written elsewhere",
            own.zone,
            own.pointer + blocks
        );
        let mut core = self.shared.core.lock();
        core.zones.refresh(own.zone, &*self.shared.device);
        core.zones.set_role(own.zone, Role::Data);
        let _ = self.slots[slot].own.take_if(|other| other.zone == own.zone);
    }

    /// The zone of a slot is not this image's any more.
    fn leave(&mut self, slot: usize) {
        if let Some(own) = self.slots[slot].own.take() {
            self.shared.core.lock().zones.set_role(own.zone, Role::Data);
        }
    }

    /// Some first blocks of a part, from `skip` on, are in their zone.
    fn note_written(&mut self, own: ImageZone, blocks: u64, flight: &Flight, skip: usize) -> Result<()> {
        let block = self.block_size() as u64;
        let shared = Arc::clone(&self.shared);
        let mut core = shared.core.lock();
        core.zones.set_pointer(own.zone, own.pointer + blocks);
        core.written_blocks[0] += blocks;
        let sums = &flight.sums[skip..skip + blocks as usize];
        // What had to be written elsewhere may come later than what follows it.
        let known = core.state.objects.get(&self.object).map_or(0, |object| object.size);
        for (number, sums) in sums.chunks(EXTENT_BLOCKS_MAX).enumerate() {
            let done = (number * EXTENT_BLOCKS_MAX) as u64;
            let at = flight.at + skip as u64 + done;
            let place = DeviceExtent { zone: own.zone, block: (own.pointer + done) as u32 };
            let size = flight.size.min((at + sums.len() as u64) * block).max(known);
            core.change(Change::Map { object: self.object, at, place, size, sums: sums.to_vec() })?;
        }
        if own.pointer + blocks >= own.capacity {
            // Full, and what it holds is known.
            core.zones.set_role(own.zone, Role::Data);
            self.slots.iter_mut().for_each(|slot| slot.own = slot.own.filter(|other| other.zone != own.zone));
        }
        if core.is_full_of_changes() { core.commit() } else { Ok(()) }
    }

    /// Writes blocks in this thread, to this slot's zone or to whatever zone can be had.
    fn write_in_thread(&mut self, data: &[u8], slot: usize, at: u64, size: u64, sums: &[u32]) -> Result<()> {
        // All before it is known then, and no zone has two writers.
        self.sync()?;
        let block = self.block_size();
        let flight = Flight { slot, at, size, sums: sums.to_vec() };
        let (mut done, mut tries, mut slot) = (0, 0, slot);
        while done < sums.len() {
            let own = match self.slots[slot].own {
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
            self.slots[slot].own = Some(own);
            let most = self.shared.device.geometry().write_blocks_max.min(own.capacity - own.pointer);
            let count = (sums.len() - done).min(most as usize).min(EXTENT_BLOCKS_MAX);
            let part = &data[done * block..(done + count) * block];
            match self.shared.device.write(own.zone, own.pointer, part) {
                Ok(()) => {
                    self.slots[slot].own = Some(ImageZone { pointer: own.pointer + count as u64, ..own });
                    self.note_written(own, count as u64, &flight, done)?;
                    done += count;
                }
                Err(device::Error::NoPower) => return Err(device::Error::NoPower.into()),
                Err(error) => {
                    self.failed(slot, own, 0, &error);
                    tries += 1;
                    if tries >= WRITE_TRIES {
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// A zone of this image's, and where it stands in the list.
    fn any_zone(&self) -> Option<(usize, ImageZone)> {
        self.slots.iter().enumerate().find_map(|(number, slot)| Some((number, slot.own?)))
    }

    fn take_zone(&self) -> Result<ImageZone> {
        let mut core = self.shared.core.lock();
        core.check_reservation()?;
        core.make_room()?;
        let zone = core.take(For::Checkpoint, Role::Owned)?;
        let info = core.zones.get(zone);
        Ok(ImageZone { zone, pointer: info.pointer, capacity: info.capacity })
    }

    /// Waits for what is under way, whatever comes of it, and gives the zones back.
    pub(super) fn release_zones(&mut self) {
        for flight in std::mem::take(&mut self.flights) {
            let done = self.slots[flight.slot].hand.as_ref().and_then(WorkerThread::take);
            if let Some(JobOutcome { job, was_tried: true, blocks, result }) = done {
                let mut core = self.shared.core.lock();
                core.zones.set_pointer(job.own.zone, job.own.pointer + blocks);
                if result.is_err() {
                    core.zones.refresh(job.own.zone, &*self.shared.device);
                }
                core.zones.set_role(job.own.zone, Role::Data);
            }
        }
        (0..self.slots.len()).for_each(|slot| self.leave(slot));
    }
}

/// Writes a job's blocks, as many at once as the device takes.
fn write_all(device: &dyn ZonedDevice, job: &Job) -> (u64, device::Result<()>) {
    let geometry = device.geometry();
    let (size, most) = (geometry.block_size as usize, geometry.write_blocks_max as usize);
    let mut done = 0;
    for part in job.buffer.as_slice()[..job.len].chunks(most.saturating_mul(size)) {
        if let Err(error) = device.write(job.own.zone, job.own.pointer + done, part) {
            return (done, Err(error));
        }
        done += (part.len() / size) as u64;
    }
    (done, Ok(()))
}
