//! What a store says of itself.

use super::Store;
use crate::memory::Memory;
use crate::shares::NOBODY;
use crate::stats::{ContainerStats, Stats};

impl<M: Memory> Store<M> {
    /// Its bounds, sizes and counters. Takes time in proportion to what is lent.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut lent = vec![0; self.queues.len()];
        for (_, file) in self.files.iter().filter(|(_, file)| file.lent > 0) {
            for block in file.blocks.values().filter_map(|id| self.blocks.get(*id as usize)) {
                for (place, part) in block.users.parts(block.bytes) {
                    if let Some(lent) = lent.get_mut(place as usize) {
                        *lent += part;
                    }
                }
            }
        }
        let container = |container| {
            let place = self.shares.place(container).ok()? as usize;
            let counts = self.counts.get(place)?;
            Some(ContainerStats {
                container,
                weight: self.shares.weight(container)?,
                idle: self.shares.is_idle(container),
                charge: self.shares.charge(container)?,
                lent: lent.get(place).copied()?,
                hits: counts.hits,
                misses: counts.misses,
                evictions: counts.evictions,
            })
        };
        Stats {
            capacity: self.bound(),
            size: self.size,
            lent: self.lent,
            ownerless: self.shares.charge_at(NOBODY),
            files: self.files.len(),
            blocks: self.blocks.len(),
            hits: self.all.hits,
            misses: self.all.misses,
            evictions: self.all.evictions,
            containers: self.shares.containers().filter_map(container).collect(),
        }
    }
}
