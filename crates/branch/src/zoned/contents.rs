//! The contents of a file: blocks that are in the store, and blocks that wait in memory to be written there.
//!
//! A block in memory is zeros beyond the file's size. One in the store may hold there what was cut off; so before a file grows, its last block
//! comes into memory, and it is written before the greater size is.

use super::ranges::Ranges;
use super::tree::{ZonedTree, failed};
use crate::tree::Contents;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vellum_vfs::{Errno, Result};
use vellum_zoned::store::FileShape;

/// Blocks of a file that wait in memory at most.
const WAITING_MAX: usize = 256;
/// Written at once, in blocks.
const RUN_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct FileData {
    size: AtomicU64,
    sectors: AtomicU64,
    /// Whether the tree knows that something waits.
    is_dirty: AtomicBool,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Blocks that are in the store.
    stored: Ranges,
    /// Blocks that wait, newer than those in the store.
    waiting: BTreeMap<u64, Box<[u8]>>,
    /// How many of them have no place in the store yet.
    fresh: u64,
    /// The size that the store knows.
    stored_size: u64,
}

impl Contents for Arc<FileData> {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn sectors(&self) -> u64 {
        self.sectors.load(Ordering::Relaxed)
    }
}

/// A file whose contents are being changed, or written out.
struct ContentsUpdate<'a> {
    tree: &'a ZonedTree,
    ino: u64,
    data: &'a Arc<FileData>,
    inner: &'a mut Inner,
    block: u64,
}

impl FileData {
    /// As the store has it.
    pub(super) fn from_shape(shape: &FileShape, block: u64) -> Self {
        let mut inner = Inner { stored_size: shape.size, ..Inner::default() };
        shape.extents.iter().for_each(|(at, count)| inner.stored.insert(*at, at + count));
        let sectors = inner.stored.count() * (block / 512);
        Self {
            size: shape.size.into(),
            sectors: sectors.into(),
            inner: RwLock::new(inner),
            ..Self::default()
        }
    }

    /// Something waits, or nothing does; what was known before.
    pub(super) fn set_dirty(&self, is_dirty: bool) -> bool {
        self.is_dirty.swap(is_dirty, Ordering::Relaxed)
    }

    fn with<R>(
        self: &Arc<Self>,
        tree: &ZonedTree,
        ino: u64,
        act: impl FnOnce(&mut ContentsUpdate<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut inner = self.inner.write();
        let block = tree.block();
        let mut changing = ContentsUpdate { tree, ino, data: self, inner: &mut inner, block };
        let result = act(&mut changing);
        let sectors = (inner.stored.count() + inner.fresh) * (block / 512);
        self.sectors.store(sectors, Ordering::Relaxed);
        result
    }

    /// Reads from `offset` on, as much as there is.
    pub(super) fn read(&self, tree: &ZonedTree, ino: u64, buf: &mut [u8], offset: u64) -> Result<usize> {
        let inner = self.inner.read();
        let size = self.size.load(Ordering::Relaxed);
        let len = size.saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return Ok(0);
        }
        let block = tree.block();
        let (first, end) = (offset / block, (offset + len).div_ceil(block));
        let buf = &mut buf[..len as usize];
        if offset.is_multiple_of(block) && len.is_multiple_of(block) {
            inner.read_blocks(tree, ino, first, buf)?;
        } else {
            let mut blocks = vec![0; ((end - first) * block) as usize];
            inner.read_blocks(tree, ino, first, &mut blocks)?;
            let skipped = (offset - first * block) as usize;
            buf.copy_from_slice(&blocks[skipped..skipped + buf.len()]);
        }
        Ok(len as usize)
    }

    /// Writes all of `data`, or as much as there is room for. The caller has bounded the size.
    pub(super) fn write(
        self: &Arc<Self>,
        tree: &ZonedTree,
        ino: u64,
        data: &[u8],
        offset: u64,
    ) -> Result<usize> {
        self.with(tree, ino, |file| {
            tree.modify(ino)?;
            if offset > file.size() {
                file.zero_tail()?;
            }
            let mut done = 0;
            while done < data.len() {
                match file.write_in_block(&data[done..], offset + done as u64) {
                    Ok(count) => done += count,
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(done)
        })
    }

    /// Sets the size. Possible on a full device if it becomes smaller.
    pub(super) fn truncate(self: &Arc<Self>, tree: &ZonedTree, ino: u64, size: u64) -> Result<()> {
        self.with(tree, ino, |file| {
            tree.modify(ino)?;
            if size < file.size() { file.shrink(size) } else { file.grow_to(size) }
        })
    }

    /// Makes a range zeros, whole blocks of it holes. `grow`: the file ends no earlier than the range.
    pub(super) fn zero(
        self: &Arc<Self>,
        tree: &ZonedTree,
        ino: u64,
        (offset, end): (u64, u64),
        grow: bool,
    ) -> Result<()> {
        self.with(tree, ino, |file| {
            tree.modify(ino)?;
            file.punch(offset, end)?;
            if grow && end > file.size() { file.grow_to(end) } else { Ok(()) }
        })
    }

    /// SEEK_DATA. ENXIO where no data follows.
    pub(super) fn seek_data(&self, block: u64, offset: u64) -> Result<u64, Errno> {
        let inner = self.inner.read();
        let size = self.size.load(Ordering::Relaxed);
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let at = offset / block;
        let waiting = inner.waiting.range(at..).next().map(|(at, _)| *at);
        let found = inner.stored.next(at).into_iter().chain(waiting).min().ok_or(Errno::NXIO)?;
        Some(offset.max(found * block)).filter(|found| *found < size).ok_or(Errno::NXIO)
    }

    /// SEEK_HOLE: the end of the file is one. ENXIO beyond it.
    pub(super) fn seek_hole(&self, block: u64, offset: u64) -> Result<u64, Errno> {
        let inner = self.inner.read();
        let size = self.size.load(Ordering::Relaxed);
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let mut at = offset / block;
        loop {
            if let Some(end) = inner.stored.end_of(at) {
                at = end;
            } else if inner.waiting.contains_key(&at) {
                at += 1;
            } else {
                break;
            }
        }
        Ok(offset.max(at * block).min(size))
    }

    /// Writes what waits to the store, and the size.
    pub(super) fn write_out(self: &Arc<Self>, tree: &ZonedTree, ino: u64) -> Result<()> {
        self.with(tree, ino, |file| file.write_out())
    }

    /// The file is gone, and what waits is not wanted.
    pub(super) fn discard(&self, tree: &ZonedTree) {
        let mut inner = self.inner.write();
        tree.subtract_pending(inner.waiting.len());
        inner.waiting.clear();
        inner.fresh = 0;
    }
}

impl Inner {
    /// Blocks as they are; zeros where there are none.
    fn read_blocks(&self, tree: &ZonedTree, ino: u64, first: u64, into: &mut [u8]) -> Result<()> {
        let block = tree.block() as usize;
        let end = first + (into.len() / block) as u64;
        let all_wait = self.waiting.range(first..end).count() as u64 == end - first;
        if !all_wait && self.stored.intersects(first, end) {
            tree.store().read_blocks(ino, first, into).map_err(failed)?;
        } else {
            into.fill(0);
        }
        for (at, bytes) in self.waiting.range(first..end) {
            let start = (at - first) as usize * block;
            into[start..start + block].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn exists(&self, at: u64) -> bool {
        self.waiting.contains_key(&at) || self.stored.contains(at)
    }
}

impl ContentsUpdate<'_> {
    fn size(&self) -> u64 {
        self.data.size.load(Ordering::Relaxed)
    }

    fn set_size(&self, size: u64) {
        self.data.size.store(size, Ordering::Relaxed);
    }

    /// A block as it is, in memory, to be changed.
    fn pending_block(&mut self, at: u64, is_overwritten: bool) -> Result<&mut [u8]> {
        if !self.inner.waiting.contains_key(&at) {
            let is_stored = self.inner.stored.contains(at);
            let mut bytes = vec![0; self.block as usize];
            if is_stored && !is_overwritten {
                self.inner.read_blocks(self.tree, self.ino, at, &mut bytes)?;
                let valid = self.size().saturating_sub(at * self.block).min(self.block);
                bytes[valid as usize..].fill(0);
            }
            self.tree.add_pending(self.ino, self.data)?;
            self.inner.fresh += u64::from(!is_stored);
            self.inner.waiting.insert(at, bytes.into());
        }
        // It is there now.
        self.inner.waiting.get_mut(&at).map(|bytes| &mut **bytes).ok_or(Errno::IO.into())
    }

    /// Writes some first bytes, to one block.
    fn write_in_block(&mut self, data: &[u8], offset: u64) -> Result<usize> {
        if self.inner.waiting.len() >= WAITING_MAX {
            self.write_out()?;
        }
        let (at, from) = (offset / self.block, (offset % self.block) as usize);
        let count = data.len().min(self.block as usize - from);
        let is_overwritten = count as u64 == self.block;
        self.pending_block(at, is_overwritten)?[from..from + count].copy_from_slice(&data[..count]);
        self.set_size(self.size().max(offset + count as u64));
        Ok(count)
    }

    /// What the last block holds beyond the end of the file is zeros from now on.
    fn zero_tail(&mut self) -> Result<()> {
        let size = self.size();
        if !size.is_multiple_of(self.block) && self.inner.stored.contains(size / self.block) {
            self.pending_block(size / self.block, false)?;
        }
        Ok(())
    }

    /// The file becomes longer, with nothing in it.
    fn grow_to(&mut self, size: u64) -> Result<()> {
        if size > self.size() {
            self.zero_tail()?;
            self.set_size(size);
            self.tree.is_dirty(self.ino, self.data);
        }
        Ok(())
    }

    /// Takes waiting blocks away.
    fn drop_waiting(&mut self, from: u64, to: u64) {
        let gone: Vec<u64> = self.inner.waiting.range(from..to).map(|(at, _)| *at).collect();
        for at in &gone {
            self.inner.waiting.remove(at);
            self.inner.fresh -= u64::from(!self.inner.stored.contains(*at));
        }
        self.tree.subtract_pending(gone.len());
    }

    /// The file becomes shorter.
    fn shrink(&mut self, size: u64) -> Result<()> {
        let end = size.div_ceil(self.block);
        let is_known = self.inner.stored_size > size || self.inner.stored.intersects(end, u64::MAX);
        if is_known {
            self.tree.write_changes()?;
            self.tree.store().set_size(self.ino, size).map_err(failed)?;
            self.inner.stored_size = size;
        }
        self.drop_waiting(end, u64::MAX);
        self.inner.stored.remove(end, u64::MAX);
        if let Some(bytes) = self.inner.waiting.get_mut(&(size / self.block)) {
            bytes[(size % self.block) as usize..].fill(0);
        }
        self.set_size(size);
        self.tree.is_dirty(self.ino, self.data);
        Ok(())
    }

    /// Whole blocks become holes, parts of blocks zeros. As on ext4 the last block is whole when the range goes on behind the size.
    fn punch(&mut self, offset: u64, end: u64) -> Result<()> {
        let size = self.size();
        if offset >= size {
            return Ok(());
        }
        let end = if end > size { size.next_multiple_of(self.block) } else { end };
        let (first, last) = (offset.div_ceil(self.block), end / self.block);
        // Of the block that the range begins in, and of that in which it ends.
        let head = (offset, end.min(first * self.block));
        let tail = (offset.max(last * self.block), end);
        for (from, to) in [head, tail] {
            let at = from / self.block;
            if from < to && self.inner.exists(at) {
                let (from, to) = ((from - at * self.block) as usize, (to - at * self.block) as usize);
                self.pending_block(at, false)?[from..to].fill(0);
            }
        }
        if first < last {
            if self.inner.stored.intersects(first, last) {
                self.tree.write_changes()?;
                self.tree.store().punch(self.ino, first, last - first).map_err(failed)?;
            }
            self.drop_waiting(first, last);
            self.inner.stored.remove(first, last);
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        self.tree.write_inode(self.ino)?;
        let size = self.size();
        while let Some((&first, _)) = self.inner.waiting.first_key_value() {
            let mut data = Vec::new();
            let mut end = first;
            for (at, bytes) in self.inner.waiting.range(first..).take(RUN_MAX) {
                if *at != end {
                    break;
                }
                data.extend_from_slice(bytes);
                end += 1;
            }
            // From the front to the end, and no longer than what is written so far.
            let reached = |end: u64, known: u64| known.max(size.min(end * self.block));
            let new_size = reached(end, self.inner.stored_size);
            let (count, result) = self.tree.store().write_blocks(self.ino, first, &data, new_size);
            if count > 0 {
                self.inner.stored_size = reached(first + count, self.inner.stored_size);
                self.drop_waiting(first, first + count);
                self.inner.stored.insert(first, first + count);
            }
            result.map_err(failed)?;
        }
        if self.inner.stored_size != size {
            self.tree.store().set_size(self.ino, size).map_err(failed)?;
            self.inner.stored_size = size;
        }
        self.tree.is_clean(self.ino);
        self.data.set_dirty(false);
        Ok(())
    }
}
