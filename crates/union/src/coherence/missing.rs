//! Names of which the front has been told that they are not in a directory, and that it has not made since.

use crate::sync::Mutex;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use vellum_vfs::Name;

/// Most names of a directory that are told apart. With more of them it may be any name.
const MOST: usize = 1024;

/// What the front believes not to be in a directory.
#[derive(Debug, Default)]
pub(crate) struct Missing(Mutex<Believed>);

#[derive(Debug, Default)]
enum Believed {
    #[default]
    Nothing,
    /// By their hashes: two names with the same one there are not, as nobody can choose them.
    These(HashSet<u64>),
    Anything,
}

fn hash(name: Name<'_>) -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    KEY.get_or_init(RandomState::new).hash_one(name.bytes())
}

impl Missing {
    /// The front is told of a name.
    pub(crate) fn add(&self, name: Name<'_>) {
        let mut believed = self.0.lock();
        match &mut *believed {
            Believed::Nothing => *believed = Believed::These(HashSet::from([hash(name)])),
            Believed::These(names) if names.len() < MOST => {
                names.insert(hash(name));
            }
            Believed::These(_) => *believed = Believed::Anything,
            Believed::Anything => {}
        }
    }

    /// The front makes a name itself; true: it was the last.
    pub(crate) fn remove(&self, name: Name<'_>) -> bool {
        let mut believed = self.0.lock();
        let Believed::These(names) = &mut *believed else { return false };
        names.remove(&hash(name));
        let is_last = names.is_empty();
        if is_last {
            *believed = Believed::Nothing;
        }
        is_last
    }

    /// A predecessor has told something.
    pub(crate) fn may_be_anything(&self) {
        *self.0.lock() = Believed::Anything;
    }

    /// Whether the front may believe that a name is not there.
    pub(crate) fn has(&self, name: Name<'_>) -> bool {
        match &*self.0.lock() {
            Believed::Nothing => false,
            Believed::These(names) => names.contains(&hash(name)),
            Believed::Anything => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn names_are_believed_to_be_missing_until_they_are_made() {
        let names: Vec<_> = (0..2000).map(|n| CString::new(format!("name-{n}.o")).unwrap()).collect();
        let name = |n: usize| Name::new(&names[n]).unwrap();
        let missing = Missing::default();
        assert!(!missing.has(name(0)) && !missing.remove(name(0)));
        [0, 1, 1].into_iter().for_each(|n| missing.add(name(n)));
        assert!(missing.has(name(0)) && missing.has(name(1)) && !missing.has(name(2)));
        assert!(!missing.remove(name(0)) && !missing.has(name(0)));
        assert!(missing.remove(name(1)) && !missing.has(name(1)));
        // Too many, and all may be.
        for n in 0..MOST {
            missing.add(name(n));
        }
        assert!(!missing.has(name(MOST)) && missing.has(name(MOST - 1)));
        missing.add(name(MOST));
        assert!(missing.has(name(1999)) && !missing.remove(name(0)) && missing.has(name(0)));
        let missing = Missing::default();
        missing.may_be_anything();
        missing.add(name(8));
        assert!(missing.has(name(7)) && !missing.remove(name(8)));
    }
}
