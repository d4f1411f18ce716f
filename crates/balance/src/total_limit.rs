//! A limit for all groups together, where nothing above them has one and the kernel's own reclaim does not keep to `memory.low`.
//!
//! The multi-generational LRU takes from a protected group after one reprieve when the whole host is short. Below a limit it keeps to
//! protection. So the parent has one (`memory.high`, at which nobody is killed): what the groups hold, what is free, and some of what
//! the rest of the host could give. So what one group reads is taken from the groups, by weight, and the host is seldom short.

use super::groups::{Memory, number_after};
use std::fs;
use std::path::Path;

/// Whether the multi-generational LRU reclaims: its first bit.
const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";
/// Such a part of others' page cache may become the groups' from one look to the next.
const GROWTH: u64 = 16;
/// With less page cache than such a part of what they hold, the groups need memory that nobody can drop: there is no limit.
const LEAST: u64 = 8;
/// Whether such a limit is needed.
pub(super) fn is_needed() -> bool {
    is_on(&fs::read_to_string(GENERATIONS).unwrap_or_default())
}

fn is_on(text: &str) -> bool {
    let bits = text.trim().strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    bits.is_some_and(|bits| bits & 1 != 0)
}

/// Memory of the whole host, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host {
    free: u64,
    /// With less than this free the kernel begins to reclaim, or is about to.
    reserve: u64,
    /// Page cache of all.
    cache: u64,
}

impl Host {
    pub(super) fn read() -> std::io::Result<Self> {
        let read = |name: &str| fs::read_to_string(Path::new("/proc").join(name));
        Ok(Self::parse(&read("meminfo")?, &read("zoneinfo")?))
    }

    fn parse(memory: &str, zones: &str) -> Self {
        let kib = |name: &str| number_after(memory, name).unwrap_or(0).saturating_mul(1024);
        // The watermark of a zone is called `high`; that of a processor's list, `high:`.
        let high = zones.lines().filter_map(|line| line.trim().strip_prefix("high "));
        let high: u64 = high.filter_map(|pages| pages.trim().parse::<u64>().ok()).sum();
        let cache = kib("Cached:").saturating_add(kib("Buffers:")).saturating_sub(kib("Shmem:"));
        Self {
            free: kib("MemFree:"),
            reserve: high.saturating_mul(2 * rustix::param::page_size() as u64),
            cache,
        }
    }

    /// The limit of groups that have such memory. None: they are to have none.
    pub(super) fn bound(&self, memory: &Memory) -> Option<u64> {
        let held = memory.cache.saturating_add(memory.fixed);
        if memory.cache < held / LEAST {
            return None;
        }
        let spare = self.free.saturating_sub(self.reserve);
        let of_others = self.cache.saturating_sub(memory.cache) / GROWTH;
        Some(held.saturating_add(spare).saturating_add(of_others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_needed_with_multi_generational_lru() {
        for (text, needed) in [
            ("0x0007\n", true),
            ("0x0001", true),
            ("0x0006", false),
            ("0x0000", false),
            ("", false),
            ("y", false),
        ] {
            assert_eq!(is_on(text), needed, "{text:?}");
        }
    }

    #[test]
    fn the_host_s_memory_is_read() {
        let memory = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 3 kB\nCached: 60 kB\nSwapCached: 9 kB\nShmem: 13 kB\n";
        let zones = "Node 0, zone DMA32\n  pages free 9\n        boost    0\n        min      5\n        low      6\n        high     7\n  \
                     pagesets\n    cpu: 0\n              count:    3\n              high:     378\nNode 0, zone Normal\n        high     2\n";
        let host =
            Host { free: 100 << 10, reserve: 2 * 9 * rustix::param::page_size() as u64, cache: 50 << 10 };
        assert_eq!(Host::parse(memory, zones), host);
    }

    #[test]
    fn the_bound_is_free_memory_and_some_cache() {
        let memory =
            |cache, fixed| Memory { cache, fixed, unwritten: 0, refaults: 0, hierarchical_limit: None };
        let host = Host { free: 100, reserve: 30, cache: 660 };
        assert_eq!(host.bound(&memory(500, 40)), Some(500 + 40 + 70 + 10));
        assert_eq!(Host { free: 20, ..host }.bound(&memory(660, 40)), Some(700));
        // What they need is no page cache.
        assert_eq!(host.bound(&memory(10, 90)), None);
    }
}
