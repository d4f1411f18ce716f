//! The names of one file.
//!
//! Nearly every file has one, or a few, which are looked at one after the other. A layer can hold a file with tens of thousands:
//! from a number on they are found by their hash, so that what is done once for each name stays as cheap as the name.

use crate::nodes::node::{Dentry, Node};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use vellum_vfs::Name;

/// With so many names they are found by their hash.
const HASHED_FROM: usize = 32;

/// The names by which a file is known, in no order that means anything.
pub(crate) enum Names {
    /// As nearly every file has.
    One(Dentry),
    /// None, or several.
    Some(Option<Box<List>>),
}

/// Several names.
#[derive(Default)]
pub(crate) struct List {
    places: Vec<Dentry>,
    index: Option<Box<Index>>,
}

/// Where in the list the names with a hash are. The hash has a key of its own: nobody can choose names that share one.
#[derive(Default)]
pub(crate) struct Index {
    key: RandomState,
    at: HashMap<u64, SmallVec<[usize; 1]>>,
}

impl Default for Names {
    fn default() -> Self {
        Self::Some(None)
    }
}

impl Names {
    pub(crate) const fn one(place: Dentry) -> Self {
        Self::One(place)
    }

    /// Adds a name; false: it is there already.
    pub(crate) fn insert(&mut self, parent: &Arc<Node>, name: Name<'_>) -> bool {
        if self.contains(parent, name) {
            return false;
        }
        let place = Dentry::new(parent, name);
        match self {
            Self::Some(Some(list)) => list.push(place),
            Self::Some(None) => *self = Self::One(place),
            Self::One(_) => {
                let Self::One(first) = std::mem::take(self) else { return false };
                *self = Self::Some(Some(Box::new(List { places: vec![first, place], index: None })));
            }
        }
        true
    }

    /// Takes a name out, if it is there.
    pub(crate) fn remove(&mut self, parent: &Arc<Node>, name: Name<'_>) {
        match self {
            Self::One(place) if place.is(parent, name) => *self = Self::default(),
            Self::One(_) | Self::Some(None) => {}
            Self::Some(Some(list)) => {
                let _gone = list.remove(parent, name);
                if let [last] = &*list.places {
                    *self = Self::One(last.clone());
                }
            }
        }
    }

    pub(crate) fn contains(&self, parent: &Arc<Node>, name: Name<'_>) -> bool {
        match self {
            Self::One(place) => place.is(parent, name),
            Self::Some(list) => list.as_ref().is_some_and(|list| list.find(parent, name).is_some()),
        }
    }
}

impl Deref for Names {
    type Target = [Dentry];

    fn deref(&self) -> &[Dentry] {
        match self {
            Self::One(place) => std::slice::from_ref(place),
            Self::Some(Some(list)) => &list.places,
            Self::Some(None) => &[],
        }
    }
}

impl List {
    fn push(&mut self, place: Dentry) {
        let at = self.places.len();
        if let (Some(index), Ok(name)) = (&mut self.index, Name::new(&place.name)) {
            index.note(&place.parent, name, at);
        }
        self.places.push(place);
        if self.index.is_none() && self.places.len() >= HASHED_FROM {
            self.index = Some(Index::build(&self.places));
        }
    }

    /// What is taken out is dropped by the caller: its directory's node may go with it.
    fn remove(&mut self, parent: &Arc<Node>, name: Name<'_>) -> Option<Dentry> {
        let at = self.find(parent, name)?;
        let gone = self.places.swap_remove(at);
        let Some(index) = &mut self.index else { return Some(gone) };
        if self.places.len() < HASHED_FROM / 2 {
            self.index = None;
            return Some(gone);
        }
        index.forget(parent, name, at);
        if let Some(moved) = self.places.get(at)
            && let Ok(name) = Name::new(&moved.name)
        {
            index.forget(&moved.parent, name, self.places.len());
            index.note(&moved.parent, name, at);
        }
        Some(gone)
    }

    fn find(&self, parent: &Arc<Node>, name: Name<'_>) -> Option<usize> {
        match &self.index {
            None => self.places.iter().position(|place| place.is(parent, name)),
            Some(index) => {
                let same = |at: &&usize| self.places.get(**at).is_some_and(|place| place.is(parent, name));
                index.at.get(&index.hash(parent, name))?.iter().find(same).copied()
            }
        }
    }
}

impl Index {
    fn build(places: &[Dentry]) -> Box<Self> {
        let mut index = Box::<Self>::default();
        for (at, place) in places.iter().enumerate() {
            if let Ok(name) = Name::new(&place.name) {
                index.note(&place.parent, name, at);
            }
        }
        index
    }

    fn hash(&self, parent: &Arc<Node>, name: Name<'_>) -> u64 {
        self.key.hash_one((Arc::as_ptr(parent), name.bytes()))
    }

    fn note(&mut self, parent: &Arc<Node>, name: Name<'_>, at: usize) {
        self.at.entry(self.hash(parent, name)).or_default().push(at);
    }

    fn forget(&mut self, parent: &Arc<Node>, name: Name<'_>, at: usize) {
        let hash = self.hash(parent, name);
        if let Some(same) = self.at.get_mut(&hash) {
            same.retain(|other| *other != at);
            if same.is_empty() {
                self.at.remove(&hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::node::{Body, COMPARED, Dir};
    use crate::nodes::table::Table;
    use proptest::prelude::*;
    use std::ffi::CString;
    use vellum_vfs::NodeId;

    fn dirs() -> Vec<Arc<Node>> {
        let table = Arc::new(Table::new(None, None, Arc::default()));
        let dir = |ino| {
            let dir = Dir::new(None, Vec::new(), None);
            Arc::new(Node::new(NodeId(ino), ino, Body::Dir(Box::new(dir)), &table))
        };
        vec![dir(2), dir(3)]
    }

    fn compared(count: usize) -> usize {
        let dirs = dirs();
        let names: Vec<_> = (0..count).map(|n| CString::new(format!("name-{n}")).unwrap()).collect();
        let each = || names.iter().map(|name| Name::new(name).unwrap());
        let mut file = Names::default();
        let before = COMPARED.get();
        for name in each() {
            for _ in 0..2 {
                file.insert(&dirs[0], name);
            }
        }
        assert_eq!(file.len(), count);
        assert!(each().all(|name| file.contains(&dirs[0], name) && !file.contains(&dirs[1], name)));
        for name in each() {
            file.remove(&dirs[0], name);
        }
        assert!(file.is_empty());
        COMPARED.get() - before
    }

    #[test]
    fn a_name_among_many_costs_as_much_as_among_few() {
        let count = 20_000;
        assert!(compared(count) < 8 * count, "{} comparisons for {count} names", compared(count));
    }

    #[test]
    fn a_single_name_needs_no_memory_of_its_own() {
        let dirs = dirs();
        let name = Name::new(c"f").unwrap();
        let mut file = Names::one(Dentry::new(&dirs[0], name));
        assert!(matches!(file, Names::One(_)));
        assert!(!file.insert(&dirs[0], name));
        assert!(matches!(file, Names::One(_)));
    }

    proptest! {
        #[test]
        fn names_are_a_set(ops in proptest::collection::vec((0..3u8, 0..2usize, 0..80u8), 0..400)) {
            let dirs = dirs();
            let (mut file, mut model) = (Names::default(), std::collections::BTreeSet::new());
            for (op, dir, n) in ops {
                let bytes = CString::new(format!("{n}")).unwrap();
                let name = Name::new(&bytes).unwrap();
                if op == 0 {
                    file.remove(&dirs[dir], name);
                    model.remove(&(dir, n));
                } else {
                    prop_assert_eq!(file.insert(&dirs[dir], name), model.insert((dir, n)));
                }
                prop_assert_eq!(file.len(), model.len());
                prop_assert_eq!(file.contains(&dirs[1 - dir], name), model.contains(&(1 - dir, n)));
                if let Names::Some(Some(list)) = &file
                    && let Some(index) = &list.index
                {
                    prop_assert_eq!(index.at.values().map(SmallVec::len).sum::<usize>(), file.len());
                }
            }
            for (dir, n) in model {
                let bytes = CString::new(format!("{n}")).unwrap();
                prop_assert!(file.contains(&dirs[dir], Name::new(&bytes).unwrap()));
            }
        }
    }
}
