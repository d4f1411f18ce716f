//! A rate, and when the next piece may go by it.
//!
//! A piece is due as soon as the ones before it have taken their time. Whoever sends it wakes up a little later than that, each time; if the next one
//! were counted from there, all that lateness would be lost, and at pieces of a millisecond that is a large part. So a late piece counts from
//! when it was due, as far as the credit goes. (The generic cell rate algorithm, ITU-T I.371: the credit is its tolerance.)

use super::{Nanos, SECOND};

/// When the next piece may go at a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    due: Nanos,
}

impl Meter {
    /// The next piece may go at `due`.
    #[must_use]
    pub fn from(due: Nanos) -> Self {
        Self { due }
    }

    /// When the next piece may go.
    #[must_use]
    pub fn due(self) -> Nanos {
        self.due
    }

    /// A piece of `bytes` goes at `now`, at `rate` bytes per second. What it is late by is made up for by the next ones, up to `credit` nanoseconds. So in any
    /// time no more goes than the rate gives in that time and the credit, and one piece.
    pub fn sent(&mut self, now: Nanos, bytes: u64, rate: f64, credit: Nanos) {
        let from = self.due.max(now.saturating_sub(credit));
        self.due = from.saturating_add((bytes as f64 * SECOND as f64 / rate.max(1.0)) as Nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: f64 = 250e6;

    /// Nanoseconds that so many bytes take.
    fn takes(bytes: u64) -> Nanos {
        (bytes as f64 * SECOND as f64 / RATE) as Nanos
    }

    proptest! {
        /// Whatever pieces are late by, from any of them on no more goes than the rate allows.
        #[test]
        fn the_meter_never_exceeds_rate_and_credit(
            pieces in prop::collection::vec((1_u64..8 << 20, 0_u64..200_000_000), 1..60),
            credit in 0_u64..100_000_000, begins in 0_u64..1_000_000_000,
        ) {
            let (mut meter, mut now, mut sent) = (Meter::default(), begins, Vec::new());
            for (bytes, late) in pieces {
                now = now.max(meter.due()) + late;
                meter.sent(now, bytes, RATE, credit);
                sent.push((now, bytes));
            }
            for (at, (first, _)) in sent.iter().enumerate() {
                let mut bytes = 0;
                for (pieces, (time, piece)) in (0..).zip(&sent[at..]) {
                    // The clock has whole nanoseconds.
                    let time = time - first + credit + pieces;
                    let allowed = time as f64 * RATE / SECOND as f64 + *piece as f64;
                    bytes += piece;
                    prop_assert!(bytes as f64 <= allowed + 1.0, "{bytes} bytes, and {allowed} are allowed");
                }
            }
        }

        /// Pieces that are late by no more than the credit cost nothing: the last one is due when it would have been.
        #[test]
        fn lateness_within_the_credit_is_made_up(
            pieces in prop::collection::vec((1_u64..8 << 20, 0_u64..=20_000_000), 1..60),
        ) {
            let mut meter = Meter::from(1_000_000);
            let mut ideal = meter.due();
            for (bytes, late) in pieces {
                meter.sent(meter.due() + late, bytes, RATE, 20_000_000);
                ideal += takes(bytes);
            }
            prop_assert_eq!(meter.due(), ideal);
        }
    }

    /// Without a credit each lateness is lost; with one only what is beyond it.
    #[test]
    fn lateness_beyond_the_credit_is_lost() {
        for (credit, lost) in [(0, 5_000_000), (2_000_000, 3_000_000), (5_000_000, 0), (9_000_000, 0)] {
            let mut meter = Meter::from(10_000_000);
            meter.sent(15_000_000, 1 << 20, RATE, credit);
            assert_eq!(meter.due(), 10_000_000 + lost + takes(1 << 20), "{credit}");
        }
        // Sooner than it is due, and as slow as can be.
        let mut meter = Meter::from(SECOND);
        meter.sent(0, 1, 0.0, SECOND);
        assert_eq!(meter.due(), 2 * SECOND);
        meter.sent(0, u64::MAX, 0.0, 0);
        assert_eq!(meter.due(), Nanos::MAX);
    }
}
