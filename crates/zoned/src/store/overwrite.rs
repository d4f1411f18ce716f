//! Writing into an object that is there.

use super::blocks;
use super::change::{Change, EXTENT_BLOCKS_MAX, SIZE_MAX};
use super::core::{Core, Lane};
use super::error::{Error, Result};
use super::object_read::pieces;

impl Core {
    /// Writes `data` at `offset` of an object, which grows if it must. What is between its end and `offset` is zeros. Each extent of at most
    /// [`EXTENT_BLOCKS_MAX`] blocks is there whole or not at all after a loss of power.
    pub(super) fn write_object(&mut self, name: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let number = self.state.object(name)?.0;
        let end =
            offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Error::TooLarge)?;
        let size = u64::from(self.root.block_size);
        let mut from = offset;
        while from < end {
            // Whole extents of the object's blocks, so that no block is read twice.
            let to = end.min((from / size + EXTENT_BLOCKS_MAX as u64) * size);
            let part = &data[(from - offset) as usize..(to - offset) as usize];
            self.write_extent(number, from, part)?;
            from = to;
        }
        if self.is_full_of_changes() { self.commit() } else { Ok(()) }
    }

    fn write_extent(&mut self, number: u64, offset: u64, part: &[u8]) -> Result<()> {
        let size = u64::from(self.root.block_size);
        let (first, end) = (offset / size, offset + part.len() as u64);
        let mut bytes = vec![0; ((end.div_ceil(size) - first) * size) as usize];
        // Blocks that are written in part are completed.
        if !offset.is_multiple_of(size) {
            self.read_block(number, first, &mut bytes[..size as usize])?;
        }
        let last = end.div_ceil(size) - 1;
        if !end.is_multiple_of(size) && (last != first || offset.is_multiple_of(size)) {
            let start = bytes.len() - size as usize;
            self.read_block(number, last, &mut bytes[start..])?;
        }
        let skipped = (offset - first * size) as usize;
        bytes[skipped..skipped + part.len()].copy_from_slice(part);
        let mut done = 0;
        while done < bytes.len() {
            let (place, count) = self.write_to_lane(Lane::Normal, &bytes[done..])?;
            let next = done + count * size as usize;
            let sums = blocks::sums(&bytes[done..next], size as u32);
            let known = self.state.objects.get(&number).ok_or(Error::NotFound)?.size;
            let at = first + done as u64 / size;
            let grown = known.max(end.min((first * size) + next as u64));
            self.change(Change::Map { object: number, at, place, size: grown, sums })?;
            done = next;
        }
        Ok(())
    }

    /// A block of an object as it is; zeros where there is none.
    fn read_block(&self, number: u64, at: u64, into: &mut [u8]) -> Result<()> {
        let object = self.state.objects.get(&number).ok_or(Error::NotFound)?;
        match pieces(object, at, 1).first() {
            Some(piece) => blocks::read(&*self.device, piece.place, &piece.sums, into),
            None => Ok(()),
        }
    }
}
