//! What goes where there is too little room.

use super::Store;
use crate::error::Result;
use crate::memory::Memory;
use crate::shares::NOBODY;

impl<M: Memory> Store<M> {
    /// It may hold no more than so many bytes, whatever its capacity is: at most `most` queues give up a block for that now. True: no
    /// more has to go, or can. What is lent goes when it comes back.
    pub fn limit(&mut self, ceiling: u64, most: usize) -> Result<bool> {
        self.ceiling = ceiling;
        for _ in 0..most {
            if self.size <= self.bound() || !self.evict_one(NOBODY, 0)? {
                return Ok(true);
            }
        }
        Ok(self.size <= self.bound())
    }

    /// Bytes that it may hold now.
    pub(super) fn bound(&self) -> u64 {
        self.config.capacity.min(self.ceiling)
    }

    /// False: nothing more can go.
    pub(super) fn make_room(&mut self, asking: u32, bytes: u64) -> Result<bool> {
        while self.size + bytes > self.bound() {
            if !self.evict_one(asking, bytes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whoever holds most gives up one block, of which it may not have been the last user. False: nobody has one to give. Ends,
    /// for with each round something less stands in the queues.
    pub(super) fn evict_one(&mut self, asking: u32, bytes: u64) -> Result<bool> {
        loop {
            let can_give =
                |place: u32| self.queues.get(place as usize).is_some_and(|queue| !queue.is_empty());
            let Some(place) = self.shares.most(Some((asking, bytes)), can_give) else { return Ok(false) };
            let Self { memory, files, blocks, queues, .. } = self;
            let mut uses = |id: u32| {
                let block = blocks.get(id as usize);
                let file = block.and_then(|block| Some((block, files.get(block.file as usize)?)));
                file.map_or(0, |(block, file)| memory.uses(&file.memory, place, block.index.0))
            };
            let Some(id) = queues.get_mut(place as usize).and_then(|queue| queue.victim_by(&mut uses)) else {
                return Ok(false);
            };
            let Some(block) = self.blocks.get_mut(id as usize) else { continue };
            let Some(user) = block.users.get_mut(place) else { continue };
            user.entry = None;
            let Some(file) = self.files.get_mut(block.file as usize) else { continue };
            if file.lent > 0 {
                file.waiting.push((id, place));
                continue;
            }
            if block.users.len() > 1 || self.reassign_to_user(id) {
                self.drop_user(id, place);
            } else {
                let before = self.blocks.len();
                if let Err(error) = self.drop_block(id) {
                    self.queue_again(id, place);
                    return Err(error);
                }
                self.all.evictions += before.saturating_sub(self.blocks.len()) as u64;
            }
            if let Some(counts) = self.counts.get_mut(place as usize) {
                counts.evictions += 1;
            }
            return Ok(true);
        }
    }

    /// Looks for one that uses a block and does not pay, to pay for it from now on. False: there is none.
    fn reassign_to_user(&mut self, id: u32) -> bool {
        let Some(block) = self.blocks.get(id as usize).filter(|block| block.users.is_crowded()) else {
            return false;
        };
        let Some(file) = self.files.get(block.file as usize) else { return false };
        let is_there = |container| self.shares.place(container).is_ok();
        let heir = self.memory.next_owner(&file.memory, block.index.0, &is_there);
        let Some(Ok(place)) = heir.map(|heir| self.shares.place(heir)) else { return false };
        self.uses(id, place);
        self.blocks.get(id as usize).is_some_and(|block| block.users.len() > 1)
    }
}
