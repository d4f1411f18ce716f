//! When a file was changed, for a kernel that writes data back later.
//!
//! Such a kernel states the time of the change (ctime); the layer records the time at which the data arrived. As long as the kernel
//! has the file in memory it shows its own, and afterwards the layer's: later, although nothing has changed, and programs that look for changes
//! (git, incremental backups) would find one. So what the kernel has stated is remembered, for as long as the layer's time stays.
//!
//! For the files changed last: two may share a place, and the later one stays. Nobody waits for anybody: an entry is two words of
//! which one is a hash that the other is part of, so a mixture of two is none.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use vellum_vfs::Timestamp;

/// Bits of an index.
const INDEX: u32 = 14;

/// Times of changes, by inode number and the layer's time.
pub(crate) struct CtimeCache(OnceLock<Box<[[AtomicU64; 2]]>>);

impl CtimeCache {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// A file of the layer, whose time there is `layer`, was changed at `kernel_ctime`.
    pub(crate) fn keep(&self, ino: u64, layer: Timestamp, kernel_ctime: Timestamp) {
        let entries = self.0.get_or_init(|| (0..1 << INDEX).map(|_| Default::default()).collect());
        let kernel_ctime = nanos(kernel_ctime);
        if let Some([time, check]) = entries.get(index(ino)) {
            time.store(kernel_ctime, Relaxed);
            check.store(hash(ino, nanos(layer), kernel_ctime), Relaxed);
        }
    }

    /// When a file was changed whose time in the layer is `layer`, if that has been stated.
    pub(crate) fn get(&self, ino: u64, layer: Timestamp) -> Option<Timestamp> {
        let [time, check] = self.0.get()?.get(index(ino))?;
        let time = time.load(Relaxed);
        (check.load(Relaxed) == hash(ino, nanos(layer), time)).then(|| Timestamp {
            secs: time.cast_signed().div_euclid(SECOND),
            nanos: u32::try_from(time.cast_signed().rem_euclid(SECOND)).unwrap_or_default(),
        })
    }
}

const SECOND: i64 = 1_000_000_000;

const fn nanos(time: Timestamp) -> u64 {
    time.secs.wrapping_mul(SECOND).wrapping_add(time.nanos as i64).cast_unsigned()
}

fn index(ino: u64) -> usize {
    (crate::coherence::writers::spread(ino) >> (64 - INDEX)) as usize
}

/// Never 0 together with a time of 0, which is what a place begins with, but for one in 2^64.
const fn hash(ino: u64, layer: u64, kernel_ctime: u64) -> u64 {
    const fn mix(seed: u64, word: u64) -> u64 {
        let mixed = (seed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }
    mix(mix(mix(0x5851_f42d_4c95_7f2d, ino), layer), kernel_ctime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn at(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    #[test]
    fn a_reported_ctime_holds_while_the_layer_is_unchanged() {
        let times = CtimeCache::new();
        assert_eq!(times.get(7, at(5, 5)), None);
        times.keep(7, at(5, 5), at(4, 999_999_999));
        assert_eq!(times.get(7, at(5, 5)), Some(at(4, 999_999_999)));
        assert_eq!(times.get(7, at(5, 6)), None);
        assert_eq!(times.get(8, at(5, 5)), None);
        times.keep(7, at(6, 0), at(-1, 5));
        assert_eq!(times.get(7, at(6, 0)), Some(at(-1, 5)));
    }

    #[test]
    fn a_torn_entry_is_ignored() {
        static TIMES: CtimeCache = CtimeCache::new();
        let writers = [1, 2].map(|who| {
            thread::spawn(move || (0..50_000).for_each(|n| TIMES.keep(7, at(who, 0), at(who, n))))
        });
        for _ in 0..50_000 {
            for who in [1, 2] {
                assert!(TIMES.get(7, at(who, 0)).is_none_or(|time| time.secs == who));
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
}
