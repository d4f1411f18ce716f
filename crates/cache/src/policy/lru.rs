//! The least recently used goes first.

use super::list::{Entries, Row};
use super::{Handle, Policy};

/// What was used longest ago goes first. A hit writes the entry and both its neighbours, and one reading of more than the memory
/// holds drives everything else out: here to compare with.
#[derive(Debug, Default)]
pub struct Lru {
    entries: Entries<u32>,
    row: Row,
}

impl Policy for Lru {
    fn insert(&mut self, item: u32, _print: u64) -> Handle {
        let at = self.entries.add(item);
        self.row.push(&mut self.entries, at);
        Handle(at)
    }

    fn hit(&mut self, Handle(at): Handle) {
        if self.entries.get(at).is_some() {
            self.row.take(&mut self.entries, at);
            self.row.push(&mut self.entries, at);
        }
    }

    fn remove(&mut self, Handle(at): Handle) {
        self.row.take(&mut self.entries, at);
        self.entries.forget(at);
    }

    fn victim_by(&mut self, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        let mut at = self.row.oldest()?;
        // Ends: a use is taken once.
        while self.entries.get(at).is_some_and(|item| uses(*item) > 0) {
            self.hit(Handle(at));
            at = self.row.oldest()?;
        }
        self.row.take(&mut self.entries, at);
        self.entries.forget(at)
    }

    fn len(&self) -> usize {
        self.row.len()
    }
}
