//! When the next piece of background writes may go.
//!
//! Beside others it begins low and doubles every moment until calls are late, for a device that answers from its buffer shows late
//! that it is given too much. From then on the rate is moved by every call of others that was under way beside background writes: a little up
//! when it was answered in time, 99 times as much down when it was not. So it rests where one in a hundred is late, which is what a 99th
//! percentile says. (The same idea finds a quantile of a stream by steps alone: Robbins and Monro, Annals of Mathematical Statistics, 1951.)

use super::baseline::{Direction, LatencyBaseline};
use super::budget::Budget;
use super::meter::Meter;
use super::{Nanos, SECOND};

/// Part of all calls that may be late.
const LATE: f64 = 0.01;
/// How far one late call moves the logarithm of the rate.
const STEP: f64 = 0.25;
/// While calls are in time from the beginning on, the rate doubles in so long, but with one call not more than once.
const DOUBLES: Nanos = SECOND / 50;
/// It is known after so many that were late; each halves the rate.
const LATES: u32 = 3;
/// Afterwards the logarithm of the rate grows by at least this in a second, for others whose calls are few.
const GROWS: f64 = 0.1;
/// Without background writes for so long, how much goes is looked for anew.
const FORGETS: Nanos = SECOND;
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
pub enum PaceDecision {
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
    /// How much goes is not known yet; so many calls were late since it began.
    search: Option<u32>,
    /// When the rate was moved last.
    moved_at: Nanos,
    /// Bytes under way.
    under_way: u64,
    /// When the next piece may go, beside others,
    beside: Meter,
    /// and when nobody else is there.
    alone: Meter,
    /// When a piece was under way last.
    busy_at: Option<Nanos>,
    others_at: Option<Nanos>,
    probe_until: Nanos,
    probed_at: Option<Nanos>,
    undisturbed: LatencyBaseline,
}

impl Pacer {
    /// Knows nothing of others yet.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            rate: first_of(budget),
            search: search_of(budget),
            moved_at: 0,
            under_way: 0,
            beside: Meter::default(),
            alone: Meter::default(),
            busy_at: None,
            others_at: None,
            probe_until: 0,
            probed_at: None,
            undisturbed: LatencyBaseline::default(),
        }
    }

    /// Bytes per second that it grants at the moment while others are at work.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Whether a piece of `bytes` may go at `now`. A piece that is longer than the window goes alone.
    #[must_use]
    pub fn ask(&self, now: Nanos, bytes: u64) -> PaceDecision {
        if self.under_way > 0 && self.under_way + bytes > self.budget.window {
            return PaceDecision::AfterDone;
        }
        let beside = self.beside.due().max(self.probe_until);
        let from = if self.is_alone(now) { self.alone.due() } else { beside };
        if from > now { PaceDecision::At(from) } else { PaceDecision::Now }
    }

    /// A piece goes at `now`; its end is told by [`done`](Self::done).
    pub fn sent(&mut self, now: Nanos, bytes: u64) {
        if self.under_way == 0 && self.busy_at.is_none_or(|busy| busy + FORGETS <= now) {
            (self.search, self.moved_at, self.rate) = (search_of(self.budget), now, first_of(self.budget));
        }
        self.under_way += bytes;
        self.busy_at = Some(now);
        let credit = self.budget.credit;
        self.alone.sent(now, bytes, self.budget.most as f64, credit);
        if self.is_alone(now) {
            // One that went while nobody was there holds up no later one.
            self.beside = Meter::from(now);
        }
        // A pause that was meant is not made up for.
        let credit = credit.min(now.saturating_sub(self.probe_until));
        self.beside.sent(now, bytes, self.rate, credit);
    }

    /// A piece is done.
    pub fn done(&mut self, now: Nanos, bytes: u64) {
        self.under_way = self.under_way.saturating_sub(bytes);
        self.busy_at = Some(now);
    }

    /// Somebody else's call of `bytes` has ended at `now`, after `latency` nanoseconds.
    pub fn note_other_call(&mut self, now: Nanos, direction: Direction, bytes: u64, latency: Nanos) {
        self.others_seen(now);
        self.probed(now, direction, bytes, latency);
    }

    /// Somebody else was at work at `now`; how long that took is not known.
    pub fn others_seen(&mut self, now: Nanos) {
        self.others_at = Some(now);
    }

    /// A call that stands for those of others has ended at `now`, after `latency` nanoseconds. It says nothing of whether others are there.
    pub fn probed(&mut self, now: Nanos, direction: Direction, bytes: u64, latency: Nanos) {
        let began = now.saturating_sub(latency);
        let quiet = self.under_way == 0 && self.busy_at.is_none_or(|busy| busy + SETTLES <= began);
        if quiet {
            self.undisturbed.add(direction, bytes, latency);
            return;
        }
        let Some(usual) = self.undisturbed.usual(direction, bytes) else {
            self.probe(now);
            return;
        };
        let since = now.saturating_sub(self.moved_at);
        self.moved_at = now;
        let late = latency as f64 > usual as f64 * (1.0 + self.budget.slack);
        let step = match (late, self.search.is_some()) {
            (true, true) => -std::f64::consts::LN_2,
            (true, false) => -STEP * (1.0 - LATE),
            (false, true) => (since as f64 / DOUBLES as f64).min(1.0) * std::f64::consts::LN_2,
            (false, false) => (STEP * LATE).max(GROWS * since as f64 / SECOND as f64),
        };
        // One that is late may be so by itself.
        self.search = self.search.map(|lates| lates + u32::from(late)).filter(|lates| *lates < LATES);
        self.rate = (self.rate * step.exp()).clamp(least_of(self.budget), self.budget.most as f64);
    }

    /// Holds back to see how others are without, if that was not done a short while ago.
    pub fn probe(&mut self, now: Nanos) {
        if self.probed_at.is_none_or(|at| at + BETWEEN_PROBES <= now) {
            self.probed_at = Some(now);
            self.probe_until = now + SETTLES + PROBE;
        }
    }

    fn is_alone(&self, now: Nanos) -> bool {
        self.others_at.is_none_or(|at| at + ALONE <= now)
    }
}

/// Where it begins beside others.
fn first_of(budget: Budget) -> f64 {
    (budget.first as f64).clamp(least_of(budget), budget.most.max(1) as f64)
}

/// Whether it is still to be found how much goes: not where it begins at the most.
fn search_of(budget: Budget) -> Option<u32> {
    (budget.first < budget.most).then_some(0)
}

fn least_of(budget: Budget) -> f64 {
    budget.least.min(budget.most) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pacer() -> Pacer {
        Pacer::new(Budget { slack: 0.1, least: MIB, first: MIB, most: 100 * MIB, window: MIB, credit: 0 })
    }

    /// Calls of others that nobody disturbs, until how long they take is known.
    fn learned(pacer: &mut Pacer) -> Nanos {
        for call in 1..=1000 {
            pacer.note_other_call(call * 100_000, Direction::Write, 4096, 10_000);
        }
        100_000_000
    }

    #[test]
    fn an_idle_device_is_not_paced() {
        let mut pacer = pacer();
        pacer.sent(0, MIB / 2);
        // At 100 MiB/s, however low the rate beside others is.
        let next = 5_000_000;
        assert_eq!(pacer.ask(0, MIB / 2), PaceDecision::At(next));
        assert_eq!(pacer.ask(next, MIB / 2), PaceDecision::Now);
        pacer.sent(next, MIB / 2);
        assert_eq!(pacer.ask(2 * next, 1), PaceDecision::AfterDone);
        pacer.done(2 * next, MIB / 2);
        assert_eq!(pacer.ask(2 * next, MIB / 2), PaceDecision::Now);
        // A piece that is longer than the window goes alone.
        pacer.done(2 * next, MIB / 2);
        assert_eq!(pacer.ask(2 * next, 8 * MIB), PaceDecision::Now);
    }

    #[test]
    fn the_rate_holds_beside_other_load() {
        let mut pacer = pacer();
        let now = learned(&mut pacer);
        assert_eq!(pacer.ask(now, MIB / 2), PaceDecision::Now);
        pacer.sent(now, MIB / 2);
        // Half a MiB at 1 MiB/s.
        assert_eq!(pacer.ask(now, MIB / 2), PaceDecision::At(now + 500_000_000));
        pacer.done(now + 1, MIB / 2);
        assert_eq!(pacer.ask(now + 500_000_000, MIB / 2), PaceDecision::Now);
        // Others stop: at 100 MiB/s it would have been its turn 5 ms after the last one.
        assert_eq!(pacer.ask(now + 200_000_000, MIB / 2), PaceDecision::Now);
    }

    /// Whoever sends pieces wakes up late: beside others and alone, that costs nothing up to the credit. A pause is no lateness.
    #[test]
    fn late_pieces_are_made_up_within_the_credit() {
        const LATE: Nanos = SECOND / 200;
        let late = |alone: bool| {
            let mut pacer = Pacer::new(Budget { credit: LATE, ..pacer().budget });
            let begin = learned(&mut pacer) + if alone { ALONE } else { 0 };
            let mut now = begin;
            for piece in 0..20 {
                if !alone {
                    pacer.others_seen(now);
                }
                match pacer.ask(now, MIB) {
                    PaceDecision::At(at) => now = at + LATE,
                    PaceDecision::Now => assert!(piece == 0, "before its time"),
                    PaceDecision::AfterDone => panic!("nothing is under way"),
                }
                if !alone {
                    pacer.others_seen(now);
                }
                pacer.sent(now, MIB);
                pacer.done(now, MIB);
            }
            (now - begin) as f64 / SECOND as f64
        };
        // 19 pieces of which each takes a second, or the hundredth part of one; of these the first may have gone sooner.
        assert!((18.9..19.02).contains(&late(false)), "{}", late(false));
        assert!((0.18..0.201).contains(&late(true)), "{}", late(true));
        let mut pacer = Pacer::new(Budget { credit: LATE, ..pacer().budget });
        let now = learned(&mut pacer);
        pacer.probe(now);
        let PaceDecision::At(until) = pacer.ask(now, MIB) else { panic!("no pause") };
        pacer.sent(until, MIB);
        pacer.done(until, MIB);
        pacer.others_seen(until);
        assert_eq!(pacer.ask(until, MIB), PaceDecision::At(until + SECOND));
    }

    /// It begins low, and finds soon how much goes when nobody is late; after a while without writes it does so again.
    #[test]
    fn the_rate_converges_quickly() {
        let mut pacer = pacer();
        let mut now = learned(&mut pacer);
        let others = |pacer: &mut Pacer, now: &mut Nanos, calls: u32| {
            for _ in 0..calls {
                *now += 1_000_000;
                pacer.note_other_call(*now, Direction::Write, 4096, 10_000);
            }
        };
        pacer.sent(now, 1);
        assert_eq!(pacer.rate(), MIB);
        others(&mut pacer, &mut now, 150);
        assert_eq!(pacer.rate(), 100 * MIB);
        pacer.done(now, 1);
        others(&mut pacer, &mut now, 2000);
        pacer.sent(now, 1);
        assert_eq!(pacer.rate(), MIB);
    }

    /// Others' calls are late as often as the rate is high: it rests where one in a hundred is.
    #[test]
    fn the_rate_settles_at_one_percent_late_calls() {
        let mut pacer = pacer();
        let mut now = learned(&mut pacer);
        let mut random = crate::device::emulator::Random::new(7);
        let (mut late, mut all) = (0, 0);
        pacer.sent(now, 1);
        for call in 0..100_000 {
            now += 100_000;
            // At 40 MiB/s one in a hundred, at 80 two.
            let often = pacer.rate() * 1_000_000 / (40 * MIB) / 100;
            let is_late = random.below(1_000_000) < often;
            pacer.note_other_call(now, Direction::Write, 4096, if is_late { 1_000_000 } else { 10_500 });
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
    fn the_rate_never_falls_below_its_minimum() {
        let mut pacer = pacer();
        let now = learned(&mut pacer);
        pacer.sent(now, 1);
        for call in 0..10_000 {
            pacer.note_other_call(now + call, Direction::Write, 4096, 50_000_000);
        }
        assert_eq!(pacer.rate(), MIB);
    }

    /// A kind of call of which nothing is known has background writes pause once, and then it is known.
    #[test]
    fn an_unknown_latency_is_probed() {
        let mut pacer = pacer();
        let mut now = learned(&mut pacer);
        pacer.sent(now, 1000);
        pacer.note_other_call(now + 1, Direction::Read, 4096, 80_000);
        pacer.done(now + 2, 1000);
        let PaceDecision::At(until) = pacer.ask(now + 2, 1000) else { panic!("no pause") };
        assert!(until > now + PROBE);
        while now < until {
            now += 100_000;
            pacer.note_other_call(now, Direction::Read, 4096, 80_000);
        }
        assert!(pacer.undisturbed.usual(Direction::Read, 4096).is_some());
        assert_eq!(pacer.ask(until, 1000), PaceDecision::Now);
    }
}
