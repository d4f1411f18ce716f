//! How it is known which blocks of a partial file are its own, when it is opened.

use super::map::{BlockMap, CHUNK_BLOCKS, ChunkBits};
use super::sidecar_journal::SidecarJournal;
use super::sidecar_owner::SidecarOwner;
use crate::sync::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use vellum_vfs::{BranchFile, Errno, Result, Seek};

/// What knows which blocks are a partial file's own.
pub(crate) trait BlockIndex: Send + Sync {
    /// The own blocks of a chunk; `end` (bytes) is where the file's blocks end that may come from below.
    fn load(&self, upper: &dyn BranchFile, chunk: u64, shift: u8, end: u64) -> Result<ChunkBits>;
    /// Blocks are written, but perhaps not durable, and about to be noted as own: from now on a process after this one finds them, if the
    /// machine does not crash meanwhile.
    fn record(&self, blocks: Range<u64>) -> Result<()>;
    /// Blocks have become own, after [`BlockIndex::record`].
    fn noted(&self, blocks: Range<u64>);
    /// Makes durable what was noted so far, and before that, with `data`, the blocks themselves.
    fn sync(&self, map: &BlockMap, blocks: u64, data: &dyn Fn() -> Result<()>) -> Result<()>;
    /// Whether blocks that are not own are sure to be holes.
    fn is_exact(&self) -> bool;
    /// Whether [`BlockIndex::sync`] would do anything.
    fn is_dirty(&self) -> bool;
}

/// A block is own when it is not a hole: for filesystems that report holes exactly.
pub(crate) struct Holes;

impl BlockIndex for Holes {
    fn load(&self, upper: &dyn BranchFile, chunk: u64, shift: u8, end: u64) -> Result<ChunkBits> {
        let mut bits = ChunkBits::new();
        let block = 1_u64 << shift;
        let first = chunk * CHUNK_BLOCKS * block;
        let end = end.min(first.saturating_add(CHUNK_BLOCKS * block));
        let mut at = first;
        while at < end {
            let data = match upper.seek(at, Seek::Data) {
                Ok(data) if data < end => data,
                Ok(_) => break,
                Err(e) if e.errno() == Errno::NXIO => break,
                Err(e) => return Err(e),
            };
            let hole = upper.seek(data, Seek::Hole)?.min(end);
            bits.set((data - first) / block..(hole - first).div_ceil(block));
            // Never backwards, whatever the filesystem says.
            at = hole.max(data + 1);
        }
        Ok(bits)
    }

    /// The filesystem shows them.
    fn record(&self, _: Range<u64>) -> Result<()> {
        Ok(())
    }

    fn noted(&self, _: Range<u64>) {}

    fn sync(&self, _: &BlockMap, _: u64, data: &dyn Fn() -> Result<()>) -> Result<()> {
        data()
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn is_dirty(&self) -> bool {
        false
    }
}

/// A block is own when its bit in a file beside says so: for filesystems that cannot tell holes from data. A bit
/// becomes durable after its block, never before: a crash of the machine leaves the block as it was, not empty. A crash of this process
/// alone loses nothing ([`SidecarJournal`]).
pub(crate) struct Sidecar {
    file: Arc<dyn BranchFile>,
    recent: Option<SidecarJournal>,
    /// Chunks in which blocks have become own since the last sync.
    dirty: Mutex<BTreeSet<u64>>,
    syncing: Mutex<()>,
    /// Until it is dropped, nobody else opens the sidecar to write.
    #[expect(dead_code, reason = "it is there as long as this is")]
    alone: Option<Arc<SidecarOwner>>,
}

/// Bytes of a sidecar for one chunk.
const CHUNK_BYTES: usize = (CHUNK_BLOCKS / 8) as usize;

impl Sidecar {
    /// `recent`: where bits are written that are not durable yet. None: nobody writes, or a crash of the process is taken for one of the
    /// machine.
    pub(crate) fn new(
        file: Arc<dyn BranchFile>,
        recent: Option<SidecarJournal>,
        alone: Option<Arc<SidecarOwner>>,
    ) -> Self {
        Self { file, recent, dirty: Mutex::default(), syncing: Mutex::default(), alone }
    }

    fn write(&self, states: &[(u64, ChunkBits)]) -> Result<()> {
        for (chunk, bits) in states {
            let bytes = bits.to_bytes();
            if self.file.write_at(&bytes, chunk * CHUNK_BYTES as u64)? < bytes.len() {
                return Err(Errno::NOSPC.into());
            }
        }
        if states.is_empty() { Ok(()) } else { self.file.sync(true) }
    }
}

impl BlockIndex for Sidecar {
    fn load(&self, _: &dyn BranchFile, chunk: u64, _: u8, _: u64) -> Result<ChunkBits> {
        let mut bytes = [0; CHUNK_BYTES];
        let n = self.file.read_at(&mut bytes, chunk * CHUNK_BYTES as u64)?;
        Ok(ChunkBits::from_bytes(bytes.get(..n).unwrap_or_default()))
    }

    fn record(&self, blocks: Range<u64>) -> Result<()> {
        match &self.recent {
            Some(recent) if blocks.start < blocks.end => recent.write(blocks),
            _ => Ok(()),
        }
    }

    fn noted(&self, blocks: Range<u64>) {
        if blocks.start < blocks.end {
            self.dirty.lock().extend(blocks.start / CHUNK_BLOCKS..=(blocks.end - 1) / CHUNK_BLOCKS);
        }
    }

    fn sync(&self, map: &BlockMap, blocks: u64, data: &dyn Fn() -> Result<()>) -> Result<()> {
        // One at a time: an older state of the map must not be written over a newer one.
        let _one = self.syncing.lock();
        let dirty = std::mem::take(&mut *self.dirty.lock());
        // Before the data are synced: what is noted from now on is not in it.
        let states: Vec<_> =
            dirty.iter().filter_map(|chunk| Some((*chunk, map.snapshot(*chunk, blocks)?))).collect();
        let result = data().and_then(|()| self.write(&states));
        if result.is_err() {
            self.dirty.lock().extend(dirty);
        }
        result
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn is_dirty(&self) -> bool {
        !self.dirty.lock().is_empty()
    }
}
