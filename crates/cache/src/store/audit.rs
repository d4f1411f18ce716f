//! Counts everything anew, for tests.

use super::{LENT_MAX, Store};
use crate::memory::Memory;
use crate::shares::NOBODY;

impl<M: Memory> Store<M> {
    /// Panics where a sum is not what it is the sum of, or a bound is exceeded. Takes time in proportion to everything.
    pub fn audit(&self) {
        let mut charges = vec![0; self.queues.len()];
        let mut queued = vec![0; self.queues.len()];
        let mut size = 0;
        for (id, block) in &self.blocks {
            size += block.bytes;
            assert!(block.users.len() > 0, "somebody pays for each block");
            for ((place, part), user) in block.users.parts(block.bytes).zip(block.users.iter()) {
                charges[place as usize] += part;
                queued[place as usize] += usize::from(user.entry.is_some());
                assert!(place != NOBODY || block.users.len() == 1, "nobody is not one of several users");
            }
            let file = &self.files[block.file as usize];
            assert_eq!(file.blocks.get(&block.index).map(|id| *id as usize), Some(id));
            assert!(
                !file.sealed || file.blocks.len() as u64 == file.version.blocks(),
                "no hole where it was lent"
            );
        }
        assert_eq!(size, self.size, "the size");
        let waits = self.queues.iter().all(|queue| queue.is_empty());
        assert!(
            size <= self.bound() || size <= self.config.capacity && waits,
            "the bound, as far as anything can go"
        );
        assert!(size <= self.config.capacity && self.wide <= self.config.files, "the bounds");
        let wide = self.files.iter().filter(|(_, file)| file.is_wide).count();
        assert_eq!(wide, self.wide, "files with descriptors");
        assert_eq!(charges.iter().sum::<u64>(), size, "all is paid for");
        for (place, (charge, queued)) in (0..).zip(charges.iter().zip(&queued)) {
            assert_eq!(self.shares.charge_at(place), *charge, "what {place} pays");
            assert_eq!(self.queues[place as usize].len(), *queued, "what {place} has in its queue");
        }
        let mut borrowed = vec![0; self.borrowed.len()];
        for (id, file) in self.files.iter().filter(|(_, file)| file.lent > 0) {
            borrowed[file.borrower as usize] += u32::try_from(id).map_or(0, |id| self.bytes_of(id));
        }
        assert_eq!(borrowed, self.borrowed, "who has borrowed what");
        let lent = self.files.iter().filter(|(_, file)| file.lent > 0);
        let lent: u64 = lent.map(|(id, _)| u32::try_from(id).map_or(0, |id| self.bytes_of(id))).sum();
        assert_eq!(lent, self.lent, "what is lent");
        assert!(lent <= self.config.capacity / LENT_MAX, "what may be lent");
        let blocks: usize = self.files.iter().map(|(_, file)| file.blocks.len()).sum();
        assert_eq!(blocks, self.blocks.len(), "blocks of files");
        let found: usize = self.objects.values().map(|ids| ids.len()).sum();
        let alive = self.files.iter().filter(|(_, file)| !file.doomed).count();
        assert_eq!(found, alive, "files that can be found");
    }
}
