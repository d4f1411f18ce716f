//! Writing a new object, from its start to its end.

use super::change::{Change, Class, EXTENT_BLOCKS_MAX, SIZE_MAX, check_name};
use super::core::Lane;
use super::error::{Error, Result};
use super::image_writer::ImageWriter;
use super::shared::Shared;
use crate::device::AlignedBuf;
use crate::sum::crc32c;
use std::sync::Arc;

/// Copied before its checksums are made, in bytes: no more than the processor has nearby.
const COPIED_AT_ONCE: usize = 64 << 10;

/// Writes a new object, which is there, whole, from [`commit`](Self::commit) on; without that it never was.
///
/// The image of a checkpoint goes to zones of its own, as many side by side as the store's placement says, without the store's lock, and by
/// threads that write while the caller goes on. So an error may be that of an earlier part.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    object: u64,
    /// Bytes that were taken out of the buffer.
    size: u64,
    /// Bytes that are written at once.
    chunk: usize,
    /// What is not written yet: the first `filled` bytes. It grows to a chunk.
    buffer: AlignedBuf,
    filled: usize,
    /// The checksums of its whole blocks, made while they are in the processor's cache.
    sums: Vec<u32>,
    /// For the image of a checkpoint.
    image: Option<ImageWriter>,
    is_committed: bool,
}

impl Writer {
    pub(super) fn new(shared: &Arc<Shared>, class: Class) -> Result<Self> {
        let mut core = shared.core.lock();
        core.check_writable()?;
        let object = core.state.next_object;
        core.make_room()?;
        core.change(Change::Create { object, class })?;
        let image = (class == Class::Checkpoint).then(|| ImageWriter::new(shared, &core, object));
        drop(core);
        let geometry = shared.device.geometry();
        let most = geometry.write_blocks_max.min(EXTENT_BLOCKS_MAX as u64) as usize;
        let extent = most * geometry.block_size as usize;
        Ok(Self {
            shared: Arc::clone(shared),
            object,
            size: 0,
            chunk: image.as_ref().map_or(extent, ImageWriter::chunk),
            buffer: AlignedBuf::zeroed(0),
            filled: 0,
            sums: Vec::new(),
            image,
            is_committed: false,
        })
    }

    fn block_size(&self) -> usize {
        self.shared.device.geometry().block_size as usize
    }

    /// Appends `data`.
    pub fn write(&mut self, mut data: &[u8]) -> Result<()> {
        if self.size + (self.filled + data.len()) as u64 > SIZE_MAX {
            return Err(Error::TooLarge);
        }
        while !data.is_empty() {
            let (some, rest) = data.split_at((self.chunk - self.filled).min(data.len()).min(COPIED_AT_ONCE));
            let end = self.filled + some.len();
            self.grow(end);
            self.buffer.as_mut_slice()[self.filled..end].copy_from_slice(some);
            self.filled = end;
            data = rest;
            self.sum();
            if self.filled == self.chunk {
                self.write_buffer(self.filled)?;
            }
        }
        Ok(())
    }

    /// Makes the checksums of blocks that are whole by now.
    fn sum(&mut self) {
        let size = self.block_size();
        let next = self.sums.len() * size;
        let blocks = self.buffer.as_slice()[next..self.filled].chunks_exact(size);
        self.sums.extend(blocks.map(crc32c));
    }

    /// Makes the buffer hold so many bytes, of a chunk.
    fn grow(&mut self, len: usize) {
        let now = self.buffer.as_slice().len();
        if len > now {
            // Small objects take little memory, and large ones are not copied often.
            let block = self.block_size();
            let wanted = len.max(4 * now).next_multiple_of(block).min(self.chunk);
            let mut larger = AlignedBuf::zeroed(wanted);
            larger.as_mut_slice()[..self.filled].copy_from_slice(&self.buffer.as_slice()[..self.filled]);
            self.buffer = larger;
        }
    }

    /// Hands whole blocks that are still in memory to the device; the rest of a block waits for more, or for the commit.
    pub fn flush(&mut self) -> Result<()> {
        let whole = self.filled / self.block_size() * self.block_size();
        let rest = self.buffer.as_slice()[whole..self.filled].to_vec();
        self.write_buffer(whole)?;
        self.grow(rest.len());
        self.buffer.as_mut_slice()[..rest.len()].copy_from_slice(&rest);
        self.filled = rest.len();
        self.sync()
    }

    /// Gives the object its name. An object that had it is gone. Durable after a sync.
    pub fn commit(mut self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.write_buffer(self.filled)?;
        self.sync()?;
        let mut core = self.shared.core.lock();
        core.check_writable()?;
        core.make_room()?;
        core.change(Change::Link { object: self.object, name: name.to_vec() })?;
        self.is_committed = true;
        drop(core);
        if let Some(image) = &mut self.image {
            image.release_zones();
        }
        Ok(())
    }

    /// Waits until what was handed over is written.
    fn sync(&mut self) -> Result<()> {
        self.image.as_mut().map_or(Ok(()), ImageWriter::sync)
    }

    /// Writes the first `len` bytes of the buffer, filled up with zeros to a whole block, and empties it.
    fn write_buffer(&mut self, len: usize) -> Result<()> {
        let whole = len.next_multiple_of(self.block_size());
        if len == 0 {
            self.filled = 0;
            return Ok(());
        }
        self.buffer.as_mut_slice()[len..whole].fill(0);
        self.filled = whole;
        self.sum();
        self.filled = 0;
        let sums = std::mem::take(&mut self.sums);
        let at = self.size / self.block_size() as u64;
        if let Some(image) = &mut self.image {
            let next = image.take_spare_buffer().unwrap_or_else(|| AlignedBuf::zeroed(0));
            let full = std::mem::replace(&mut self.buffer, next);
            self.size += len as u64;
            return image.write(full, whole, at, self.size, sums);
        }
        self.write_normal(len, &sums)
    }

    /// Writes to the lane that all have. The lock is held from the write to the change, so that the zone is not taken for empty in between.
    fn write_normal(&mut self, len: usize, mut sums: &[u32]) -> Result<()> {
        let size = self.block_size();
        let mut left = len as u64;
        let mut data = &self.buffer.as_slice()[..sums.len() * size];
        while !data.is_empty() {
            let mut core = self.shared.core.lock();
            core.check_writable()?;
            let (place, count) = core.write_to_lane(Lane::Normal, data)?;
            let (written, rest) = data.split_at(count * size);
            let some = left.min(written.len() as u64);
            let (of_written, of_rest) = sums.split_at(count);
            let at = self.size / size as u64;
            self.size += some;
            left -= some;
            let map =
                Change::Map { object: self.object, at, place, size: self.size, sums: of_written.to_vec() };
            core.change(map)?;
            sums = of_rest;
            if core.is_full_of_changes() {
                core.commit()?;
            }
            data = rest;
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        // Nothing may be under way to a zone that is given back.
        if let Some(image) = &mut self.image {
            image.release_zones();
        }
        let mut core = self.shared.core.lock();
        // Without its record the object is gone, too, when the store is opened next.
        let _ = core.change(Change::Drop { object: self.object });
    }
}
