//! Whether waiting awake pays.
//!
//! On a virtual machine it takes 10 to 20 microseconds to wake a sleeping processor, several times what an
//! operation takes, and a storm of metadata operations pays that twice per request. A worker that looks for the
//! next request for a moment before it sleeps saves one of the two. It pays while requests follow each other
//! closely and a processor would be idle anyway; otherwise it takes time from others. So:
//!
//! - after failures in a row, spinning is left out for a number of waits that doubles up to [`PAUSE_MAX`]: the
//!   cost for sparse requests goes towards nothing;
//! - when the kernel keeps taking the processor away from the spinning thread (involuntary context switches), others
//!   need it: spinning rests for [`CROWDED_PAUSE`] waits.

use std::time::Duration;
use vellum_sys::{UsageScope, usage};

/// Failures in a row after which there is a first pause.
const FAILURES: u32 = 2;
/// Longest pause (waits).
const PAUSE_MAX: u32 = 256;
/// Spins between two looks at the context switches.
const LOOK_EVERY: u32 = 64;
/// So many involuntary switches between two looks mean that the processor is wanted by others.
const CROWDED: u64 = 8;
/// Pause then (waits).
const CROWDED_PAUSE: u32 = 1024;

/// One worker's habit.
#[derive(Debug)]
pub(crate) struct Spinner {
    limit: Duration,
    failures: u32,
    pause: u32,
    left_out: u32,
    spins: u32,
    switches: u64,
}

impl Spinner {
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, failures: 0, pause: 0, left_out: 0, spins: 0, switches: 0 }
    }

    /// How long to spin this time; zero: not at all.
    pub(crate) fn limit(&mut self) -> Duration {
        if self.left_out > 0 {
            self.left_out -= 1;
            return Duration::ZERO;
        }
        self.limit
    }

    /// A spin has ended, with a request or without.
    pub(crate) fn learn(&mut self, request: bool) {
        if request {
            self.failures = 0;
            self.pause = 0;
        } else {
            self.failures += 1;
            if self.failures >= FAILURES {
                self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
                self.left_out = self.pause;
            }
        }
        self.spins += 1;
        if self.spins >= LOOK_EVERY {
            self.spins = 0;
            let switches = usage(UsageScope::Thread).map_or(0, |usage| usage.switches_involuntary);
            if switches.saturating_sub(self.switches) > CROWDED {
                self.left_out = CROWDED_PAUSE;
            }
            self.switches = switches;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_for_nothing_is_given_up_in_steps() {
        let mut spinner = Spinner::new(Duration::from_micros(20));
        let mut spun = 0;
        for _ in 0..10_000 {
            if !spinner.limit().is_zero() {
                spun += 1;
                spinner.learn(false);
            }
        }
        assert!(spun < 60, "{spun} of 10000 waits");
    }
}
