//! Sets of numbers, as ranges.

use std::collections::BTreeMap;

/// Numbers of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    /// From the first number of each range to the one behind its last. They neither overlap nor touch.
    ends: BTreeMap<u64, u64>,
    count: u64,
}

impl Ranges {
    /// How many numbers there are.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The range that has a number: where it ends.
    pub(super) fn end_of(&self, number: u64) -> Option<u64> {
        let (_, end) = self.ends.range(..=number).next_back()?;
        (*end > number).then_some(*end)
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.end_of(number).is_some()
    }

    /// The first number from `from` on.
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        if self.contains(from) {
            return Some(from);
        }
        self.ends.range(from..).next().map(|(start, _)| *start)
    }

    pub(super) fn intersects(&self, from: u64, to: u64) -> bool {
        self.next(from).is_some_and(|number| number < to)
    }

    pub(super) fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        // With those that it touches or overlaps.
        let first =
            self.ends.range(..=from).next_back().filter(|(_, end)| **end >= from).map(|(start, _)| *start);
        let hit: Vec<u64> =
            first.into_iter().chain(self.ends.range(from..=to).map(|(start, _)| *start)).collect();
        for at in hit {
            if let Some(old) = self.ends.remove(&at) {
                self.count -= old - at;
                (start, end) = (start.min(at), end.max(old));
            }
        }
        self.ends.insert(start, end);
        self.count += end - start;
    }

    pub(super) fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first =
            self.ends.range(..from).next_back().filter(|(_, end)| **end > from).map(|(start, _)| *start);
        let hit: Vec<u64> =
            first.into_iter().chain(self.ends.range(from..to).map(|(start, _)| *start)).collect();
        for start in hit {
            let Some(end) = self.ends.remove(&start) else { continue };
            self.count -= end - start;
            for (left, right) in [(start, from), (to, end)] {
                if left < right {
                    self.ends.insert(left, right);
                    self.count += right - left;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_behave_as_a_set(steps in prop::collection::vec((any::<bool>(), 0..40_u64, 0..12_u64), 0..60)) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (is_insert, from, len) in steps {
                if is_insert {
                    ranges.insert(from, from + len);
                    model.extend(from..from + len);
                } else {
                    ranges.remove(from, from + len);
                    model.retain(|number| !(from..from + len).contains(number));
                }
                prop_assert_eq!(ranges.count(), model.len() as u64);
                for number in 0..60 {
                    prop_assert_eq!(ranges.contains(number), model.contains(&number));
                    prop_assert_eq!(ranges.next(number), model.range(number..).next().copied());
                    let end = (number..).find(|number| !model.contains(number)).filter(|end| *end > number);
                    prop_assert_eq!(ranges.end_of(number), end);
                }
                let apart = ranges.ends.iter().zip(ranges.ends.iter().skip(1)).all(|((_, end), (start, _))| end < start);
                prop_assert!(apart, "{:?}", ranges);
            }
        }
    }
}
