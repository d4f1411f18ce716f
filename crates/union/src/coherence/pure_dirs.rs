//! Directories of which the upper layer alone says what is in them.

use crate::coherence::writers::spread;
use crate::sync::AtomicU64;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

/// Bits of an index of [`PureDirs`].
const INDEX: u32 = if cfg!(shuttle) { 3 } else { 14 };

/// Directories, by their inode numbers in the upper layer, whose files are what the upper layer shows of them: this service has made
/// the directory, and nothing has come into it since but new files. The latest of them are known. The number of one that was removed
/// stays until it is another one's: of directories with something below it says nothing.
#[derive(Default)]
pub(crate) struct PureDirs(OnceLock<Box<[AtomicU64]>>);

impl PureDirs {
    fn place(&self, ino: u64) -> Option<&AtomicU64> {
        let places = self.0.get_or_init(|| (0..1 << INDEX).map(|_| AtomicU64::new(0)).collect());
        places.get((spread(ino) >> (64 - INDEX)) as usize)
    }

    /// A new directory.
    pub(crate) fn add(&self, ino: u64) {
        if let Some(place) = self.place(ino) {
            place.store(ino, SeqCst);
        }
    }

    pub(crate) fn has(&self, ino: u64) -> bool {
        ino != 0 && self.place(ino).is_some_and(|place| place.load(SeqCst) == ino)
    }

    /// Something else comes into it.
    pub(crate) fn remove(&self, ino: u64) {
        if let Some(place) = self.place(ino) {
            let _ = place.compare_exchange(ino, 0, SeqCst, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_plain_directories_are_known() {
        let pure = PureDirs::default();
        assert!(!pure.has(0) && !pure.has(7));
        (1..=100_000).for_each(|ino| pure.add(ino));
        let known = (1..=100_000).filter(|ino| pure.has(*ino)).count();
        assert!((8_000..=1 << INDEX).contains(&known), "{known}");
        pure.add(7);
        pure.remove(8);
        assert!(pure.has(7) && !pure.has(8));
        pure.remove(7);
        assert!(!pure.has(7));
    }
}
