//! The contents of a sparse file, in blocks.

use crate::kernel_checks::{
    COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, UNSHARE_RANGE, WRITE_ZEROES, ZERO_RANGE,
};
use crate::tree::Contents;
use std::collections::BTreeMap;
use std::sync::Arc;
use vellum_vfs::Errno;

/// Size of a block in bytes, as on ext4 here.
pub(super) const BLOCK: u64 = 4096;
const BLOCK_LEN: usize = BLOCK as usize;

/// Largest size of a file in bytes: 32-bit block numbers, as on ext4.
pub(super) const MAX_SIZE: u64 = 0xffff_ffff * BLOCK;

/// Blocks that a disk has, as far as preallocation is concerned.
pub(super) const CAPACITY: u64 = 1 << 20;

#[derive(Clone)]
pub(super) enum Block {
    /// Written. Shared with forks of the disk until one of them writes.
    Data(Arc<[u8; BLOCK_LEN]>),
    /// Allocated, reads as zeros, and counts as a hole for whoever looks for data.
    Unwritten,
    /// Allocated, reads as zeros, and counts as data, because its zeros have come into the page cache, as on ext4.
    Cached,
}

/// A file's contents.
#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) size: u64,
    pub(super) blocks: BTreeMap<u64, Block>,
}

/// The part of a range that lies in one block: (block, from, to).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let block = at / BLOCK;
        let stop = end.min((block + 1) * BLOCK);
        let piece = (block, (at % BLOCK) as usize, (stop - block * BLOCK) as usize);
        at = stop;
        Some(piece)
    })
}

impl Contents for Data {
    fn size(&self) -> u64 {
        self.size
    }

    fn sectors(&self) -> u64 {
        self.blocks.len() as u64 * (BLOCK / 512)
    }
}

impl Data {
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64);
        let mut done = 0;
        for (block, from, to) in pieces(offset, len) {
            let Some(out) = buf.get_mut(done..done + (to - from)) else { break };
            match self.blocks.get(&block) {
                Some(Block::Data(bytes)) => out.copy_from_slice(&bytes[from..to]),
                _ => out.fill(0),
            }
            done += to - from;
        }
        done
    }

    /// What was read, or changed within a block, comes into the page cache, and a little of what follows it.
    pub(super) fn mark_cached(&mut self, offset: u64, len: u64) {
        /// Blocks that are read ahead.
        const AHEAD: u64 = 3;
        let last = offset.saturating_add(len).min(self.size).div_ceil(BLOCK).saturating_add(AHEAD);
        if offset < self.size && offset / BLOCK < last {
            for (_, block) in self.blocks.range_mut(offset / BLOCK..last) {
                if matches!(block, Block::Unwritten) {
                    *block = Block::Cached;
                }
            }
        }
    }

    fn bytes(&mut self, block: u64) -> &mut [u8; BLOCK_LEN] {
        let slot = self.blocks.entry(block).or_insert(Block::Unwritten);
        if !matches!(slot, Block::Data(_)) {
            *slot = Block::Data(Arc::new([0; BLOCK_LEN]));
        }
        match slot {
            Block::Data(bytes) => Arc::make_mut(bytes),
            _ => unreachable!("made data above"),
        }
    }

    /// Writes what fits below the largest size. EFBIG when nothing does.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if offset >= MAX_SIZE {
            return Err(Errno::FBIG);
        }
        let len = (MAX_SIZE - offset).min(data.len() as u64);
        let mut done = 0;
        for (block, from, to) in pieces(offset, len) {
            self.bytes(block)[from..to].copy_from_slice(&data[done..done + (to - from)]);
            done += to - from;
        }
        self.size = self.size.max(offset + len);
        Ok(done)
    }

    pub(super) fn truncate(&mut self, size: u64) -> Result<(), Errno> {
        if i64::try_from(size).is_err() {
            return Err(Errno::INVAL);
        }
        if size > MAX_SIZE {
            return Err(Errno::FBIG);
        }
        if size < self.size {
            drop(self.blocks.split_off(&size.div_ceil(BLOCK)));
            self.zero_within(size, self.size);
        }
        self.size = size;
        Ok(())
    }

    /// Zeros written bytes between two offsets without allocating anything.
    pub(super) fn zero_within(&mut self, from: u64, to: u64) {
        for (block, start, stop) in pieces(from, to - from) {
            if let Some(Block::Data(bytes)) = self.blocks.get_mut(&block) {
                Arc::make_mut(bytes)[start..stop].fill(0);
            } else if block >= self.blocks.last_key_value().map_or(0, |(last, _)| last + 1) {
                return;
            }
        }
    }

    /// fallocate(2), with checked arguments.
    pub(super) fn allocate(&mut self, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
        let end = offset.saturating_add(len);
        if end > MAX_SIZE {
            return Err(Errno::FBIG);
        }
        let keep = mode & KEEP_SIZE != 0;
        let action = mode & !KEEP_SIZE;
        match action {
            PUNCH_HOLE => self.punch(offset, end),
            COLLAPSE_RANGE => self.collapse(offset, end)?,
            INSERT_RANGE => self.insert(offset, len)?,
            UNSHARE_RANGE | WRITE_ZEROES => return Err(Errno::OPNOTSUPP),
            _ if (end - offset) / BLOCK > CAPACITY => return Err(Errno::NOSPC),
            action => {
                if action == ZERO_RANGE {
                    self.zero(offset, end);
                }
                for block in offset / BLOCK..end.div_ceil(BLOCK) {
                    self.blocks.entry(block).or_insert(Block::Unwritten);
                }
                if !keep {
                    self.size = self.size.max(end);
                }
            }
        }
        Ok(())
    }

    /// Whole blocks become holes, parts of blocks zeros. As on ext4 the last block is whole when the range goes on behind the
    /// size, and nothing beyond it is punched.
    fn punch(&mut self, offset: u64, end: u64) {
        if offset >= self.size {
            return;
        }
        let end = if end > self.size { self.size.next_multiple_of(BLOCK) } else { end };
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        self.zero_within(offset, end);
        if first < last {
            let after = self.blocks.split_off(&last);
            drop(self.blocks.split_off(&first));
            self.blocks.extend(after);
        }
    }

    /// Whole blocks become unwritten, parts of blocks zeros.
    fn zero(&mut self, offset: u64, end: u64) {
        self.zero_within(offset, end);
        for block in offset.div_ceil(BLOCK)..end / BLOCK {
            self.blocks.insert(block, Block::Unwritten);
        }
    }

    /// Nothing is in the page cache any more.
    pub(super) fn forget_cache(&mut self) {
        for block in self.blocks.values_mut() {
            if matches!(block, Block::Cached) {
                *block = Block::Unwritten;
            }
        }
    }

    fn collapse(&mut self, offset: u64, end: u64) -> Result<(), Errno> {
        if !offset.is_multiple_of(BLOCK) || !end.is_multiple_of(BLOCK) || end >= self.size {
            return Err(Errno::INVAL);
        }
        let gone = (end - offset) / BLOCK;
        let after = self.blocks.split_off(&(end / BLOCK));
        drop(self.blocks.split_off(&(offset / BLOCK)));
        self.blocks.extend(after.into_iter().map(|(block, bytes)| (block - gone, bytes)));
        self.size -= end - offset;
        Ok(())
    }

    fn insert(&mut self, offset: u64, len: u64) -> Result<(), Errno> {
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) || offset >= self.size {
            return Err(Errno::INVAL);
        }
        if len > MAX_SIZE - self.size {
            return Err(Errno::FBIG);
        }
        let after = self.blocks.split_off(&(offset / BLOCK));
        self.blocks.extend(after.into_iter().map(|(block, bytes)| (block + len / BLOCK, bytes)));
        self.size += len;
        Ok(())
    }

    /// SEEK_DATA. ENXIO where no data follows.
    pub(super) fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        self.blocks
            .range(offset / BLOCK..)
            .find(|(_, block)| !matches!(block, Block::Unwritten))
            .map(|(block, _)| offset.max(block * BLOCK))
            .filter(|found| *found < self.size)
            .ok_or(Errno::NXIO)
    }

    /// SEEK_HOLE: the end of the file is one. ENXIO beyond it.
    pub(super) fn seek_hole(&self, offset: u64) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        let mut block = offset / BLOCK;
        while matches!(self.blocks.get(&block), Some(Block::Data(_) | Block::Cached)) {
            block += 1;
        }
        Ok(offset.max(block * BLOCK).min(self.size))
    }

    /// The bytes of a range, for copying within the disk.
    pub(super) fn copy_out(&self, offset: u64, len: u64) -> Vec<u8> {
        let len = self.size.saturating_sub(offset).min(len);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let count = self.read(&mut bytes, offset);
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_where_nothing_was_written() {
        let mut data = Data::default();
        data.write(b"abc", 10 * BLOCK + 5).unwrap();
        assert_eq!(data.size(), 10 * BLOCK + 8);
        assert_eq!(data.seek_data(0), Ok(10 * BLOCK));
        assert_eq!(data.seek_hole(0), Ok(0));
        assert_eq!(data.seek_hole(10 * BLOCK + 1), Ok(10 * BLOCK + 8));
        data.allocate(PUNCH_HOLE | KEEP_SIZE, 10 * BLOCK, BLOCK).unwrap();
        assert_eq!(data.seek_data(0), Err(Errno::NXIO));
        assert_eq!(data.sectors(), 0);
    }

    #[test]
    fn truncated_bytes_read_as_zeros() {
        let mut data = Data::default();
        data.write(&[7; 9000], 0).unwrap();
        data.truncate(100).unwrap();
        data.truncate(9000).unwrap();
        let mut buf = [1; 9000];
        assert_eq!(data.read(&mut buf, 0), 9000);
        assert!(buf[..100].iter().all(|byte| *byte == 7));
        assert!(buf[100..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn collapse_and_insert_range_move_later_blocks() {
        let mut data = Data::default();
        for block in 0..4_u8 {
            data.write(&[block + 1; BLOCK_LEN], u64::from(block) * BLOCK).unwrap();
        }
        data.allocate(COLLAPSE_RANGE, BLOCK, BLOCK).unwrap();
        data.allocate(INSERT_RANGE, 2 * BLOCK, BLOCK).unwrap();
        let firsts: Vec<u8> = (0..4)
            .map(|block| {
                let mut byte = [9];
                data.read(&mut byte, block * BLOCK);
                byte[0]
            })
            .collect();
        assert_eq!(firsts, [1, 3, 0, 4]);
    }
}
