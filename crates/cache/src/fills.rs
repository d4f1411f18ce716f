//! Fetches that are under way: what was invalidated after a fetch began must not come in by it.

use crate::key::{BlockIndex, Key, Object, Version};
use slab::Slab;

/// So many fetches can be under way; what is fetched beyond that is not cached.
pub const FILLS_MAX: usize = 1024;

/// A fetch that is under way: it has to be given to [`crate::Store::insert`] or [`crate::Store::abandon`].
#[derive(Debug)]
#[must_use = "it stands in a bounded table until it is given back"]
pub struct Fill {
    pub(crate) version: Version,
    pub(crate) index: BlockIndex,
    place: usize,
}

impl Fill {
    /// Which contents are fetched.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Which block of them.
    #[must_use]
    pub const fn index(&self) -> BlockIndex {
        self.index
    }
}

#[derive(Debug)]
struct ActiveFetch {
    key: Key,
    valid: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Fills(Slab<ActiveFetch>);

impl Fills {
    /// None: there are too many.
    pub(crate) fn begin(&mut self, version: Version, index: BlockIndex) -> Option<Fill> {
        if self.0.len() >= FILLS_MAX {
            return None;
        }
        let place = self.0.insert(ActiveFetch { key: version.key, valid: true });
        Some(Fill { version, index, place })
    }

    /// Whether what has been fetched is still good. One of another store never is.
    pub(crate) fn end(&mut self, fill: &Fill) -> bool {
        self.0
            .try_remove(fill.place)
            .is_some_and(|underway| underway.valid && underway.key == fill.version.key)
    }

    /// All that is being fetched of a file is no good; with a version, of those contents only.
    pub(crate) fn invalidate(&mut self, object: Object, version: Option<u64>) {
        for (_, underway) in &mut self.0 {
            let key = underway.key;
            if key.object == object && version.is_none_or(|version| version == key.version) {
                underway.valid = false;
            }
        }
    }
}
