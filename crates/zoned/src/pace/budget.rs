//! What a class of background writes may have.

use super::{Nanos, SECOND};

/// Threads that sleep wake up late; on a busy machine by some milliseconds.
const LATE: Nanos = SECOND / 50;

/// What background writes may have, and what others are promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// By how much of what is usual others' calls may take longer, but for one in a hundred: 0.1 is a tenth.
    pub slack: f64,
    /// Bytes per second that are granted whatever others wait, so that it ends.
    pub least: u64,
    /// Bytes per second that it begins with beside others. Low, and how much goes is looked for; the most, and only calls that are late slow
    /// it down.
    pub first: u64,
    /// Bytes per second that are never exceeded: what the zones that the writes go to can take, as calibration has found. More would only fill
    /// the device's write buffer, which all share, and somebody may come any moment. `u64::MAX` where nothing was found.
    pub most: u64,
    /// Bytes that may be under way at once, if that is more than one piece. A device answers from its write buffer; about 1.6 MiB ahead of
    /// others' writes to a die are enough to make them wait fifty times as long.
    pub window: u64,
    /// A piece that goes up to so many nanoseconds later than it might makes up for it: the ones after it go sooner. So at a rate no more goes than the
    /// rate gives in that time and this one, and one piece. It is no more than `window` at once.
    pub credit: Nanos,
}

impl Budget {
    /// For an ordinary disk that takes `rate` bytes per second when nobody else is there: 85 hundredths of it, because a disk that is given all it
    /// takes has a queue, which everybody waits in; a quarter at least; 1 MiB under way; 20 ms of credit. Others' calls may take 1.5 times as long.
    #[must_use]
    pub fn of_disk(rate: u64) -> Self {
        let most = (rate / 100 * 85).max(1);
        Self { slack: 0.5, least: (rate / 4).max(1), first: most, most, window: 1 << 20, credit: LATE }
    }

    /// For a disk of which nothing was measured: as fast as it takes while nobody waits for it, and `least` bytes per second however long others
    /// wait. 4 MiB are under way; 20 ms of credit.
    #[must_use]
    pub fn of_unknown(least: u64) -> Self {
        // More than any disk takes, and so little that it comes down soon.
        let most = least.max(4 << 30);
        Self { slack: 0.5, least: least.max(1), first: most, most, window: 4 << 20, credit: LATE }
    }

    /// For zones that together take `rate` bytes per second: nearly all of it, a twentieth at least, 256 KiB under way, and no credit: more
    /// than the rate for a moment is felt where it is so near to all that they take.
    #[must_use]
    pub fn of_rate(rate: u64) -> Self {
        let least = (rate / 20).max(1);
        Self {
            slack: 0.1,
            least,
            first: least,
            most: (rate - rate / 20).max(1),
            window: 256 << 10,
            credit: 0,
        }
    }
}
