//! Whether attributes that come with a name, by a lookup or in a list, are worth what they cost. To say for how long they hold takes seven
//! system calls for a file that was given to programs, to find out whether one still writes to it. `rm -rf` and `find` never look at them;
//! `du` asks for each that it was not told so. So it is found out for some files each time that the kernel has asked for what could have come
//! with a name.

use crate::sync::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// For so many files it is found out after the kernel has asked about one.
const MANY: u32 = 64;

/// How many more files it is found out for.
pub(crate) struct AttrProbeBudget(AtomicU32);

impl AttrProbeBudget {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The kernel asks for attributes that could have come with a name.
    pub(crate) fn refill(&self) {
        self.0.store(MANY, Relaxed);
    }

    /// Whether they are worth it for one more file.
    pub(crate) fn take_probe(&self) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_budget_is_refilled_by_each_miss() {
        let attr_probe = AttrProbeBudget::new();
        assert!(!attr_probe.take_probe());
        for _ in 0..2 {
            attr_probe.refill();
            attr_probe.refill();
            assert!((0..MANY).all(|_| attr_probe.take_probe()));
            assert!(!attr_probe.take_probe() && !attr_probe.take_probe());
        }
    }
}
