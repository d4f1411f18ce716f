//! The nodes of a directory's entries, by name. Most directories have few, which lie one after the other: a table of hashes has room for
//! twice as many.

use crate::nodes::shared_name::SharedName;
use std::collections::HashMap;
use std::ffi::CStr;
use std::hash::{BuildHasher, DefaultHasher, RandomState};
use std::sync::{OnceLock, Weak};

/// So many are looked at one after the other.
const FEW_MAX: usize = 16;
/// Room is made for so many at a time.
const STEP: usize = 4;

/// Nodes by name.
pub(super) enum ChildNodes<T> {
    Few(Vec<(SharedName, Weak<T>)>),
    Many(HashMap<SharedName, Weak<T>, KeyedHasher>),
}

impl<T> Default for ChildNodes<T> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Hashes by a key that nobody outside knows, one for all tables.
#[derive(Clone, Copy, Default)]
pub(super) struct KeyedHasher;

impl BuildHasher for KeyedHasher {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        static KEY: OnceLock<RandomState> = OnceLock::new();
        KEY.get_or_init(RandomState::new).build_hasher()
    }
}

impl<T> ChildNodes<T> {
    pub(super) fn get(&self, name: &CStr) -> Option<(&SharedName, &Weak<T>)> {
        match self {
            Self::Few(few) => few.iter().find(|(known, _)| **known == *name).map(|(name, node)| (name, node)),
            Self::Many(many) => many.get_key_value(name),
        }
    }

    /// A name has this node from now on.
    pub(super) fn set(&mut self, name: SharedName, node: Weak<T>) {
        let few = match self {
            Self::Many(many) => {
                many.insert(name, node);
                return;
            }
            Self::Few(few) => few,
        };
        if let Some((_, known)) = few.iter_mut().find(|(known, _)| **known == *name) {
            *known = node;
        } else if few.len() < FEW_MAX {
            if few.len() == few.capacity() {
                few.reserve_exact(STEP);
            }
            few.push((name, node));
        } else {
            *self = Self::Many(std::mem::take(few).into_iter().chain([(name, node)]).collect());
        }
    }

    pub(super) fn remove(&mut self, name: &CStr) {
        match self {
            Self::Few(few) => {
                if let Some(at) = few.iter().position(|(known, _)| **known == *name) {
                    few.swap_remove(at);
                }
                if few.is_empty() {
                    few.shrink_to_fit();
                }
            }
            Self::Many(many) => {
                many.remove(name);
                if many.len() <= FEW_MAX / 2 {
                    *self = Self::Few(std::mem::take(many).into_iter().collect());
                } else if many.len() < many.capacity() / 4 {
                    many.shrink_to(many.len() * 2);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn child_nodes_are_found_in_both_representations() {
        let names: Vec<CString> = (0..100).map(|n| CString::new(format!("n{n}")).unwrap()).collect();
        let (mut live, mut most) = (ChildNodes::<()>::default(), 0);
        for round in 0..3 {
            for name in &names {
                live.set(name.as_c_str().into(), Weak::new());
                live.set(name.as_c_str().into(), Weak::new());
                most = most.max(usize::from(matches!(live, ChildNodes::Many(_))));
            }
            assert!(names.iter().all(|name| live.get(name).is_some_and(|(found, _)| **found == **name)));
            for name in &names[round..] {
                live.remove(name);
                live.remove(name);
            }
            assert_eq!(names.iter().filter(|name| live.get(name).is_some()).count(), round);
            assert!(matches!(live, ChildNodes::Few(_)) && most == 1);
        }
    }
}
