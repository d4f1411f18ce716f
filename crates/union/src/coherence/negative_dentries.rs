//! Names of which the kernel has been told that they are not in a directory, and that it has not made since.

use crate::sync::Mutex;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use vellum_vfs::Name;

/// Most names of a directory that are told apart. With more of them it may be any name.
const MOST: usize = 1024;

/// What the kernel believes not to be in a directory.
#[derive(Debug, Default)]
pub(crate) struct NegativeDentries(Mutex<NegativeNames>);

#[derive(Debug, Default)]
enum NegativeNames {
    #[default]
    Nothing,
    /// By their hashes: two names with the same one there are not, as nobody can choose them.
    #[expect(clippy::box_collection, reason = "every directory has one of these, and nearly none a set")]
    These(Box<HashSet<u64>>),
    Anything,
}

fn hash(name: Name<'_>) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    KEY.get_or_init(RandomState::new).hash_one(name.bytes())
}

impl NegativeDentries {
    /// The kernel is told of a name.
    pub(crate) fn add(&self, name: Name<'_>) {
        let mut believed = self.0.lock();
        match &mut *believed {
            NegativeNames::Nothing => *believed = NegativeNames::These(Box::new(HashSet::from([hash(name)]))),
            NegativeNames::These(names) if names.len() < MOST => {
                names.insert(hash(name));
            }
            NegativeNames::These(_) => *believed = NegativeNames::Anything,
            NegativeNames::Anything => {}
        }
    }

    /// The kernel makes a name itself; true: it was the last.
    pub(crate) fn remove(&self, name: Name<'_>) -> bool {
        let mut believed = self.0.lock();
        let NegativeNames::These(names) = &mut *believed else { return false };
        names.remove(&hash(name));
        let is_last = names.is_empty();
        if is_last {
            *believed = NegativeNames::Nothing;
        }
        is_last
    }

    /// A predecessor has told something.
    pub(crate) fn set_unknown(&self) {
        *self.0.lock() = NegativeNames::Anything;
    }

    /// Whether the kernel may believe that a name is not there.
    pub(crate) fn has(&self, name: Name<'_>) -> bool {
        match &*self.0.lock() {
            NegativeNames::Nothing => false,
            NegativeNames::These(names) => names.contains(&hash(name)),
            NegativeNames::Anything => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn negative_dentries_last_until_creation() {
        let names: Vec<_> = (0..2000).map(|n| CString::new(format!("name-{n}.o")).unwrap()).collect();
        let name = |n: usize| Name::new(&names[n]).unwrap();
        let negative = NegativeDentries::default();
        assert!(!negative.has(name(0)) && !negative.remove(name(0)));
        [0, 1, 1].into_iter().for_each(|n| negative.add(name(n)));
        assert!(negative.has(name(0)) && negative.has(name(1)) && !negative.has(name(2)));
        assert!(!negative.remove(name(0)) && !negative.has(name(0)));
        assert!(negative.remove(name(1)) && !negative.has(name(1)));
        // Too many, and all may be.
        for n in 0..MOST {
            negative.add(name(n));
        }
        assert!(!negative.has(name(MOST)) && negative.has(name(MOST - 1)));
        negative.add(name(MOST));
        assert!(negative.has(name(1999)) && !negative.remove(name(0)) && negative.has(name(0)));
        let negative = NegativeDentries::default();
        negative.set_unknown();
        negative.add(name(8));
        assert!(negative.has(name(7)) && !negative.remove(name(8)));
    }
}
