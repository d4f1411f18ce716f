//! Directories that the program has made over rings, as far as it matters that the kernel may not know them: how much of their paths it
//! does know. These are guesses, made by the text of a path: the kernel is asked about its part of the path, and the service looks through
//! the rest, so that a wrong one costs a call and no more.

use crate::thresholds::dirs::{MADE as PLACES, MADE_NEXT as NEXT};

/// What is remembered, in a session.
pub(crate) struct UnsyncedDirs {
    /// Hashes of paths, and how many bytes of them the kernel knows.
    places: [Option<(u64, u16)>; PLACES],
    is_empty: bool,
}

impl UnsyncedDirs {
    pub(crate) const fn new() -> Self {
        Self { places: [None; PLACES], is_empty: true }
    }

    pub(crate) fn clear(&mut self) {
        self.places = [None; PLACES];
        self.is_empty = true;
    }

    /// How many bytes of a directory's path the kernel knows, if it is one that was made here.
    pub(crate) fn base(&self, from: i32, text: &[u8]) -> Option<usize> {
        if self.is_empty || text.is_empty() {
            return None;
        }
        let base = self.find(hash(from, text))?.1.into();
        // Another path may have this hash.
        let ends = base == 0 || text.get(base) == Some(&b'/') || base == 1 && text.first() == Some(&b'/');
        (ends && base < text.len()).then_some(base)
    }

    /// A directory has been made.
    pub(crate) fn keep(&mut self, from: i32, text: &[u8], base: usize) {
        let Ok(base) = u16::try_from(base) else { return };
        let hash = hash(from, text);
        self.drop_hash(hash);
        let free = (0..NEXT).find(|next| self.places.get(place(hash, *next)).is_some_and(Option::is_none));
        if let Some(slot) = self.places.get_mut(place(hash, free.unwrap_or_default())) {
            *slot = Some((hash, base));
            self.is_empty = false;
        }
    }

    /// The kernel knows it.
    pub(crate) fn forget(&mut self, from: i32, text: &[u8]) {
        self.drop_hash(hash(from, text));
    }

    fn find(&self, hash: u64) -> Option<(u64, u16)> {
        (0..NEXT).find_map(|next| (*self.places.get(place(hash, next))?).filter(|(found, _)| *found == hash))
    }

    fn drop_hash(&mut self, hash: u64) {
        for next in 0..NEXT {
            if let Some(slot) = self.places.get_mut(place(hash, next))
                && slot.is_some_and(|(found, _)| found == hash)
            {
                *slot = None;
            }
        }
    }
}

fn place(hash: u64, next: u64) -> usize {
    (hash.wrapping_add(next) % PLACES as u64) as usize
}

/// FNV-1a, of Fowler, Noll and Vo: good enough for guesses.
fn hash(from: i32, text: &[u8]) -> u64 {
    let basis = 0xcbf2_9ce4_8422_2325 ^ u64::from(from.cast_unsigned());
    text.iter().fold(basis, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_found_by_the_programs_path() {
        let mut fresh = UnsyncedDirs::new();
        assert_eq!(fresh.base(-100, b"a"), None);
        fresh.keep(-100, b"a", 0);
        fresh.keep(-100, b"/x/y/b", 4);
        fresh.keep(-100, b"/c", 1);
        assert_eq!(fresh.base(-100, b"a"), Some(0));
        assert_eq!(fresh.base(-100, b"/x/y/b"), Some(4));
        assert_eq!(fresh.base(-100, b"/c"), Some(1));
        assert_eq!((fresh.base(3, b"a"), fresh.base(-100, b"b"), fresh.base(-100, b"")), (None, None, None));
        fresh.forget(-100, b"a");
        assert_eq!(fresh.base(-100, b"a"), None);
        fresh.clear();
        assert_eq!(fresh.base(-100, b"/c"), None);
    }

    #[test]
    fn a_base_ends_where_a_name_does() {
        let mut fresh = UnsyncedDirs::new();
        for (text, base) in [(&b"ab/cd"[..], 1), (b"ab/cd", 5), (b"ab/cd", 9), (b"ab", 70_000)] {
            fresh.clear();
            fresh.keep(1, text, base);
            assert_eq!(fresh.base(1, text), None, "{base}");
        }
    }

    #[test]
    fn many_directories_fit() {
        let mut fresh = UnsyncedDirs::new();
        let text = |n: usize| format!("tree/directory-{n}").into_bytes();
        (0..PLACES).for_each(|n| fresh.keep(1, &text(n), 0));
        let found = (0..PLACES).filter(|n| fresh.base(1, &text(*n)).is_some()).count();
        assert!(found > PLACES * 3 / 4, "{found}");
        // Each of a few is found.
        fresh.clear();
        (0..PLACES / 4).for_each(|n| fresh.keep(1, &text(n), 0));
        assert!((0..PLACES / 4).all(|n| fresh.base(1, &text(n)) == Some(0)));
    }
}
