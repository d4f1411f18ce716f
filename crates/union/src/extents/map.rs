//! Which blocks of a partial file are its own: the extent map, in memory.
//!
//! The file is cut into chunks of [`CHUNK_BLOCKS`] blocks. A chunk is known as soon as somebody asks for one of its
//! blocks; most chunks are all one thing and take no memory beyond their entry, a mixed one takes one bit a block. So a file
//! of 1 TiB with blocks of 4 KiB, written to everywhere, needs 32 MiB, and one that is written to in few places next to
//! nothing. Reading the map and noting a block as own changes atomic words under a shared lock; only loading a chunk and
//! changing its form excludes others.

use crate::sync::{RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use vellum_vfs::Result;

/// Blocks of one chunk: 128 MiB of a file with blocks of 4 KiB, 4 KiB of bits.
pub(crate) const CHUNK_BLOCKS: u64 = 1 << 15;
const WORD_BITS: u64 = 64;
/// Words of a chunk's bits.
const WORDS: usize = (CHUNK_BLOCKS / WORD_BITS) as usize;

/// What is known of one chunk.
enum Chunk {
    /// No block is the file's own.
    None,
    All,
    /// Some are: one bit each, and how many there are.
    Some {
        words: Box<[AtomicU64]>,
        own: AtomicU32,
    },
}

/// The own blocks of one chunk, while they are being found out.
pub(crate) struct ChunkBits {
    words: Vec<u64>,
}

impl ChunkBits {
    pub(crate) fn new() -> Self {
        Self { words: vec![0; WORDS] }
    }

    /// Notes blocks, numbered from the chunk's first, as own.
    pub(crate) fn set(&mut self, blocks: Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end.min(CHUNK_BLOCKS) {
            let (word, mask, next) = word_mask(at, blocks.end.min(CHUNK_BLOCKS));
            if let Some(bits) = self.words.get_mut(word) {
                *bits |= mask;
            }
            at = next;
        }
    }

    /// The bits as bytes, lowest first, as a sidecar stores them.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Takes bits as [`ChunkBits::to_bytes`] gives them; missing bytes are zero.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut bits = Self::new();
        for (word, bytes) in bits.words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_le_bytes(whole);
        }
        bits
    }

    fn into_chunk(self, blocks: u64) -> Chunk {
        let mut own = 0_u64;
        for (at, word) in self.words.iter().enumerate() {
            own += u64::from((word & valid_bits(at, blocks)).count_ones());
        }
        match own {
            0 => Chunk::None,
            own if own >= blocks => Chunk::All,
            own => Chunk::Some {
                words: self
                    .words
                    .iter()
                    .enumerate()
                    .map(|(at, word)| AtomicU64::new(word & valid_bits(at, blocks)))
                    .collect(),
                own: AtomicU32::new(u32::try_from(own).unwrap_or(u32::MAX)),
            },
        }
    }
}

/// The bits of a word that stand for blocks below `blocks`.
const fn valid_bits(word: usize, blocks: u64) -> u64 {
    let first = word as u64 * WORD_BITS;
    if blocks >= first + WORD_BITS {
        u64::MAX
    } else if blocks <= first {
        0
    } else {
        (1 << (blocks - first)) - 1
    }
}

/// The word of block `at`, the bits in it that belong to `at..end`, and the first block after them.
const fn word_mask(at: u64, end: u64) -> (usize, u64, u64) {
    let word = at / WORD_BITS;
    let stop = if end < (word + 1) * WORD_BITS { end } else { (word + 1) * WORD_BITS };
    let low = at % WORD_BITS;
    let count = stop - at;
    let mask = if count == WORD_BITS { u64::MAX } else { ((1 << count) - 1) << low };
    (word as usize, mask, stop)
}

/// The extent map of one file.
pub(crate) struct BlockMap {
    chunks: RwLock<HashMap<u64, Chunk>>,
}

impl BlockMap {
    pub(crate) fn new() -> Self {
        Self { chunks: RwLock::new(HashMap::new()) }
    }

    /// Whether `block` is own, and where the run of blocks ends for which that is so: at `end` (a block number) or at the end of
    /// the chunk at the latest. `load` finds out about a chunk that is not known yet; `blocks` is the number of blocks
    /// that the map covers.
    pub(crate) fn run(
        &self,
        block: u64,
        end: u64,
        blocks: u64,
        load: impl Fn(u64) -> Result<ChunkBits>,
    ) -> Result<(bool, u64)> {
        let index = block / CHUNK_BLOCKS;
        let first = index * CHUNK_BLOCKS;
        let end = end.min(first + CHUNK_BLOCKS);
        let chunks = self.loaded(index, blocks, load)?;
        Ok(match chunks.get(&index) {
            None | Some(Chunk::None) => (false, end),
            Some(Chunk::All) => (true, end),
            Some(Chunk::Some { words, .. }) => {
                let (own, stop) = run_in(words, block - first, end - first);
                (own, first + stop)
            }
        })
    }

    /// The chunks, with the one at `index` among them.
    fn loaded(
        &self,
        index: u64,
        blocks: u64,
        load: impl Fn(u64) -> Result<ChunkBits>,
    ) -> Result<RwLockReadGuard<'_, HashMap<u64, Chunk>>> {
        loop {
            let chunks = self.chunks.read();
            if chunks.contains_key(&index) {
                return Ok(chunks);
            }
            drop(chunks);
            // Found out under the exclusive lock: nobody writes blocks of a chunk that he does not know.
            let mut chunks = self.chunks.write();
            if let Entry::Vacant(vacant) = chunks.entry(index) {
                vacant.insert(load(index)?.into_chunk(blocks_of(index, blocks)));
            }
        }
    }

    /// Notes blocks as own, whose chunks are known.
    pub(crate) fn set(&self, range: Range<u64>, blocks: u64) {
        let mut at = range.start;
        let end = range.end.min(blocks);
        while at < end {
            let index = at / CHUNK_BLOCKS;
            let stop = end.min((index + 1) * CHUNK_BLOCKS);
            self.set_in(index, at % CHUNK_BLOCKS..stop - index * CHUNK_BLOCKS, blocks_of(index, blocks));
            at = stop;
        }
    }

    fn set_in(&self, index: u64, range: Range<u64>, blocks: u64) {
        loop {
            {
                let chunks = self.chunks.read();
                match chunks.get(&index) {
                    Some(Chunk::All) => return,
                    Some(Chunk::Some { words, own }) => {
                        let mut added = 0;
                        let mut at = range.start;
                        while at < range.end {
                            let (word, mask, next) = word_mask(at, range.end);
                            if let Some(word) = words.get(word) {
                                added += (mask & !word.fetch_or(mask, Relaxed)).count_ones();
                            }
                            at = next;
                        }
                        if u64::from(own.fetch_add(added, Relaxed) + added) < blocks {
                            return;
                        }
                    }
                    Some(Chunk::None) | None => {}
                }
            }
            let mut chunks = self.chunks.write();
            let Some(chunk) = chunks.get_mut(&index) else { return };
            match chunk {
                Chunk::All => return,
                Chunk::Some { own, .. } => {
                    if u64::from(own.load(Relaxed)) >= blocks {
                        *chunk = Chunk::All;
                    }
                    return;
                }
                Chunk::None => {
                    let words = std::iter::repeat_with(|| AtomicU64::new(0)).take(WORDS).collect();
                    *chunk = Chunk::Some { words, own: AtomicU32::new(0) };
                }
            }
        }
    }

    /// The map covers fewer blocks than before. Nobody else uses it meanwhile.
    pub(crate) fn truncate(&self, blocks: u64) {
        let mut chunks = self.chunks.write();
        chunks.retain(|index, _| index * CHUNK_BLOCKS < blocks);
        let last = blocks / CHUNK_BLOCKS;
        if let Some(chunk) = chunks.get_mut(&last)
            && let Chunk::Some { words, .. } = chunk
        {
            let bits = ChunkBits { words: words.iter().map(|word| word.load(Relaxed)).collect() };
            *chunk = bits.into_chunk(blocks_of(last, blocks));
        }
    }

    /// Whether every block that the map covers is known to be own.
    pub(crate) fn is_all(&self, blocks: u64) -> bool {
        let chunks = self.chunks.read();
        let count = blocks.div_ceil(CHUNK_BLOCKS);
        chunks.len() as u64 >= count
            && (0..count).all(|index| match chunks.get(&index) {
                Some(Chunk::All) => true,
                Some(Chunk::Some { own, .. }) => u64::from(own.load(Relaxed)) >= blocks_of(index, blocks),
                _ => false,
            })
    }

    /// The bits of the chunks that are known and mixed or full, for a sidecar.
    pub(crate) fn snapshot(&self, index: u64, blocks: u64) -> Option<ChunkBits> {
        let chunks = self.chunks.read();
        let mut bits = ChunkBits::new();
        match chunks.get(&index)? {
            Chunk::None => {}
            Chunk::All => bits.set(0..blocks_of(index, blocks)),
            Chunk::Some { words, .. } => {
                bits.words = words.iter().map(|word| word.load(Relaxed)).collect();
            }
        }
        Some(bits)
    }

    /// Bytes of memory that the map takes, about.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        let chunks = self.chunks.read();
        let mixed = chunks.values().filter(|chunk| matches!(chunk, Chunk::Some { .. })).count();
        mixed * WORDS * 8 + chunks.capacity() * (size_of::<Chunk>() + 16)
    }
}

/// Blocks of a chunk in a map that covers `blocks`.
const fn blocks_of(index: u64, blocks: u64) -> u64 {
    let rest = blocks.saturating_sub(index * CHUNK_BLOCKS);
    if rest < CHUNK_BLOCKS { rest } else { CHUNK_BLOCKS }
}

/// Whether a chunk's block is own, and where the run ends for which that is so.
fn run_in(words: &[AtomicU64], block: u64, end: u64) -> (bool, u64) {
    let bits_at = |at: u64| words.get((at / WORD_BITS) as usize).map_or(0, |word| word.load(Relaxed));
    let own = bits_at(block) >> (block % WORD_BITS) & 1 == 1;
    let mut at = block;
    while at < end {
        // Bits that end the run, from the block on.
        let other = if own { !bits_at(at) } else { bits_at(at) } >> (at % WORD_BITS);
        if other != 0 {
            return (own, end.min(at + u64::from(other.trailing_zeros())));
        }
        at = (at / WORD_BITS + 1) * WORD_BITS;
    }
    (own, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn no_blocks(_: u64) -> Result<ChunkBits> {
        Ok(ChunkBits::new())
    }

    /// All runs of a map, each block once.
    fn all(map: &BlockMap, blocks: u64) -> Vec<bool> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < blocks {
            let (own, end) = map.run(at, blocks, blocks, no_blocks).unwrap();
            assert!(end > at);
            out.extend(std::iter::repeat_n(own, (end - at) as usize));
            at = end;
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn a_map_is_a_set_of_blocks(
            blocks in 1..3 * CHUNK_BLOCKS,
            ops in proptest::collection::vec((0..3 * CHUNK_BLOCKS, 1..2000_u64, 0..20_u8), 1..40),
        ) {
            let map = BlockMap::new();
            let mut model = vec![false; blocks as usize];
            let mut covered = blocks;
            for (start, len, what) in ops {
                if what == 0 {
                    covered = covered.min(start.max(1));
                    map.truncate(covered);
                    model.truncate(covered as usize);
                } else {
                    let end = (start + len * u64::from(what)).min(covered);
                    for block in start..end {
                        model[block as usize] = true;
                    }
                    let mut at = start;
                    while at < end {
                        at = map.run(at, end, covered, no_blocks).unwrap().1;
                    }
                    if start < end {
                        map.set(start..end, covered);
                    }
                }
            }
            prop_assert_eq!(all(&map, covered), &model[..]);
            prop_assert_eq!(map.is_all(covered), model.iter().all(|own| *own));
        }

        #[test]
        fn bits_survive_their_bytes(ranges in proptest::collection::vec((0..CHUNK_BLOCKS, 1..300_u64), 0..20)) {
            let mut bits = ChunkBits::new();
            ranges.iter().for_each(|(start, len)| bits.set(*start..start + len));
            prop_assert_eq!(ChunkBits::from_bytes(&bits.to_bytes()).words, bits.words);
        }
    }

    #[test]
    fn a_terabyte_of_scattered_writes_needs_little() {
        let blocks = (1 << 40) / 4096;
        let map = BlockMap::new();
        for block in (0..blocks).step_by(1000) {
            map.run(block, block + 1, blocks, no_blocks).unwrap();
            map.set(block..block + 1, blocks);
        }
        assert!(map.memory() < 40 << 20, "{} bytes", map.memory());
    }
}
