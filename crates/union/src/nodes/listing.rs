//! All names of a directory, merged from its layers, with offsets that stay as entries come and go.
//!
//! An entry's offset is a hash of its name, so it is the same after other entries have gone, after the listing
//! was dropped and built again, and after a remount.

use crate::nodes::shared_name::SharedName;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::hash::{DefaultHasher, Hasher};
use vellum_vfs::FileKind;

/// Offsets of `.` and `..`; names get larger ones.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOT_DOT: u64 = 2;
const FIRST: u64 = 16;
/// Offsets are signed in the kernel.
const LAST: u64 = i64::MAX as u64 - 1;

/// One name of a directory.
#[derive(Clone, Debug)]
pub(crate) struct ListingEntry {
    pub(crate) name: SharedName,
    /// Inode number as the union shows it.
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileKind>,
    /// The number is certain; otherwise only a lookup can tell.
    pub(crate) exact: bool,
}

/// All names of a directory.
#[derive(Default)]
pub(crate) struct Listing {
    entries: ByOffset,
}

/// So many are in one piece of memory, in order: a node of a tree has room for eleven, however few there are.
const FEW_MAX: usize = 64;

/// Names by their offsets.
enum ByOffset {
    Few(Vec<(u64, ListingEntry)>),
    Many(BTreeMap<u64, ListingEntry>),
}

impl Default for ByOffset {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl ByOffset {
    fn get(&self, at: u64) -> Option<&ListingEntry> {
        match self {
            Self::Few(few) => few.get(place(few, at).ok()?).map(|(_, listed)| listed),
            Self::Many(many) => many.get(&at),
        }
    }

    fn get_mut(&mut self, at: u64) -> Option<&mut ListingEntry> {
        match self {
            Self::Few(few) => {
                let index = place(few, at).ok()?;
                few.get_mut(index).map(|(_, listed)| listed)
            }
            Self::Many(many) => many.get_mut(&at),
        }
    }

    /// At an offset that is free.
    fn insert(&mut self, at: u64, listed: ListingEntry) {
        match self {
            Self::Few(few) if few.len() < FEW_MAX => {
                let index = place(few, at).unwrap_or_else(|index| index);
                few.insert(index, (at, listed));
            }
            Self::Few(few) => {
                *self = Self::Many(std::mem::take(few).into_iter().chain([(at, listed)]).collect());
            }
            Self::Many(many) => drop(many.insert(at, listed)),
        }
    }

    fn remove(&mut self, at: u64) -> Option<ListingEntry> {
        match self {
            Self::Few(few) => {
                let index = place(few, at).ok()?;
                Some(few.remove(index).1)
            }
            Self::Many(many) => many.remove(&at),
        }
    }

    fn from(&self, at: u64) -> impl Iterator<Item = (u64, &ListingEntry)> {
        let (few, many) = match self {
            Self::Few(few) => {
                let index = place(few, at).unwrap_or_else(|index| index);
                (few.get(index..), None)
            }
            Self::Many(many) => (None, Some(many.range(at..))),
        };
        let few = few.into_iter().flatten().map(|(at, listed)| (*at, listed));
        few.chain(many.into_iter().flatten().map(|(at, listed)| (*at, listed)))
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }
}

fn place(few: &[(u64, ListingEntry)], at: u64) -> Result<usize, usize> {
    few.binary_search_by_key(&at, |(offset, _)| *offset)
}

/// DefaultHasher's keys are constants: the offset must not change from one mount to the next. Names chosen to
/// collide only lengthen each other's probing.
fn offset_of(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    (hasher.finish() >> 1).clamp(FIRST, LAST)
}

impl Listing {
    /// Adds a name of which all is known, or changes what is known of it.
    pub(crate) fn insert(
        &mut self,
        name: impl AsRef<CStr> + Into<SharedName>,
        ino: u64,
        kind: Option<FileKind>,
    ) {
        self.put(name, ino, kind, true);
    }

    /// Adds a name, or changes what is known of it.
    pub(crate) fn put(
        &mut self,
        name: impl AsRef<CStr> + Into<SharedName>,
        ino: u64,
        kind: Option<FileKind>,
        exact: bool,
    ) {
        let mut at = offset_of(name.as_ref().to_bytes());
        loop {
            match self.entries.get_mut(at) {
                None => break,
                Some(found) if *found.name == *name.as_ref() => {
                    found.ino = ino;
                    found.kind = kind;
                    found.exact = exact;
                    return;
                }
                Some(_) => at = next(at),
            }
        }
        self.entries.insert(at, ListingEntry { name: name.into(), ino, kind, exact });
    }

    /// Takes a name out.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(at) = self.find(name) {
            self.entries.remove(at);
            // What was moved behind the gap must stay reachable from its own hash.
            let mut hole = at;
            let mut probe = next(at);
            while let Some(moved) = self.entries.get(probe) {
                if offset_of(moved.name.to_bytes()) <= hole {
                    if let Some(moved) = self.entries.remove(probe) {
                        self.entries.insert(hole, moved);
                    }
                    hole = probe;
                }
                probe = next(probe);
            }
        }
    }

    fn find(&self, name: &[u8]) -> Option<u64> {
        let mut at = offset_of(name);
        loop {
            let found = self.entries.get(at)?;
            if found.name.to_bytes() == name {
                return Some(at);
            }
            at = next(at);
        }
    }

    /// What is known of a name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&ListingEntry> {
        self.entries.get(self.find(name)?)
    }

    /// The first entry after an offset.
    pub(crate) fn after(&self, offset: u64) -> Option<(u64, &ListingEntry)> {
        self.iter_after(offset).next()
    }

    /// The entries after an offset, in order.
    pub(crate) fn iter_after(&self, offset: u64) -> impl Iterator<Item = (u64, &ListingEntry)> {
        self.entries.from(offset.saturating_add(1).max(FIRST))
    }

    /// Its names in as little memory as can be: a tree that has grown name by name has room for half as many more.
    pub(crate) fn packed(self) -> Self {
        let entries = match self.entries {
            ByOffset::Few(mut few) => {
                few.shrink_to_fit();
                ByOffset::Few(few)
            }
            ByOffset::Many(many) => ByOffset::Many(many.into_iter().collect()),
        };
        Self { entries }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

const fn next(at: u64) -> u64 {
    if at >= LAST { FIRST } else { at + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::ffi::CString;

    proptest! {
        #[test]
        fn a_listing_is_a_set_of_names(ops in proptest::collection::vec((any::<bool>(), "[a-k]{1,2}"), 0..400)) {
            let mut listing = Listing::default();
            let mut model = BTreeSet::new();
            for (add, name) in ops {
                let c = CString::new(name.clone()).unwrap();
                if add { listing.insert(&*c, 1, None); model.insert(name); } else { listing.remove(name.as_bytes()); model.remove(&name); }
            }
            let mut seen = BTreeSet::new();
            let mut at = 0;
            while let Some((next, entry)) = listing.after(at) {
                prop_assert!(next > at);
                prop_assert!(seen.insert(entry.name.to_str().unwrap().to_owned()));
                at = next;
            }
            prop_assert_eq!(seen, model);
        }
    }

    #[test]
    fn offsets_do_not_depend_on_other_names() {
        let (mut a, mut b) = (Listing::default(), Listing::default());
        for i in 0..1000 {
            let name = CString::new(format!("n{i}")).unwrap();
            a.insert(&*name, 1, None);
            if i % 7 == 0 {
                b.insert(&*name, 1, None);
            }
        }
        for (at, entry) in b.iter_after(0) {
            assert_eq!(a.find(entry.name.to_bytes()), Some(at));
        }
    }
}
