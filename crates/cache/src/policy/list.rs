//! Entries in a row, each known by its place in a table, so that any of them is taken out in constant time.

use slab::Slab;

#[derive(Debug)]
struct Entry<T> {
    value: T,
    /// Towards the newest.
    newer: Option<u32>,
    /// Towards the oldest.
    older: Option<u32>,
}

/// Entries that may stand in one of several rows.
#[derive(Debug)]
pub(super) struct Entries<T>(Slab<Entry<T>>);

/// A row of some of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    newest: Option<u32>,
    oldest: Option<u32>,
    len: usize,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Slab::new())
    }
}

impl<T> Entries<T> {
    /// A new entry in no row. A table has fewer than 2^32 blocks, for each is a page or more.
    pub(super) fn add(&mut self, value: T) -> u32 {
        u32::try_from(self.0.insert(Entry { value, newer: None, older: None })).unwrap_or(u32::MAX)
    }

    /// Forgets an entry that is in no row any more.
    pub(super) fn forget(&mut self, at: u32) -> Option<T> {
        self.0.try_remove(at as usize).map(|entry| entry.value)
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.0.get(at as usize).map(|entry| &entry.value)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.0.get_mut(at as usize).map(|entry| &mut entry.value)
    }

    fn links(&mut self, at: Option<u32>) -> Option<&mut Entry<T>> {
        at.and_then(|at| self.0.get_mut(at as usize))
    }
}

impl Row {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn oldest(&self) -> Option<u32> {
        self.oldest
    }

    /// Puts an entry that is in no row at the newest end.
    pub(super) fn push<T>(&mut self, entries: &mut Entries<T>, at: u32) {
        let before = self.newest;
        if let Some(entry) = entries.links(Some(at)) {
            entry.newer = None;
            entry.older = before;
        }
        match entries.links(before) {
            Some(entry) => entry.newer = Some(at),
            None => self.oldest = Some(at),
        }
        self.newest = Some(at);
        self.len += 1;
    }

    /// Takes an entry of this row out of it.
    pub(super) fn take<T>(&mut self, entries: &mut Entries<T>, at: u32) {
        let Some(entry) = entries.links(Some(at)) else { return };
        let (newer, older) = (entry.newer.take(), entry.older.take());
        match entries.links(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match entries.links(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        self.len = self.len.saturating_sub(1);
    }
}
