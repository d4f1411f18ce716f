//! On which machines processors are kept awake while requests come in numbers.
//!
//! The kernel keeps all of a machine's processors awake or none, and each that polls is busy to its host. Unpacking an
//! archive takes half the time then, so that two processors have less to do than without, and four at most twice as
//! much.

use serde::{Deserialize, Serialize};
use vellum_sys::cpu_latency::CpuLatency;

/// By default they are kept awake on machines with at most so many.
pub const FEW: usize = 4;

/// Whether processors are kept awake while requests come in numbers, where that is permitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeepAwake {
    /// On machines with at most [`FEW`] of them.
    #[default]
    Auto,
    /// On all machines.
    On,
    /// On none.
    Off,
}

impl KeepAwake {
    /// Whether they are on a machine with so many; None: nobody knows how many.
    #[must_use]
    pub const fn is_wanted(self, processors: Option<usize>) -> bool {
        match self {
            Self::Auto => matches!(processors, Some(1..=FEW)),
            Self::On => true,
            Self::Off => false,
        }
    }

    /// What becomes of that, for those who ask.
    pub(crate) fn report(self, processors: Option<usize>, latency: &CpuLatency) -> String {
        if self.is_wanted(processors) {
            let device = latency.device().display();
            return match latency.refused() {
                None => format!("kept awake while requests come in numbers ({device})"),
                Some(why) => format!("left to sleep: {device}: {why}"),
            };
        }
        let why = match (self, processors) {
            (Self::Auto, Some(processors)) => format!("there are {processors}, more than {FEW}"),
            (Self::Auto, None) => "nobody knows how many there are".into(),
            _ => "as asked for".into(),
        };
        format!("left to sleep: {why}")
    }
}

/// Processors of this machine that are in use; None where it does not say. Not to be asked inside of the sandbox.
pub(crate) fn online_processors() -> Option<usize> {
    count(&std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// How many numbers a list of ranges (`0-3,8`) has.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_processors_is_counted() {
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0,2-4,9\n"), Some(5));
        for bad in ["", "\n", "a", "3-1", "0-", "-1", "0,,1", "0-18446744073709551615"] {
            assert_eq!(count(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn idle_states_of_large_machines_are_kept_by_default() {
        let wanted = |what: KeepAwake| [Some(1), Some(FEW), Some(FEW + 1), None].map(|n| what.is_wanted(n));
        assert_eq!(wanted(KeepAwake::Auto), [true, true, false, false]);
        assert_eq!(wanted(KeepAwake::On), [true; 4]);
        assert_eq!(wanted(KeepAwake::Off), [false; 4]);
        assert_eq!(
            KeepAwake::Auto.report(Some(64), &CpuLatency::new()),
            "left to sleep: there are 64, more than 4"
        );
        assert_eq!(KeepAwake::Off.report(Some(2), &CpuLatency::new()), "left to sleep: as asked for");
    }
}
