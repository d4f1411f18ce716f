//! SIEVE (Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web
//! Caches", NSDI 2024).

use super::list::{Entries, Row};
use super::{Handle, Policy};

/// Entries stand in the order in which they came. A hand goes from old to new: it lets those live that were used since it last
/// came by, where they stand, and takes the first that was not. So what is new and not used again soon goes quickly. A hit writes
/// that entry's mark and nothing else.
#[derive(Debug, Default)]
pub struct Sieve {
    entries: Entries<Entry>,
    row: Row,
    /// Where the hand goes on; None: at the oldest.
    hand: Option<u32>,
}

#[derive(Debug)]
struct Entry {
    item: u32,
    visited: bool,
}

impl Policy for Sieve {
    fn insert(&mut self, item: u32, _print: u64) -> Handle {
        let at = self.entries.add(Entry { item, visited: false });
        self.row.push(&mut self.entries, at);
        Handle(at)
    }

    fn hit(&mut self, Handle(at): Handle) {
        // Not written again where it is set, so that the line stays with all processors that read it.
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| !entry.visited) {
            entry.visited = true;
        }
    }

    fn remove(&mut self, Handle(at): Handle) {
        if self.hand == Some(at) {
            self.hand = self.entries.newer(at);
        }
        self.row.take(&mut self.entries, at);
        self.entries.forget(at);
    }

    fn victim_by(&mut self, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        let mut at = self.hand.or(self.row.oldest())?;
        let mut used = |entry: &Entry| uses(entry.item) > 0 || entry.visited;
        while let Some(entry) = self.entries.get_mut(at).filter(|entry| used(entry)) {
            entry.visited = false;
            at = self.entries.newer(at).or(self.row.oldest())?;
        }
        self.hand = self.entries.newer(at);
        self.row.take(&mut self.entries, at);
        self.entries.forget(at).map(|entry| entry.item)
    }

    fn len(&self) -> usize {
        self.row.len()
    }
}
