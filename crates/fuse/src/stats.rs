//! How many requests of each kind have come.

use crate::wire::Opcode;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One more than the largest opcode that is counted apart.
const SLOTS: usize = 54;

/// Counters of one worker, on cache lines of their own. Only that worker writes them.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counters([AtomicU64; SLOTS]);

impl Counters {
    /// Counts a request. A plain store: there is one writer.
    pub(crate) fn count(&self, opcode: Opcode) {
        if let Some(slot) = self.0.get(opcode as usize) {
            slot.store(slot.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// The counters of all workers that there have been.
#[derive(Debug, Default)]
pub(crate) struct AllCounters(Mutex<Vec<Arc<Counters>>>);

impl AllCounters {
    pub(crate) fn add_worker(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters([const { AtomicU64::new(0) }; SLOTS]));
        self.0.lock().push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn sum(&self) -> Counts {
        let mut sum = [0; SLOTS];
        for worker in self.0.lock().iter() {
            for (total, counter) in sum.iter_mut().zip(&worker.0) {
                *total += counter.load(Ordering::Relaxed);
            }
        }
        Counts(sum)
    }
}

/// Requests per opcode since the session began.
#[derive(Clone, PartialEq, Eq)]
pub struct Counts([u64; SLOTS]);

impl Counts {
    /// Requests of this kind.
    #[must_use]
    pub fn of(&self, opcode: Opcode) -> u64 {
        self.0.get(opcode as usize).copied().unwrap_or_default()
    }

    /// Requests of every kind.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (now, before) in difference.0.iter_mut().zip(&earlier.0) {
            *now = now.saturating_sub(*before);
        }
        difference
    }

    /// Every opcode that came at least once, with its number of requests.
    pub fn iter(&self) -> impl Iterator<Item = (Opcode, u64)> + '_ {
        Opcode::ALL.iter().map(|&opcode| (opcode, self.of(opcode))).filter(|(_, count)| *count > 0)
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(opcode, count)| (opcode.name(), count))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_workers() {
        let all = AllCounters::default();
        let (one, two) = (all.add_worker(), all.add_worker());
        one.count(Opcode::Lookup);
        let before = all.sum();
        two.count(Opcode::Lookup);
        two.count(Opcode::CopyFileRange64);
        assert_eq!(all.sum().of(Opcode::Lookup), 2);
        assert_eq!(all.sum().since(&before).total(), 2);
        assert_eq!(format!("{:?}", all.sum()), r#"{"LOOKUP": 2, "COPY_FILE_RANGE_64": 1}"#);
    }
}
