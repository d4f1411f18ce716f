//! The words of one ring and of one slot.

use crate::Region;
use crate::layout::{HEAD_WORDS, HINT_WORDS, Layout};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What a ring has besides its slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingView<'m> {
    /// 1 while the service sleeps or is about to.
    pub(crate) bell: &'m AtomicU32,
    /// Where the service last ran.
    pub(crate) core: &'m AtomicU32,
    /// A bit for each slot that has become VALID.
    pub(crate) hints: &'m [AtomicU64; HINT_WORDS],
}

impl<'m> RingView<'m> {
    pub(crate) fn new(region: Region<'m>) -> Option<Self> {
        Some(Self {
            bell: region.word32(Layout::bell())?,
            core: region.word32(Layout::core())?,
            hints: region.words(Layout::hints(), HINT_WORDS)?.try_into().ok()?,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotView<'m> {
    pub(crate) state: &'m AtomicU32,
    /// How long a client spins here; the service never looks.
    pub(crate) spin: &'m AtomicU32,
    pub(crate) request: &'m [AtomicU64; HEAD_WORDS],
    pub(crate) response: &'m [AtomicU64; HEAD_WORDS],
    pub(crate) data: &'m [AtomicU64],
}

impl<'m> SlotView<'m> {
    #[inline]
    pub(crate) fn new(region: Region<'m>, layout: &Layout, slot: u32) -> Option<Self> {
        if slot >= layout.slots() {
            return None;
        }
        Some(Self {
            state: region.word32(layout.state(slot))?,
            spin: region.word32(layout.spin(slot))?,
            request: region.words(layout.request(slot), HEAD_WORDS)?.try_into().ok()?,
            response: region.words(layout.response(slot), HEAD_WORDS)?.try_into().ok()?,
            data: region.words(layout.data(slot), layout.data_bytes() / 8)?,
        })
    }
}

/// A private copy of a head.
pub(crate) fn load(head: &[AtomicU64; HEAD_WORDS]) -> [u64; HEAD_WORDS] {
    let mut words = [0; HEAD_WORDS];
    words.iter_mut().zip(head).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
    words
}

pub(crate) fn store(head: &[AtomicU64; HEAD_WORDS], words: [u64; HEAD_WORDS]) {
    head.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
}
