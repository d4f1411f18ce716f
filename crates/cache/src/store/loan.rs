//! Files that are lent: their memory is in others' hands, and none of it can be taken back.
//!
//! So what may be lent has to be shared before it is needed: each container may have so much of it as is free still, more or less by its
//! weight (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 1998). Of several with equal weights one that wants it
//! has half, two a third each, and something is always left for the next one.

use super::Store;
use crate::error::Result;
use crate::key::Key;
use crate::memory::Memory;
use crate::shares::{Container, NOBODY};

/// At most one part of so many of a cache is lent: what is lent cannot be taken back, and the rest has to be enough to share.
pub const LENT_MAX: u64 = 2;

/// A file that is lent: none of it goes until it is given back with [`Store::return_loan`].
#[derive(Debug)]
#[must_use = "the file is lent until this is given back"]
pub struct FileLoan {
    file: u32,
}

impl<M: Memory> Store<M> {
    /// Lends a file that is there as a whole: its memory stays as it is until it is given back. The container uses all of it. None:
    /// it is not whole, or too much is lent, to this container or altogether. Whoever is lent a file first has it at its expense.
    pub fn lend(&mut self, key: Key, container: Container) -> Result<Option<FileLoan>> {
        let place = self.shares.place(container)?;
        let Some(id) = self.file_of(key) else { return Ok(None) };
        let Some(file) = self.files.get(id as usize) else { return Ok(None) };
        if file.blocks.len() as u64 != file.version.blocks() {
            return Ok(None);
        }
        self.shares.used(place);
        let blocks: Vec<u32> = file.blocks.values().copied().collect();
        let bytes = if file.lent == 0 { self.bytes_of(id) } else { 0 };
        if bytes > 0 && !self.may_lend(place, bytes) {
            return Ok(None);
        }
        if !file.is_wide && self.wide >= self.config.files {
            return Ok(None);
        }
        if let Some(file) = self.files.get_mut(id as usize) {
            if !file.sealed {
                self.memory.seal(&file.memory)?;
                file.sealed = true;
                self.wide += usize::from(!std::mem::replace(&mut file.is_wide, true));
            }
            if file.lent == 0 {
                file.borrower = place;
            }
            file.lent += 1;
        }
        self.lent += bytes;
        if let Some(borrowed) = self.borrowed.get_mut(place as usize) {
            *borrowed += bytes;
        }
        for block in blocks {
            self.uses(block, place);
        }
        Ok(Some(FileLoan { file: id }))
    }

    /// The memory of a file that is lent. Nobody can write to it any more.
    #[must_use]
    pub fn lent_file(&self, lent: &FileLoan) -> Option<&M::File> {
        self.files.get(lent.file as usize).map(|file| &file.memory)
    }

    /// A file comes back.
    pub fn return_loan(&mut self, lent: FileLoan) {
        let FileLoan { file: id } = lent;
        let Some(file) = self.files.get_mut(id as usize).filter(|file| file.lent > 0) else { return };
        file.lent -= 1;
        if file.lent > 0 {
            return;
        }
        let (waiting, doomed, borrower) = (std::mem::take(&mut file.waiting), file.doomed, file.borrower);
        let bytes = self.bytes_of(id);
        self.lent = self.lent.saturating_sub(bytes);
        if let Some(borrowed) = self.borrowed.get_mut(borrower as usize) {
            *borrowed = borrowed.saturating_sub(bytes);
        }
        if doomed {
            return self.free(id);
        }
        for (block, place) in waiting {
            self.queue_again(block, place);
        }
        // There may have been too little room meanwhile. What cannot go now goes when room is needed.
        self.make_room(NOBODY, 0).ok();
    }

    /// Whether so many bytes more may be lent to a container.
    fn may_lend(&self, place: u32, bytes: u64) -> bool {
        let free = (self.bound() / LENT_MAX).saturating_sub(self.lent);
        let borrowed = self.borrowed.get(place as usize).copied().unwrap_or(0);
        bytes <= free && borrowed + bytes <= self.shares.threshold(place, free)
    }

    /// What a container had borrowed is at nobody's expense.
    pub(super) fn leave_loans(&mut self, place: u32) {
        for (_, file) in self.files.iter_mut().filter(|(_, file)| file.lent > 0 && file.borrower == place) {
            file.borrower = NOBODY;
        }
        let left = self.borrowed.get_mut(place as usize).map_or(0, std::mem::take);
        if let Some(nobody) = self.borrowed.get_mut(NOBODY as usize) {
            *nobody += left;
        }
    }
}
