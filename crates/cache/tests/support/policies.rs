//! The policies that S3-FIFO is compared with.

use std::collections::BTreeMap;
use vellum_cache::{Handle, Policy, S3Fifo};

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lru,
    Sieve,
    S3Fifo,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Lru, Self::Sieve, Self::S3Fifo];

    /// What makes its queues.
    pub(crate) fn policy(self) -> fn() -> Box<dyn Policy> {
        match self {
            Self::Lru => || Box::<Lru>::default(),
            Self::Sieve => || Box::<Sieve>::default(),
            Self::S3Fifo => S3Fifo::queue,
        }
    }
}

/// What was used longest ago goes first. One reading of more than the memory holds drives everything else out.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    next: u32,
    now: u64,
    /// By the time of the last use.
    by_use: BTreeMap<u64, (u32, u32)>,
    times: BTreeMap<u32, u64>,
}

impl Lru {
    fn use_now(&mut self, item: u32, entry: u32) {
        self.now += 1;
        self.by_use.insert(self.now, (item, entry));
        self.times.insert(entry, self.now);
    }
}

impl Policy for Lru {
    fn insert(&mut self, item: u32, _print: u64) -> Handle {
        self.next += 1;
        self.use_now(item, self.next);
        Handle(self.next)
    }

    fn hit(&mut self, Handle(entry): Handle) {
        if let Some((item, _)) = self.times.get(&entry).and_then(|time| self.by_use.remove(time)) {
            self.use_now(item, entry);
        }
    }

    fn remove(&mut self, Handle(entry): Handle) {
        if let Some(time) = self.times.remove(&entry) {
            self.by_use.remove(&time);
        }
    }

    fn victim_by(&mut self, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        // Ends: a use is taken once.
        loop {
            let (_, (item, entry)) = self.by_use.pop_first()?;
            if uses(item) == 0 {
                self.times.remove(&entry);
                return Some(item);
            }
            self.use_now(item, entry);
        }
    }

    fn len(&self) -> usize {
        self.by_use.len()
    }
}

/// SIEVE (Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web
/// Caches", NSDI 2024). Entries stand in the order in which they came. A hand goes from old to new: it lets those live that were used
/// since it last came by, where they stand, and takes the first that was not.
#[derive(Debug, Default)]
pub(crate) struct Sieve {
    next: u32,
    /// Items, and whether they were used.
    entries: BTreeMap<u32, (u32, bool)>,
    /// Where the hand goes on; None: at the oldest.
    hand: Option<u32>,
}

impl Sieve {
    fn newer(&self, at: u32) -> Option<u32> {
        self.entries.range(at + 1..).next().map(|(at, _)| *at)
    }
}

impl Policy for Sieve {
    fn insert(&mut self, item: u32, _print: u64) -> Handle {
        self.next += 1;
        self.entries.insert(self.next, (item, false));
        Handle(self.next)
    }

    fn hit(&mut self, Handle(at): Handle) {
        if let Some((_, visited)) = self.entries.get_mut(&at) {
            *visited = true;
        }
    }

    fn remove(&mut self, Handle(at): Handle) {
        if self.hand == Some(at) {
            self.hand = self.newer(at);
        }
        self.entries.remove(&at);
    }

    fn victim_by(&mut self, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        let oldest = |queue: &Self| queue.entries.first_key_value().map(|(at, _)| *at);
        let mut at = self.hand.or(oldest(self))?;
        loop {
            let (item, visited) = self.entries.get_mut(&at)?;
            if uses(*item) == 0 && !*visited {
                self.hand = self.newer(at);
                return self.entries.remove(&at).map(|(item, _)| item);
            }
            *visited = false;
            at = self.newer(at).or(oldest(self))?;
        }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}
