//! How many requests of each kind have come, and how long the service was busy with them.

use crate::wire::Opcode;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One more than the largest opcode that is counted apart.
const SLOTS: usize = 54;

/// Classes of times. The first holds what took less than a microsecond, each further one what took less than twice as long as
/// the one before, and the last all the rest (half a second and more).
pub const TIME_CLASSES: usize = 21;

/// The limit of a class, exclusive; None of the last one.
#[must_use]
pub fn class_limit(class: usize) -> Option<Duration> {
    (class + 1 < TIME_CLASSES).then(|| Duration::from_micros(1 << class))
}

fn class_of(took: Duration) -> usize {
    let microseconds = took.as_micros() as u64;
    (u64::BITS - microseconds.leading_zeros()).min(TIME_CLASSES as u32 - 1) as usize
}

/// What one worker counts of one kind of request.
#[derive(Debug)]
struct Counter {
    begun: AtomicU64,
    nanoseconds: AtomicU64,
    classes: [AtomicU64; TIME_CLASSES],
}

impl Counter {
    const fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            classes: [const { AtomicU64::new(0) }; TIME_CLASSES],
        }
    }
}

/// A plain store: there is one writer.
fn add(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// Counters of one worker, on cache lines of their own. Only that worker writes them.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counters([Counter; SLOTS]);

impl Counters {
    /// Counts a request that begins.
    pub(crate) fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.0.get(opcode as usize) {
            add(&counter.begun, 1);
        }
    }

    /// Counts how long it took.
    pub(crate) fn took(&self, opcode: Opcode, took: Duration) {
        let Some(counter) = self.0.get(opcode as usize) else { return };
        add(&counter.nanoseconds, took.as_nanos() as u64);
        if let Some(class) = counter.classes.get(class_of(took)) {
            add(class, 1);
        }
    }
}

/// The counters of all workers that there have been.
#[derive(Debug, Default)]
pub(crate) struct AllCounters(Mutex<Vec<Arc<Counters>>>);

impl AllCounters {
    /// For one more worker: those of one that has ended go on, if there are any.
    pub(crate) fn add_worker(&self) -> Arc<Counters> {
        let mut all = self.0.lock();
        if let Some(left) = all.iter_mut().find_map(|one| Arc::get_mut(one).is_some().then_some(one)) {
            return Arc::clone(left);
        }
        let counters = Arc::new(Counters([const { Counter::new() }; SLOTS]));
        all.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn sum(&self) -> Counts {
        let mut sum = [0; SLOTS];
        for worker in self.0.lock().iter() {
            for (total, counter) in sum.iter_mut().zip(&worker.0) {
                *total += counter.begun.load(Ordering::Relaxed);
            }
        }
        Counts(sum)
    }

    /// The times of all kinds that have come.
    pub(crate) fn times(&self) -> Vec<(Opcode, Times)> {
        Opcode::ALL.iter().filter_map(|opcode| Some((*opcode, self.get(*opcode)?))).collect()
    }

    /// The times of one kind; None if none has come.
    pub(crate) fn get(&self, opcode: Opcode) -> Option<Times> {
        let workers = self.0.lock().clone();
        let mut times = Times::default();
        for counter in workers.iter().filter_map(|worker| worker.0.get(opcode as usize)) {
            times.begun += counter.begun.load(Ordering::Relaxed);
            times.busy += Duration::from_nanos(counter.nanoseconds.load(Ordering::Relaxed));
            for (total, class) in times.classes.iter_mut().zip(&counter.classes) {
                *total += class.load(Ordering::Relaxed);
            }
        }
        (times.begun > 0).then_some(times)
    }
}

/// How long requests of one kind took, from their arrival at a worker until their answer was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Requests that have been begun.
    pub begun: u64,
    /// The sum of the times of those that are done.
    pub busy: Duration,
    /// Their number by class: see [`class_limit`].
    pub classes: [u64; TIME_CLASSES],
}

/// Requests per opcode since the session began.
#[derive(Clone, PartialEq, Eq)]
pub struct Counts([u64; SLOTS]);

impl Counts {
    /// Requests of this kind.
    #[must_use]
    pub fn get(&self, opcode: Opcode) -> u64 {
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
        Opcode::ALL.iter().map(|&opcode| (opcode, self.get(opcode))).filter(|(_, count)| *count > 0)
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
        assert_eq!(all.sum().get(Opcode::Lookup), 2);
        assert_eq!(all.sum().since(&before).total(), 2);
        assert_eq!(format!("{:?}", all.sum()), r#"{"LOOKUP": 2, "COPY_FILE_RANGE_64": 1}"#);
    }

    #[test]
    fn counters_of_an_ended_worker_are_kept() {
        let all = AllCounters::default();
        let (one, two) = (all.add_worker(), all.add_worker());
        one.count(Opcode::Lookup);
        drop(one);
        let next = all.add_worker();
        next.count(Opcode::Lookup);
        let count = all.0.lock().len();
        assert_eq!((count, all.sum().get(Opcode::Lookup)), (2, 2));
        drop(two);
    }

    #[test]
    fn times_are_in_their_classes() {
        let all = AllCounters::default();
        let (one, two) = (all.add_worker(), all.add_worker());
        for (worker, nanoseconds) in [(&one, 999), (&two, 1000), (&one, 3999), (&two, 10_000_000_000)] {
            worker.count(Opcode::Read);
            worker.took(Opcode::Read, Duration::from_nanos(nanoseconds));
        }
        one.count(Opcode::Write);
        let times = all.times();
        assert_eq!(
            times.iter().map(|(opcode, _)| *opcode).collect::<Vec<_>>(),
            [Opcode::Read, Opcode::Write]
        );
        let (_, read) = times.first().unwrap();
        assert_eq!((read.begun, read.busy), (4, Duration::from_nanos(10_000_005_998)));
        for (class, count) in read.classes.iter().enumerate() {
            assert_eq!(*count, u64::from([0, 1, 2, TIME_CLASSES - 1].contains(&class)), "class {class}");
        }
    }

    #[test]
    fn limits_of_classes_double() {
        for class in 0..TIME_CLASSES - 1 {
            let limit = class_limit(class).unwrap();
            assert_eq!(class_of(limit), class + 1);
            assert_eq!(class_of(limit - Duration::from_nanos(1)), class);
        }
        assert_eq!((class_limit(0), class_limit(TIME_CLASSES - 1)), (Some(Duration::from_micros(1)), None));
        assert_eq!(class_of(Duration::MAX), TIME_CLASSES - 1);
    }
}
