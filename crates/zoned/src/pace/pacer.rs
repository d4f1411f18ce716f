//! When the next piece of background writes may go.
//!
//! The rate is moved by every call of others that was under way beside background writes: a little up when it was answered in time, 99
//! times as much down when it was not. So it rests where one in a hundred is late, which is what a 99th percentile says. (The same idea finds
//! a quantile of a stream by steps alone: Robbins and Monro, Annals of Mathematical Statistics, 1951.)

use super::budget::Budget;
use super::undisturbed::{Direction, Undisturbed};
use super::{Nanos, SECOND};

/// Part of all calls that may be late.
const LATE: f64 = 0.01;
/// How far one late call moves the logarithm of the rate.
const STEP: f64 = 0.25;
/// Nobody else has been at work for so long: nobody is disturbed.
const ALONE: Nanos = SECOND / 10;
/// A device that has answered goes on writing from its buffer; so long afterwards others still meet that.
const SETTLES: Nanos = SECOND / 50;
/// How long background writes are held back to see how others are without,
const PROBE: Nanos = SECOND / 20;
/// and how long after one such pause another may follow.
const BETWEEN_PROBES: Nanos = SECOND;

/// Whether a piece may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now.
    Now,
    /// Not before that time.
    At(Nanos),
    /// When a piece that is under way is done.
    AfterDone,
}

/// Paces background writes. One for each device: all background writes of the device ask the same.
#[derive(Debug)]
pub struct Pacer {
    budget: Budget,
    /// Bytes per second.
    rate: f64,
    /// Bytes under way.
    under_way: u64,
    /// The next piece does not go before.
    next_at: Nanos,
    /// When a piece was under way last.
    busy_at: Option<Nanos>,
    others_at: Option<Nanos>,
    probe_until: Nanos,
    probed_at: Option<Nanos>,
    undisturbed: Undisturbed,
}

impl Pacer {
    /// Knows nothing of others yet.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            rate: budget.most as f64,
            under_way: 0,
            next_at: 0,
            busy_at: None,
            others_at: None,
            probe_until: 0,
            probed_at: None,
            undisturbed: Undisturbed::default(),
        }
    }

    /// Bytes per second that it grants at the moment while others are at work.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Whether a piece of `bytes` may go at `now`. A piece that is longer than the window goes alone.
    #[must_use]
    pub fn ask(&self, now: Nanos, bytes: u64) -> Turn {
        if self.under_way > 0 && self.under_way + bytes > self.budget.window {
            return Turn::AfterDone;
        }
        let from = if self.is_alone(now) { 0 } else { self.next_at.max(self.probe_until) };
        if from > now { Turn::At(from) } else { Turn::Now }
    }

    /// A piece goes at `now`; its end is told by [`done`](Self::done).
    pub fn sent(&mut self, now: Nanos, bytes: u64) {
        self.under_way += bytes;
        self.busy_at = Some(now);
        let takes = bytes as f64 * SECOND as f64 / self.rate.max(1.0);
        self.next_at = self.next_at.max(now) + takes as Nanos;
    }

    /// A piece is done.
    pub fn done(&mut self, now: Nanos, bytes: u64) {
        self.under_way = self.under_way.saturating_sub(bytes);
        self.busy_at = Some(now);
    }

    /// Somebody else's call of `bytes` has ended at `now`, after `latency` nanoseconds.
    pub fn other_done(&mut self, now: Nanos, direction: Direction, bytes: u64, latency: Nanos) {
        self.others_at = Some(now);
        let began = now.saturating_sub(latency);
        let quiet = self.under_way == 0 && self.busy_at.is_none_or(|busy| busy + SETTLES <= began);
        if quiet {
            self.undisturbed.add(direction, bytes, latency);
            return;
        }
        let Some(percentile) = self.undisturbed.percentile(direction, bytes) else {
            self.probe(now);
            return;
        };
        let late = latency as f64 > percentile as f64 * (1.0 + self.budget.slack);
        let step = if late { -STEP * (1.0 - LATE) } else { STEP * LATE };
        let (least, most) = (self.budget.least as f64, self.budget.most as f64);
        self.rate = (self.rate * step.exp()).clamp(least.min(most), most);
    }

    /// Holds back until something is known of how others are without.
    fn probe(&mut self, now: Nanos) {
        if self.probed_at.is_none_or(|at| at + BETWEEN_PROBES <= now) {
            self.probed_at = Some(now);
            self.probe_until = now + SETTLES + PROBE;
        }
    }

    fn is_alone(&self, now: Nanos) -> bool {
        self.others_at.is_none_or(|at| at + ALONE <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pacer() -> Pacer {
        Pacer::new(Budget { slack: 0.1, least: MIB, most: 100 * MIB, window: MIB })
    }

    /// Calls of others that nobody disturbs, until how long they take is known.
    fn learned(pacer: &mut Pacer) -> Nanos {
        for call in 1..=1000 {
            pacer.other_done(call * 100_000, Direction::Write, 4096, 10_000);
        }
        100_000_000
    }

    #[test]
    fn nobody_is_waited_for_who_is_not_there() {
        let mut pacer = pacer();
        pacer.sent(0, MIB / 2);
        assert_eq!(pacer.ask(0, MIB / 2), Turn::Now);
        pacer.sent(0, MIB / 2);
        assert_eq!(pacer.ask(0, 1), Turn::AfterDone);
        pacer.done(1000, MIB / 2);
        assert_eq!(pacer.ask(1000, MIB / 2), Turn::Now);
        // A piece that is longer than the window goes alone.
        pacer.done(1000, MIB / 2);
        assert_eq!(pacer.ask(1000, 8 * MIB), Turn::Now);
    }

    #[test]
    fn beside_others_the_rate_is_kept() {
        let mut pacer = pacer();
        let now = learned(&mut pacer);
        assert_eq!(pacer.ask(now, MIB / 2), Turn::Now);
        pacer.sent(now, MIB / 2);
        // Half a MiB at 100 MiB/s.
        assert_eq!(pacer.ask(now, MIB / 2), Turn::At(now + 5_000_000));
        pacer.done(now + 1, MIB / 2);
        assert_eq!(pacer.ask(now + 5_000_000, MIB / 2), Turn::Now);
        // Others stop.
        pacer.sent(now + 5_000_000, MIB / 2);
        assert_eq!(pacer.ask(now + 200_000_000, MIB / 2), Turn::Now);
    }

    /// Others' calls are late as often as the rate is high: it rests where one in a hundred is.
    #[test]
    fn the_rate_rests_where_one_in_a_hundred_is_late() {
        let mut pacer = pacer();
        let mut now = learned(&mut pacer);
        let mut random = crate::device::emulated::Random::new(7);
        let (mut late, mut all) = (0, 0);
        pacer.sent(now, 1);
        for call in 0..100_000 {
            now += 100_000;
            // At 40 MiB/s one in a hundred, at 80 two.
            let often = pacer.rate() * 1_000_000 / (40 * MIB) / 100;
            let is_late = random.below(1_000_000) < often;
            pacer.other_done(now, Direction::Write, 4096, if is_late { 1_000_000 } else { 10_500 });
            if call > 20_000 {
                all += 1;
                late += u32::from(is_late);
            }
        }
        let part = f64::from(late) / f64::from(all);
        assert!((0.008..0.012).contains(&part), "{part}");
        assert!((20 * MIB..70 * MIB).contains(&pacer.rate()), "{}", pacer.rate());
    }

    #[test]
    fn it_ends_however_others_are() {
        let mut pacer = pacer();
        let now = learned(&mut pacer);
        pacer.sent(now, 1);
        for call in 0..10_000 {
            pacer.other_done(now + call, Direction::Write, 4096, 50_000_000);
        }
        assert_eq!(pacer.rate(), MIB);
    }

    /// A kind of call of which nothing is known has background writes pause once, and then it is known.
    #[test]
    fn what_is_not_known_is_looked_at() {
        let mut pacer = pacer();
        let mut now = learned(&mut pacer);
        pacer.sent(now, 1000);
        pacer.other_done(now + 1, Direction::Read, 4096, 80_000);
        pacer.done(now + 2, 1000);
        let Turn::At(until) = pacer.ask(now + 2, 1000) else { panic!("no pause") };
        assert!(until > now + PROBE);
        while now < until {
            now += 100_000;
            pacer.other_done(now, Direction::Read, 4096, 80_000);
        }
        assert!(pacer.undisturbed.percentile(Direction::Read, 4096).is_some());
        assert_eq!(pacer.ask(until, 1000), Turn::Now);
    }
}
