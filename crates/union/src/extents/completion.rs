//! A partial file becomes a whole one: by being written to everywhere, or by copying what is missing.

use super::partial::{KEEP_SIZE, PUNCH_HOLE, PartialFile, STEP, Shape, Source};
use crate::copyup::privileges::Privileges;
use std::ops::Range;
use vellum_vfs::{Errno, Error, Object, Result};

impl PartialFile {
    /// Whether nothing comes from below any more, as far as is known without looking.
    pub(crate) fn is_complete(&self) -> bool {
        let held = self.shape.read();
        self.map.is_all(self.blocks(*held))
    }

    /// Bytes that are the file's own and not taken from below, of those that could be.
    pub(crate) fn own_bytes(&self) -> Result<u64> {
        let held = self.shape.read();
        let shape = *held;
        let (mut at, mut own) = (0, 0);
        while at < shape.limit {
            let (source, stop) = self.source(at, shape.limit, shape)?;
            if source == Source::Own {
                own += stop - at;
            }
            at = stop;
        }
        Ok(own)
    }

    /// Bytes that may come from below.
    pub(crate) fn limit(&self) -> u64 {
        self.shape.read().limit
    }

    /// Copies the next piece that is missing, at or after `from` (bytes); says where to go on and how many bytes it was, or None
    /// when nothing is missing any more. Holes stay holes.
    pub(crate) fn fill(&self, from: u64) -> Result<Option<(u64, u64)>> {
        // Exclusively, so that no write comes between reading the time of the last change and setting it again.
        let held = self.shape.write();
        let shape = *held;
        let Some((start, stop)) = self.missing(from, shape)? else { return Ok(None) };
        let start = start >> self.record.shift << self.record.shift;
        let end = stop.min(start.saturating_add(STEP as u64).next_multiple_of(self.record.block()));
        self.copy_up_blocks(start, end, shape)?;
        Ok(Some((end, end - start)))
    }

    /// Makes the blocks durable that are the file's own. Which ones those are is not written.
    pub(crate) fn sync_blocks(&self) -> Result<()> {
        self.upper.sync(true)
    }

    /// The next range that is neither own nor a hole below.
    fn missing(&self, from: u64, shape: Shape) -> Result<Option<(u64, u64)>> {
        let mut at = from;
        while at < shape.limit {
            let (source, stop) = self.source(at, shape.limit, shape)?;
            if source == Source::Below {
                let data = self.below_data(at)?;
                if data < stop {
                    return Ok(Some((data.max(at), stop)));
                }
            }
            at = stop;
        }
        Ok(None)
    }

    /// Copies whole blocks from below that nobody else touches meanwhile.
    pub(super) fn copy_up_blocks(&self, start: u64, end: u64, shape: Shape) -> Result<()> {
        let (shift, block) = (self.record.shift, self.record.block());
        let mut data = vec![0; usize::try_from(end - start).unwrap_or(0)];
        self.read_below(&mut data, start)?;
        let attr = self.upper.stat()?;
        let privileges = Privileges::read(&*self.upper, &attr);
        let written = self.upper.write_at(&data, start);
        // Nobody has changed the file.
        privileges.restore(&*self.upper);
        let n = written?;
        self.upper.set_times(None, Some(vellum_vfs::SetTime::At(attr.mtime)))?;
        if n < data.len() {
            let torn = (start + n as u64) >> shift << shift;
            self.undo_torn(torn)?;
            self.note(start >> shift..torn >> shift, shape)?;
            return Err(Error::new(Errno::NOSPC, "completing a partial file"));
        }
        self.note(start >> shift..end.div_ceil(block), shape)?;
        Ok(())
    }

    /// Reserves space. Blocks that are not own are copied for that: one that is only reserved looks like a hole until its zeros
    /// come into the page cache, by reading a block beside it, and like data from then on.
    pub(super) fn reserve(&self, mode: u32, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        loop {
            // In pieces, so that others need not wait for all of it.
            let mut shape = self.shape.write();
            self.record_limit(&mut shape)?;
            let end = range.end.min(shape.limit);
            if at >= end {
                self.own_boundary_block(range.start.max(end), *shape)?;
                return self.upper.allocate(mode, range.start, range.end - range.start);
            }
            let (source, mut stop) = self.source(at, end, *shape)?;
            if source == Source::Below {
                let block = self.record.block();
                let start = at >> self.record.shift << self.record.shift;
                stop = stop.min(start.saturating_add(STEP as u64)).next_multiple_of(block).min(shape.limit);
                self.copy_up_blocks(start, stop, *shape)?;
            }
            at = stop;
        }
    }

    /// Makes holes of blocks that are not own and are holes below: the file may have data there which it has never owned up to.
    fn punch_missing(&self, shape: Shape) -> Result<()> {
        let privileges = Privileges::read(&*self.upper, &self.upper.stat()?);
        let punched = (|| {
            let mut at = 0;
            while at < shape.limit {
                let (source, stop) = self.source(at, shape.limit, shape)?;
                if source == Source::Below {
                    self.upper.allocate(PUNCH_HOLE | KEEP_SIZE, at, stop - at)?;
                }
                at = stop;
            }
            Ok(())
        })();
        privileges.restore(&*self.upper);
        punched
    }

    /// Makes the file an ordinary one if nothing is missing: its data are made durable, and then `unmark` takes away what
    /// says that it is partial. False: something is missing.
    pub(crate) fn finish(&self, sync: bool, unmark: impl FnOnce(&dyn Object) -> Result<()>) -> Result<bool> {
        if sync && self.is_complete() {
            // Most of the work, while others go on.
            self.upper.sync(true)?;
        }
        let mut shape = self.shape.write();
        if !self.map.is_all(self.blocks(*shape)) && self.missing(0, *shape)?.is_some() {
            return Ok(false);
        }
        if !self.index.is_exact() {
            self.punch_missing(*shape)?;
        }
        if sync {
            self.upper.sync(true)?;
        }
        unmark(&*self.upper)?;
        // Whoever has it open in this form still goes on with a file of which all is its own.
        shape.limit = 0;
        Self::forget_record(&mut shape);
        self.map.truncate(0);
        self.unsynced.change();
        Ok(true)
    }
}
