//! A partial file: some blocks are its own, the others are still those of the file below it.
//!
//! The file in the upper layer is sparse and has the right size. A block that is its own is read and written there. A block
//! that is not comes from below, up to the *limit*: from there on nothing ever comes from below, so what is cut off and
//! grown again reads as zeros. The first write to a block copies the rest of that block, and writes it in one go, so that
//! whoever comes after a crash finds it as it was or as it is to be.
//!
//! Locks: `shape` is held shared while blocks are read and written and exclusively while the limit changes; a block that
//! is not the file's own is written under `busy`, so that two writers of one block do not undo each other's bytes.

use super::block_locks::BlockLocks;
use super::index::BlockIndex;
use super::map::{BlockMap, ChunkBits};
use super::record::Record;
use crate::copyup::unsynced_metadata::UnsyncedMetadata;
use crate::layers::read_file::read_full;
use crate::sync::RwLock;
use smallvec::{SmallVec, smallvec};
use std::any::Any;
use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use vellum_vfs::{BranchFile, Errno, Error, Object, OpenMode, Result, Seek, SetTime};

/// Bytes that are copied from below at a time when a file is completed, and zeros that are written at a time.
pub(super) const STEP: usize = 256 * 1024;

/// Where the bytes from some offset on are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In the file itself.
    Own,
    /// In the file below.
    Below,
}

/// What changes with the size of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes from here on are never taken from below.
    pub(super) limit: u64,
    /// The limit as it is recorded on the file; it may be larger after a crash, as long as the file has not grown since.
    recorded: u64,
}

/// A partial file, opened. There is at most one of each file.
pub(crate) struct PartialFile {
    pub(super) upper: Arc<dyn BranchFile>,
    pub(super) below: Arc<dyn BranchFile>,
    pub(super) index: Box<dyn BlockIndex>,
    pub(super) map: BlockMap,
    pub(super) shape: RwLock<Shape>,
    pub(super) busy: BlockLocks,
    pub(super) record: Record,
    /// Name of the attribute that holds the record.
    name: &'static CStr,
    /// Whether a sync of data is enough: the record counts as data, for without it the file reads differently.
    pub(super) unsynced: UnsyncedMetadata,
}

impl PartialFile {
    /// Puts a partial file together. EIO: the file below is not the one it was made from, or the record makes no sense.
    pub(crate) fn new(
        upper: Arc<dyn BranchFile>,
        below: Arc<dyn BranchFile>,
        index: Box<dyn BlockIndex>,
        record: Record,
        name: &'static CStr,
    ) -> Result<Self> {
        if below.stat()?.size != record.origin_size || record.limit > record.origin_size {
            return Err(Error::new(Errno::IO, "the file below a partial file has another size").damage());
        }
        // After a crash the file may be shorter than its record says; nothing beyond its end has ever come back.
        let limit = record.limit.min(upper.stat()?.size);
        Ok(Self {
            upper,
            below,
            index,
            map: BlockMap::new(),
            shape: RwLock::new(Shape { limit, recorded: record.limit }),
            busy: BlockLocks::default(),
            record,
            name,
            unsynced: UnsyncedMetadata::new(),
        })
    }

    /// The number of its sidecar, if it has one.
    pub(crate) const fn sidecar(&self) -> Option<u64> {
        self.record.sidecar
    }

    /// Blocks that may come from below.
    pub(super) fn blocks(&self, shape: Shape) -> u64 {
        shape.limit.div_ceil(self.record.block())
    }

    fn load(&self, shape: Shape) -> impl Fn(u64) -> Result<ChunkBits> {
        move |chunk| {
            self.index.load(&*self.upper, chunk, self.record.shift, self.blocks(shape) * self.record.block())
        }
    }

    /// Whether a block is own, and the end of the run of blocks, at most `end`, for which that is so.
    pub(super) fn run(&self, block: u64, end: u64, shape: Shape) -> Result<(bool, u64)> {
        self.map.run(block, end, self.blocks(shape), self.load(shape))
    }

    /// Where the bytes at `at` are, and up to where (at most `end`) that is so.
    pub(super) fn source(&self, at: u64, end: u64, shape: Shape) -> Result<(Source, u64)> {
        if at >= shape.limit {
            return Ok((Source::Own, end));
        }
        let shift = self.record.shift;
        let wanted = end.min(shape.limit).div_ceil(self.record.block());
        let (own, stop) = self.run(at >> shift, wanted, shape)?;
        let stop = (stop << shift).min(end);
        Ok(if own { (Source::Own, stop) } else { (Source::Below, stop.min(shape.limit)) })
    }

    /// Whether all these blocks are own. Afterwards the map knows all of them, so that they can be noted.
    fn all_own(&self, blocks: Range<u64>, shape: Shape) -> Result<bool> {
        let mut all = true;
        let mut at = blocks.start;
        while at < blocks.end {
            let (own, stop) = self.run(at, blocks.end, shape)?;
            all &= own;
            at = stop;
        }
        Ok(all)
    }

    /// Notes blocks that were written as own. After an error they are not.
    pub(super) fn note(&self, blocks: Range<u64>, shape: Shape) -> Result<()> {
        let blocks = blocks.start..blocks.end.min(self.blocks(shape));
        if blocks.start < blocks.end {
            self.index.record(blocks.clone())?;
            self.map.set(blocks.clone(), self.blocks(shape));
            self.index.noted(blocks);
        }
        Ok(())
    }

    /// The shape, once the recorded limit is no larger than the real one: only then may the file grow.
    fn recorded_shape(&self) -> Result<crate::sync::RwLockReadGuard<'_, Shape>> {
        loop {
            let shape = self.shape.read();
            if shape.recorded == shape.limit {
                return Ok(shape);
            }
            drop(shape);
            self.record_limit(&mut self.shape.write())?;
        }
    }

    pub(super) fn record_limit(&self, shape: &mut Shape) -> Result<()> {
        if shape.recorded != shape.limit {
            let record = Record { limit: shape.limit, ..self.record };
            self.upper.set_xattr(self.name, &record.encode(), 0)?;
            self.unsynced.change();
            shape.recorded = shape.limit;
        }
        Ok(())
    }

    /// There is no record any more that could be behind.
    pub(super) const fn forget_record(shape: &mut Shape) {
        shape.recorded = shape.limit;
    }

    /// Reads exactly from below. EIO: the file below has become shorter.
    pub(super) fn read_below(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if read_full(&*self.below, buf, offset)? < buf.len() {
            return Err(Error::new(Errno::IO, "the file below a partial file has become shorter"));
        }
        Ok(())
    }

    /// Writes blocks of which some are not own. The caller holds them, or the whole file.
    fn write_filling(&self, data: &[u8], offset: u64, shape: Shape) -> Result<usize> {
        let size = self.upper.stat()?.size;
        let end = offset + data.len() as u64;
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let direct = self.direct(at, end, size, shape)?;
            let result = if direct > at {
                let part = rest.get(..usize::try_from(direct - at).unwrap_or(usize::MAX)).unwrap_or(rest);
                self.write_direct(part, at, size, shape)
            } else {
                self.write_composed(rest, at, size, shape)
            };
            match result {
                Ok((n, complete)) => {
                    done += n;
                    if !complete {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// How far one can write from `at` on without bytes from below: as long as blocks are own, covered, or beyond the limit.
    fn direct(&self, at: u64, end: u64, size: u64, shape: Shape) -> Result<u64> {
        let (shift, block) = (self.record.shift, self.record.block());
        let plain = |number: u64| -> Result<bool> {
            Ok(number << shift >= shape.limit || self.run(number, number + 1, shape)?.0)
        };
        let first = at >> shift;
        let covers_first = at == first << shift && end >= ((first << shift) + block).min(size);
        if !covers_first && !plain(first)? {
            return Ok(at);
        }
        let last = (end - 1) >> shift;
        let covers_last = end >= ((last << shift) + block).min(size);
        Ok(if last == first || covers_last || plain(last)? { end } else { last << shift })
    }

    /// Writes to the file as it is; says how much, and whether that was all.
    fn write_direct(&self, data: &[u8], at: u64, size: u64, shape: Shape) -> Result<(usize, bool)> {
        let shift = self.record.shift;
        let n = self.upper.write_at(data, at)?;
        let end = at + n as u64;
        if n < data.len() {
            // The last block may have been begun: its rest must not read as zeros.
            self.complete_block(end, size, shape)?;
        }
        self.note(at >> shift..end.div_ceil(self.record.block()), shape)?;
        Ok((n, n == data.len()))
    }

    /// After writing has ended within a block that may not have been own: the rest of it comes from below.
    pub(super) fn complete_block(&self, end: u64, size: u64, shape: Shape) -> Result<()> {
        let (shift, block) = (self.record.shift, self.record.block());
        let number = end >> shift;
        let start = number << shift;
        if end == start || end >= shape.limit || self.run(number, number + 1, shape)?.0 {
            return Ok(());
        }
        // What lies beyond the limit is the file's own, also in this block.
        let stop = (start + block).min(size).min(shape.limit);
        if end >= stop {
            return Ok(());
        }
        let mut rest: SmallVec<[u8; 4096]> = smallvec![0; usize::try_from(stop - end).unwrap_or(0)];
        self.read_below(&mut rest, end)?;
        let n = self.upper.write_at(&rest, end)?;
        if n < rest.len() { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// After a write into a block that was not own ended early: back to the hole that it was. With a sidecar, what the block
    /// holds below the limit does not matter, and beyond the limit it is the file's own.
    pub(super) fn undo_torn(&self, start: u64) -> Result<()> {
        if self.index.is_exact() {
            self.upper.allocate(PUNCH_HOLE | KEEP_SIZE, start, self.record.block())?;
        }
        Ok(())
    }

    /// Writes one block, the bytes that `data` does not give taken from below.
    fn write_composed(&self, data: &[u8], at: u64, size: u64, shape: Shape) -> Result<(usize, bool)> {
        let (shift, block) = (self.record.shift, self.record.block());
        let number = at >> shift;
        let start = number << shift;
        let inside = usize::try_from(at - start).unwrap_or(0);
        let n = data.len().min(usize::try_from(block).unwrap_or(0) - inside);
        let existing = usize::try_from((start + block).min(size).saturating_sub(start)).unwrap_or(0);
        let mut whole: SmallVec<[u8; 4096]> = smallvec![0; existing.max(inside + n)];
        let below = usize::try_from(shape.limit.saturating_sub(start)).unwrap_or(usize::MAX).min(existing);
        self.read_below(whole.get_mut(..below).unwrap_or_default(), start)?;
        if !self.index.is_exact() && below < existing {
            // The sidecar may have missed, before a crash, that the file grew here.
            let own = whole.get_mut(below..existing).unwrap_or_default();
            read_full(&*self.upper, own, start + below as u64)?;
        }
        let (Some(place), Some(part)) = (whole.get_mut(inside..inside + n), data.get(..n)) else {
            return Err(Errno::IO.into());
        };
        place.copy_from_slice(part);
        let written = self.upper.write_at(&whole, start)?;
        if written < whole.len() {
            if written > 0 {
                self.undo_torn(start)?;
            }
            return Err(Errno::NOSPC.into());
        }
        self.note(number..number + 1, shape)?;
        Ok((n, true))
    }

    /// Makes a range read as zeros that lies below the limit. The caller has the file for himself.
    fn zero_inside(&self, range: Range<u64>, shape: Shape) -> Result<()> {
        static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
        let mut at = range.start;
        while at < range.end {
            let (source, stop) = self.source(at, range.end, shape)?;
            // What is a hole below is zeros already.
            if source == Source::Below && self.below_data(at)? >= stop {
                at = stop;
                continue;
            }
            let n = usize::try_from(stop - at).unwrap_or(ZEROS.len()).min(ZEROS.len());
            let part = ZEROS.get(..n).unwrap_or_default();
            match self.write_filling(part, at, shape)? {
                0 => return Err(Errno::NOSPC.into()),
                n => at += n as u64,
            }
        }
        Ok(())
    }

    /// The first data of the file below at or after an offset; `u64::MAX` if only a hole is left.
    pub(super) fn below_data(&self, at: u64) -> Result<u64> {
        match self.below.seek(at, Seek::Data) {
            Ok(data) => Ok(data),
            Err(e) if e.errno() == Errno::NXIO => Ok(u64::MAX),
            Err(e) if matches!(e.errno(), Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(at),
            Err(e) => Err(e),
        }
    }

    /// Punches a hole, or zeroes a range.
    fn clear(&self, mode: u32, range: Range<u64>) -> Result<()> {
        let mut shape = self.shape.write();
        self.record_limit(&mut shape)?;
        if range.start >= shape.limit {
            self.own_boundary_block(range.start, *shape)?;
            return self.upper.allocate(mode, range.start, range.end - range.start);
        }
        if range.end < shape.limit {
            self.zero_inside(range, *shape)?;
            // Also when all of it was zeros before.
            return self.upper.set_times(None, Some(SetTime::Now));
        }
        // To the end of what comes from below: from here on, nothing does. The rest of a block is zeroed by hand, so that what
        // the filesystem does to it does not matter. The limit is recorded first, for otherwise a crash in between would
        // show what was below of blocks that were own.
        let limit = shape.limit;
        let boundary = range.start.next_multiple_of(self.record.block()).min(limit);
        self.zero_inside(range.start..boundary, *shape)?;
        self.own_boundary_block(boundary, *shape)?;
        shape.limit = boundary;
        if let Err(error) = self.record_limit(&mut shape) {
            shape.limit = limit;
            return Err(error);
        }
        self.map.truncate(self.blocks(*shape));
        let above = boundary..range.end;
        if above.is_empty() {
            return self.upper.set_times(None, Some(SetTime::Now));
        }
        match self.upper.allocate(mode, boundary, above.end - above.start) {
            Err(e) if e.errno() == Errno::OPNOTSUPP => self.zero_above(above, mode & KEEP_SIZE != 0),
            other => other,
        }
    }

    /// Makes the block in the middle of which `at` lies the file's own, if a part of it comes from below: the filesystem zeroes
    /// or reserves a part of a block by making all of it data.
    pub(super) fn own_boundary_block(&self, at: u64, shape: Shape) -> Result<()> {
        let start = at >> self.record.shift << self.record.shift;
        if start == at || start >= shape.limit || self.source(start, at, shape)?.0 == Source::Own {
            return Ok(());
        }
        self.copy_up_blocks(start, (start + self.record.block()).min(shape.limit), shape)
    }

    /// Zeroes by hand what the filesystem cannot zero, beyond the limit.
    fn zero_above(&self, range: Range<u64>, keep: bool) -> Result<()> {
        let zeros = vec![0; STEP];
        let size = self.upper.stat()?.size;
        let end = if keep { range.end.min(size) } else { range.end };
        let mut at = range.start;
        while at < end {
            let n = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
            match self.upper.write_at(zeros.get(..n).unwrap_or_default(), at)? {
                0 => return Err(Errno::NOSPC.into()),
                n => at += n as u64,
            }
        }
        Ok(())
    }
}

pub(super) const KEEP_SIZE: u32 = 0x01;
pub(super) const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

impl Object for PartialFile {
    fn inner(&self) -> Result<&dyn Object> {
        Ok(&*self.upper)
    }
    fn as_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn reopen(&self, _: OpenMode) -> Result<Arc<dyn BranchFile>> {
        Err(Error::new(Errno::OPNOTSUPP, "opening half of a partial file"))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl BranchFile for PartialFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let held = self.shape.read();
        let shape = *held;
        let end = offset.saturating_add(buf.len() as u64);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (source, stop) = self.source(at, end, shape)?;
            let n = usize::try_from(stop - at).unwrap_or(usize::MAX);
            let Some(part) = buf.get_mut(done..done + n) else { break };
            match source {
                Source::Below => {
                    self.read_below(part, at)?;
                    done += n;
                }
                Source::Own => {
                    let read = self.upper.read_at(part, at)?;
                    done += read;
                    if read < n {
                        break;
                    }
                }
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let Some(last) = (data.len() as u64).checked_sub(1) else { return Ok(0) };
        let last = offset.checked_add(last).ok_or(Errno::FBIG)? >> self.record.shift;
        let shape = self.recorded_shape()?;
        let blocks = (offset >> self.record.shift)..(last + 1).min(self.blocks(*shape));
        if blocks.is_empty() || self.all_own(blocks.clone(), *shape)? {
            return self.upper.write_at(data, offset);
        }
        let _held = self.busy.hold(blocks);
        self.write_filling(data, offset, *shape)
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        let shape = *self.shape.read();
        self.unsynced.sync(datasync, |datasync| {
            self.index.sync(&self.map, self.blocks(shape), &|| self.upper.sync(datasync))
        })
    }

    fn truncate(&self, size: u64) -> Result<()> {
        let mut shape = self.shape.write();
        if size >= self.upper.stat()?.size {
            self.record_limit(&mut shape)?;
            return self.upper.truncate(size);
        }
        self.upper.truncate(size)?;
        if size < shape.limit {
            shape.limit = size;
            self.map.truncate(self.blocks(*shape));
            // If that fails, it is tried again before the file grows.
            if let Err(error) = self.record_limit(&mut shape) {
                tracing::warn!(%error, "recording the limit of a partial file");
            }
        }
        Ok(())
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        if len == 0 || i64::try_from(end).is_err() {
            return Err(if len == 0 { Errno::INVAL } else { Errno::FBIG }.into());
        }
        match mode {
            0 | KEEP_SIZE => self.reserve(mode, offset..end),
            m if m == PUNCH_HOLE | KEEP_SIZE || m & !KEEP_SIZE == ZERO_RANGE => self.clear(mode, offset..end),
            _ => Err(Error::new(Errno::OPNOTSUPP, "fallocate on a partial file")),
        }
    }

    fn seek(&self, offset: u64, whence: Seek) -> Result<u64> {
        let held = self.shape.read();
        let shape = *held;
        let size = self.upper.stat()?.size;
        let mut at = offset;
        while at < size {
            if at >= shape.limit {
                return self.upper.seek(at, whence);
            }
            let (source, stop) = self.source(at, shape.limit, shape)?;
            let found = match (whence, source) {
                (Seek::Data, Source::Own) => at,
                (Seek::Hole, Source::Own) => u64::MAX,
                (Seek::Data, Source::Below) => self.below_data(at)?,
                (Seek::Hole, Source::Below) => self.below.seek(at, Seek::Hole)?,
            };
            if found < stop {
                return Ok(found.max(at));
            }
            at = stop;
        }
        match whence {
            Seek::Hole if offset < size => Ok(size),
            _ => Err(Errno::NXIO.into()),
        }
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        let len = usize::try_from(len).unwrap_or(STEP).min(STEP);
        let mut buf = vec![0; len];
        let n = from.read_at(&mut buf, from_offset)?;
        Ok(self.write_at(buf.get(..n).unwrap_or_default(), offset)? as u64)
    }

    fn clone_from(&self, _: &dyn BranchFile) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

impl Drop for PartialFile {
    /// What a sidecar does not know yet would be lost.
    fn drop(&mut self) {
        if self.index.is_dirty()
            && let Err(error) = self.sync(true)
        {
            tracing::warn!(%error, "writing the map of a partial file");
        }
    }
}
