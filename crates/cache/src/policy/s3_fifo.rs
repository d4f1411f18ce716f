//! S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023).

use super::list::{Entries, Row};
use super::{Handle, Policy};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// One in so many entries is on trial, as in the paper.
const TRIAL_PART: usize = 10;
/// An entry on trial stays when it was used more often than so.
const TRIAL_USES: u8 = 1;
/// Uses are counted up to this: two bits, as in the paper.
const USES_MAX: u8 = 3;

/// New entries are on trial in a short queue; those used again there go over to the main queue, the others go, and are remembered
/// for a while by what they are ("ghosts"): whoever comes back from there enters the main queue at once. The main queue gives
/// those that were used another round. A hit writes that entry's two bits and nothing else.
///
/// The paper's queues have fixed lengths; here they are parts of the present length, for a container's memory grows and shrinks.
#[derive(Debug, Default)]
pub struct S3Fifo {
    entries: Entries<Entry>,
    trial: Row,
    main: Row,
    ghosts: Ghosts,
}

#[derive(Debug)]
struct Entry {
    item: u32,
    print: u64,
    uses: u8,
    in_main: bool,
}

/// What has gone while it was on trial, by print. A print that comes again later counts from its latest end.
#[derive(Debug, Default)]
struct Ghosts {
    /// When a print ended.
    ends: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    now: u64,
}

impl Ghosts {
    fn add(&mut self, print: u64, most: usize) {
        self.now += 1;
        self.ends.insert(print, self.now);
        self.order.push_back((print, self.now));
        while self.order.len() > most {
            let Some((print, end)) = self.order.pop_front() else { break };
            if self.ends.get(&print) == Some(&end) {
                self.ends.remove(&print);
            }
        }
    }

    fn take(&mut self, print: u64) -> bool {
        self.ends.remove(&print).is_some()
    }
}

impl S3Fifo {
    /// An empty queue.
    #[must_use]
    pub fn queue() -> Box<dyn Policy> {
        Box::<Self>::default()
    }

    fn end_of(&mut self, at: u32) -> Option<u32> {
        self.entries.forget(at).map(|entry| entry.item)
    }

    /// The trial's oldest: over to the main queue, or its end.
    fn try_oldest(&mut self, at: u32, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        self.trial.take(&mut self.entries, at);
        let entry = self.entries.get_mut(at)?;
        if entry.uses.saturating_add(uses(entry.item)) > TRIAL_USES {
            entry.uses = 0;
            entry.in_main = true;
            self.main.push(&mut self.entries, at);
            return None;
        }
        let print = entry.print;
        // As many ghosts as the main queue may have entries.
        let len = self.len();
        self.ghosts.add(print, len - len / TRIAL_PART);
        self.end_of(at)
    }

    /// The main queue's oldest: another round, or its end.
    fn sift_main(&mut self, at: u32, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        self.main.take(&mut self.entries, at);
        let entry = self.entries.get_mut(at)?;
        let Some(left) = entry.uses.saturating_add(uses(entry.item)).min(USES_MAX).checked_sub(1) else {
            return self.end_of(at);
        };
        entry.uses = left;
        self.main.push(&mut self.entries, at);
        None
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, item: u32, print: u64) -> Handle {
        let in_main = self.ghosts.take(print);
        let at = self.entries.add(Entry { item, print, uses: 0, in_main });
        let row = if in_main { &mut self.main } else { &mut self.trial };
        row.push(&mut self.entries, at);
        Handle(at)
    }

    fn hit(&mut self, Handle(at): Handle) {
        // Not written again where it is full, so that the line stays with all processors that read it.
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| entry.uses < USES_MAX) {
            entry.uses += 1;
        }
    }

    fn remove(&mut self, Handle(at): Handle) {
        let Some(entry) = self.entries.get(at) else { return };
        let row = if entry.in_main { &mut self.main } else { &mut self.trial };
        row.take(&mut self.entries, at);
        self.entries.forget(at);
    }

    fn victim_by(&mut self, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32> {
        // Ends: every round ends an entry, moves one of the trial, or takes a use away.
        loop {
            let trial_full = self.trial.len() > self.len() / TRIAL_PART;
            let item = match (self.trial.oldest(), self.main.oldest()) {
                (Some(at), main) if trial_full || main.is_none() => self.try_oldest(at, uses),
                (_, Some(at)) => self.sift_main(at, uses),
                (Some(at), None) => self.try_oldest(at, uses),
                (None, None) => return None,
            };
            if item.is_some() {
                return item;
            }
        }
    }

    fn len(&self) -> usize {
        self.trial.len() + self.main.len()
    }
}
