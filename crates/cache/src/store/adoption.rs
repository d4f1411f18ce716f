//! What a predecessor has left comes in without a fetch.

use super::{Block, File, Store};
use crate::checksum::sum;
use crate::error::Result;
use crate::key::{BLOCK_BYTES, BlockIndex, Version, charged};
use crate::memory::Memory;
use crate::shares::NOBODY;
use crate::users::Users;
use std::collections::BTreeMap;

impl<M: Memory> Store<M> {
    /// Takes a file with the blocks of it that are there. They are nobody's: they go before all else, and belong to whoever uses them next.
    /// False: there is no room for it, or other memory of these contents.
    ///
    /// All of `blocks` are in the file, each once; of one that is `sealed` they are all that it has.
    pub fn adopt(
        &mut self,
        version: Version,
        memory: M::File,
        blocks: &[BlockIndex],
        sealed: bool,
    ) -> Result<bool> {
        let charge = |index: &BlockIndex| charged(version.block_len(*index));
        let bytes: u64 = blocks.iter().map(charge).sum();
        let is_wide = sealed || !self.memory.is_shared(version.size);
        // What there is memory for is asked when all is in: until then what is kept counts as somebody else's.
        let is_too_much =
            self.size + bytes > self.config.capacity || is_wide && self.wide >= self.config.files;
        if blocks.is_empty() || is_too_much || self.file_of(version.key).is_some() {
            return Ok(false);
        }
        let sums = blocks.iter().map(|index| self.sum_of(version, &memory, *index));
        let sums = sums.collect::<Result<Vec<u64>>>()?;
        let (lent, borrower, doomed, waiting) = (0, NOBODY, false, vec![]);
        let file = File {
            version,
            memory,
            blocks: BTreeMap::new(),
            lent,
            borrower,
            sealed,
            is_wide,
            doomed,
            waiting,
        };
        let file_id = self.files.insert(file) as u32;
        self.wide += usize::from(is_wide);
        self.objects.entry(version.key.object).or_default().push(file_id);
        for (index, sum) in blocks.iter().zip(sums) {
            let block =
                Block { file: file_id, index: *index, bytes: charge(index), sum, users: Users::default() };
            let id = self.blocks.insert(block) as u32;
            if let Some(file) = self.files.get_mut(file_id as usize) {
                file.blocks.insert(*index, id);
            }
            let print = version.key.print(*index);
            let entry = self.queues.get_mut(NOBODY as usize).map(|nobody| nobody.insert(id, print));
            self.make_ownerless(id, entry);
        }
        self.size += bytes;
        Ok(true)
    }

    /// In debug builds only: what is there is what is to stay there.
    fn sum_of(&self, version: Version, memory: &M::File, index: BlockIndex) -> Result<u64> {
        if !cfg!(debug_assertions) {
            return Ok(0);
        }
        let mut data = vec![0; usize::try_from(version.block_len(index)).unwrap_or(0)];
        self.memory.read(memory, &mut data, index.0 * BLOCK_BYTES)?;
        Ok(sum(&data))
    }
}
