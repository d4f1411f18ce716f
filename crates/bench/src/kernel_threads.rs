//! What the kernel's own threads use: those that write back, complete requests and do what was put off.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// The process that all threads of the kernel are children of.
const KTHREADD: u32 = 2;

/// Processor time of each thread of the kernel so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse(BTreeMap<u32, Duration>);

impl KernelUse {
    /// As it is now; None where the kernel's threads cannot be seen, as in a container.
    #[must_use]
    pub fn now() -> Option<Self> {
        let name = fs::read_to_string(format!("/proc/{KTHREADD}/comm")).ok()?;
        if name.trim_end() != "kthreadd" {
            return None;
        }
        let children = fs::read_to_string(format!("/proc/{KTHREADD}/task/{KTHREADD}/children")).ok()?;
        let threads = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        Some(Self(threads.filter_map(|pid| Some((pid, cpu(pid)?))).collect()))
    }

    /// What has been used since `earlier`, without what threads that have ended meanwhile have used.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Duration {
        let before = |pid: &u32| earlier.0.get(pid).copied().unwrap_or_default();
        self.0.iter().map(|(pid, now)| now.saturating_sub(before(pid))).sum()
    }
}

fn cpu(pid: u32) -> Option<Duration> {
    let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_counts_from_nothing_and_what_has_ended_does_not_count() {
        let of = |all: &[(u32, u64)]| {
            KernelUse(all.iter().map(|(pid, ms)| (*pid, Duration::from_millis(*ms))).collect())
        };
        let (before, now) = (of(&[(3, 10), (4, 20)]), of(&[(3, 15), (5, 7)]));
        assert_eq!(now.since(&before), Duration::from_millis(12));
        assert_eq!(before.since(&before), Duration::ZERO);
    }
}
