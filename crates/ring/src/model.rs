//! For the model checker: a region whose words are its atomics.

use crate::layout::{HEAD_WORDS, HEADER_WORDS, HINT_WORDS, Layout};
use crate::sync::{AtomicU32, AtomicU64};
use std::collections::BTreeMap;
use std::vec::Vec;

/// The words of a region, by their offsets.
#[derive(Debug)]
pub struct Model {
    bytes: usize,
    words32: BTreeMap<usize, AtomicU32>,
    words: BTreeMap<usize, Vec<AtomicU64>>,
}

impl Model {
    /// A region of zeros that has the words of `layout` and no others.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let mut model = Self { bytes: layout.bytes(), words32: BTreeMap::new(), words: BTreeMap::new() };
        model.add(0, HEADER_WORDS);
        model.add32(Layout::epoch());
        model.add32(Layout::bell());
        model.add32(Layout::core());
        model.add(Layout::hints(), HINT_WORDS);
        for slot in 0..layout.slots() {
            model.add32(layout.state(slot));
            model.add32(layout.spin(slot));
            model.add(layout.request(slot), HEAD_WORDS);
            model.add(layout.response(slot), HEAD_WORDS);
            model.add(layout.data(slot), layout.data_bytes() / 8);
        }
        model
    }

    fn add(&mut self, offset: usize, count: usize) {
        self.words.insert(offset, (0..count).map(|_| AtomicU64::new(0)).collect());
    }

    fn add32(&mut self, offset: usize) {
        self.words32.insert(offset, AtomicU32::new(0));
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Region<'m>(&'m Model);

impl<'m> Region<'m> {
    #[must_use]
    pub fn new(model: &'m Model) -> Self {
        Self(model)
    }

    /// The size of the region.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    pub(crate) fn word32(&self, offset: usize) -> Option<&'m AtomicU32> {
        self.0.words32.get(&offset)
    }

    pub(crate) fn words(&self, offset: usize, count: usize) -> Option<&'m [AtomicU64]> {
        self.0.words.get(&offset)?.get(..count)
    }
}
