//! Whether the library is away from this process for a while, so that a checkpoint can be taken of it: nothing new is begun meanwhile.

use crate::shim::raw;
use core::sync::atomic::AtomicI64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The longest time that one is away, in seconds. What is longer was said by a clock that was set, or another machine's.
pub(crate) const MOST: i64 = 60;

/// When it comes back, in seconds of the time of day; 0: it is not away.
static UNTIL: AtomicI64 = AtomicI64::new(0);

/// Whether the library is away.
#[inline]
pub(crate) fn is_detached() -> bool {
    UNTIL.load(Relaxed) != 0 && look()
}

#[cold]
fn look() -> bool {
    let until = UNTIL.load(SeqCst);
    if is_in_effect(until, raw::seconds()) {
        return true;
    }
    // Who has just gone away again keeps his time.
    let _ = UNTIL.compare_exchange(until, 0, SeqCst, SeqCst);
    false
}

/// Whether the time has not come, nor was said by another clock.
fn is_in_effect(until: i64, now: i64) -> bool {
    (1..=MOST).contains(&until.saturating_sub(now))
}

/// From now on it is, for so many seconds.
pub(crate) fn begin(seconds: i64) {
    UNTIL.store(raw::seconds() + seconds.clamp(1, MOST), SeqCst);
}

/// As if the time were over.
#[cfg(test)]
pub(crate) fn reattach() {
    UNTIL.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detached_session_reattaches_with_any_clock() {
        for (from_now, away) in [(5, true), (MOST, true), (MOST + 1, false), (-1, false), (0, false)] {
            assert_eq!(is_in_effect(1_000 + from_now, 1_000), away, "{from_now}");
        }
        assert!(!is_in_effect(0, 1_000) && !is_in_effect(i64::MAX, -1) && !is_in_effect(0, i64::MIN));
    }
}
