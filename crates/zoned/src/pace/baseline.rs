//! How long reads and writes take when nobody disturbs them.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Samples from which an answer is believed,
const ENOUGH: u64 = 200;
/// and from which the longest one so far stands for it.
const SOME: u64 = 20;
/// So many samples, and older ones are forgotten: others' work changes.
const KEPT: u64 = 8192;
/// The part of undisturbed calls that are not above what is answered. Not 0.99: where that falls on a step of the distribution, twice as many
/// calls may be above it as should be, with nobody to blame.
const PART: f64 = 0.995;
/// Samples between two looks at it.
const LOOK: u64 = 64;
/// Longest latency in nanoseconds that is told from longer ones: a minute.
const LONGEST: u64 = 60_000_000_000;
/// Digits of a latency that are kept.
const DIGITS: u8 = 2;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Bytes from the device.
    Read,
    /// Bytes to the device.
    Write,
}

/// How long nearly all undisturbed calls take, by direction and size (in powers of two).
#[derive(Debug, Default)]
pub struct LatencyBaseline {
    kinds: BTreeMap<(Direction, u32), Kind>,
}

/// Latencies of one direction and size.
#[derive(Debug)]
struct Kind {
    /// Samples now, and those before.
    now: Histogram<u32>,
    before: Option<u64>,
    usual: Option<u64>,
}

impl LatencyBaseline {
    /// Takes the latency of a call that nobody disturbed.
    pub fn add(&mut self, direction: Direction, bytes: u64, latency: u64) {
        let kind = self.kinds.entry(key(direction, bytes)).or_insert_with(Kind::new);
        kind.add(latency);
    }

    /// What 995 of 1,000 calls do not exceed, in nanoseconds. None: not enough is known.
    #[must_use]
    pub fn usual(&self, direction: Direction, bytes: u64) -> Option<u64> {
        self.kinds.get(&key(direction, bytes)).and_then(|kind| kind.usual)
    }
}

fn key(direction: Direction, bytes: u64) -> (Direction, u32) {
    (direction, bytes.max(1).ilog2())
}

impl Kind {
    fn new() -> Self {
        // Nothing is refused: the bounds are constants that the crate takes.
        let now = Histogram::new_with_bounds(1, LONGEST, DIGITS)
            .unwrap_or_else(|e| unreachable!("bounds of a histogram: {e}"));
        Self { now, before: None, usual: None }
    }

    fn add(&mut self, latency: u64) {
        self.now.saturating_record(latency);
        let samples = self.now.len();
        if self.before.is_none() && (SOME..ENOUGH).contains(&samples) {
            self.usual = Some(self.now.max());
        }
        if samples >= ENOUGH && (samples.is_multiple_of(LOOK) || samples == ENOUGH) {
            let now = self.now.value_at_quantile(PART);
            // Just begun anew, one sample more or less moves it much.
            let sure = samples >= KEPT / 4 || self.before.is_none();
            self.usual = Some(if sure { now } else { self.before.unwrap_or(now) });
        }
        if samples >= KEPT {
            self.before = self.usual;
            self.now.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_baseline_needs_samples_and_adapts() {
        let mut all = LatencyBaseline::default();
        let feed = |all: &mut LatencyBaseline, base: u64, times: u64| {
            for at in 0..times {
                all.add(Direction::Write, 4096, base + at % 100 * 100);
            }
        };
        feed(&mut all, 10_000, SOME - 1);
        assert_eq!(all.usual(Direction::Write, 4096), None);
        feed(&mut all, 10_000, 1);
        assert!(all.usual(Direction::Write, 4096).is_some());
        feed(&mut all, 10_000, 1000);
        let near = |all: &LatencyBaseline, expected: f64| {
            let found = all.usual(Direction::Write, 4096).unwrap() as f64;
            assert!((found / expected - 1.0).abs() < 0.02, "{found}");
        };
        near(&all, 19_900.0);
        assert_eq!(all.usual(Direction::Read, 4096), None);
        assert_eq!(all.usual(Direction::Write, 1 << 16), None);
        // Another load; the old one is forgotten.
        feed(&mut all, 50_000, 2 * KEPT + KEPT / 2);
        near(&all, 59_900.0);
    }
}
