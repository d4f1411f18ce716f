//! What a service has done so far, as `vellum stats` shows it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
pub use vellum_fuse::class_limit;
use vellum_fuse::{SessionHandle, TIME_CLASSES, Times};

/// One instance since it was mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceStats {
    pub version: String,
    /// Process id of the service, in its own namespace.
    pub pid: u32,
    /// Where it is mounted.
    pub mountpoint: String,
    /// `cached` or `passthrough`.
    pub profile: String,
    /// How long it has been served, in seconds.
    pub seconds: f64,
    /// Requests through FUSE, by the protocol's name of their kind.
    pub operations: BTreeMap<String, OperationStats>,
    /// Files that are open and read and written by the kernel itself.
    pub passed_through: usize,
    /// What the tree counts, by name.
    pub figures: BTreeMap<String, u64>,
    /// What it has of the service's cache; None: its layers are read as they are.
    pub cache: Option<CacheStats>,
}

/// What one mount has of its service's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats {
    /// Its weight among the mounts of the service.
    pub weight: u32,
    /// It has read nothing for a while, and part of its share is lent to others.
    pub is_idle: bool,
    /// Bytes that it pays for: its parts of what it uses.
    pub bytes: u64,
    /// Bytes of that whose files are in the hands of the kernel or of programs.
    pub lent_bytes: u64,
    /// Its reads of a block that was there.
    pub hits: u64,
    /// Its reads of a block that was not.
    pub misses: u64,
    /// Blocks that it has given up to make room; others may still use them.
    pub evictions: u64,
}

impl CacheStats {
    /// The part of its reads that found their block, in percent. None: there were none.
    #[must_use]
    pub fn hit_percent(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0).then(|| self.hits as f64 * 100.0 / reads as f64)
    }

    /// What was added since `earlier`; what it has is as it is now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            evictions: self.evictions.saturating_sub(earlier.evictions),
            ..*self
        }
    }
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationStats {
    /// How many there were.
    pub count: u64,
    /// How long the service was busy with them, in seconds.
    pub seconds: f64,
    /// How many took less than 1, 2, 4, ... microseconds, and not less than the limit before; the last class has no limit. Classes
    /// at the end that hold nothing are left out.
    pub classes: Vec<u64>,
}

impl OperationStats {
    fn from_times(times: &Times) -> Self {
        let used = times.classes.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        Self {
            count: times.begun,
            seconds: times.busy.as_secs_f64(),
            classes: times.classes.iter().take(used).copied().collect(),
        }
    }

    /// The time below which a part of them (0 to 1) stayed, up to a factor of two: the limit of its class. None without any, and
    /// where the class has no limit.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let total: u64 = self.classes.iter().sum();
        let wanted = (total as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let class = self.classes.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        class_limit(class)
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |class: usize| earlier.classes.get(class).copied().unwrap_or(0);
        Self {
            count: self.count.saturating_sub(earlier.count),
            seconds: (self.seconds - earlier.seconds).max(0.0),
            classes: self
                .classes
                .iter()
                .enumerate()
                .map(|(class, count)| count.saturating_sub(before(class)))
                .collect(),
        }
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.seconds += other.seconds;
        self.classes.resize(self.classes.len().max(other.classes.len()).min(TIME_CLASSES), 0);
        for (sum, more) in self.classes.iter_mut().zip(&other.classes) {
            *sum += more;
        }
    }
}

impl InstanceStats {
    /// What a session knows of itself.
    pub(crate) fn from_session(session: &SessionHandle) -> Self {
        let times = session.times();
        let operation = |(opcode, times): &(vellum_fuse::wire::Opcode, Times)| {
            (opcode.name().to_owned(), OperationStats::from_times(times))
        };
        Self {
            operations: times.iter().map(operation).collect(),
            passed_through: session.backed_nodes(),
            ..Self::default()
        }
    }

    /// All operations together.
    #[must_use]
    pub fn total(&self) -> OperationStats {
        let mut total = OperationStats::default();
        self.operations.values().for_each(|operation| total.add(operation));
        total
    }

    /// What was added since `earlier`, an answer of the same instance.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let nothing = OperationStats::default();
        let operations = self
            .operations
            .iter()
            .map(|(name, now)| (name.clone(), now.since(earlier.operations.get(name).unwrap_or(&nothing))));
        Self {
            seconds: (self.seconds - earlier.seconds).max(0.0),
            operations: operations.filter(|(_, operation)| operation.count > 0).collect(),
            cache: self.cache.map(|now| now.since(&earlier.cache.unwrap_or_default())),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(classes: &[u64]) -> OperationStats {
        OperationStats { count: classes.iter().sum(), seconds: 1.0, classes: classes.to_vec() }
    }

    #[test]
    fn quantiles_are_limits_of_classes() {
        let all = of(&[0, 98, 0, 1, 1]);
        assert_eq!(all.quantile(0.5), Some(Duration::from_micros(2)));
        assert_eq!(all.quantile(0.99), Some(Duration::from_micros(8)));
        assert_eq!(all.quantile(1.0), Some(Duration::from_micros(16)));
        assert_eq!(of(&[]).quantile(0.5), None);
        let mut slow = vec![0; TIME_CLASSES];
        slow[TIME_CLASSES - 1] = 1;
        assert_eq!(of(&slow).quantile(0.5), None);
    }

    #[test]
    fn differences_and_sums() {
        let (before, now) = (of(&[1, 2]), OperationStats { seconds: 3.0, ..of(&[1, 4, 5]) });
        assert_eq!(now.since(&before), OperationStats { count: 7, seconds: 2.0, classes: vec![0, 2, 5] });
        let mut sum = before.clone();
        sum.add(&now);
        assert_eq!(sum, OperationStats { count: 13, seconds: 4.0, classes: vec![2, 6, 5] });
        // A service that was started anew counts from nothing.
        assert_eq!(before.since(&now).count, 0);
    }

    #[test]
    fn cache_sizes_are_absolute_in_differences() {
        let at = |bytes, hits, misses| CacheStats { weight: 7, bytes, hits, misses, ..CacheStats::default() };
        let passed = at(5, 30, 10).since(&at(9, 0, 0));
        assert_eq!((passed, passed.hit_percent()), (at(5, 30, 10), Some(75.0)));
        assert_eq!(at(5, 30, 10).since(&at(9, 30, 10)).hit_percent(), None);
    }

    #[test]
    fn instance_statistics_subtract() {
        let with = |reads: u64| InstanceStats {
            operations: BTreeMap::from([("READ".into(), of(&[reads])), ("OPEN".into(), of(&[1]))]),
            ..InstanceStats::default()
        };
        let added = with(5).since(&with(2));
        assert_eq!(added.operations.keys().collect::<Vec<_>>(), ["READ"]);
        assert_eq!(added.total().count, 3);
    }
}
