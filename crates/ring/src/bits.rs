//! Sets of slots: a bit for each.

use crate::layout::HINT_WORDS;
use crate::sync::{AtomicU64, Ordering};

/// Which word and which bit of it a slot has.
pub(crate) const fn place(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

/// A private set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bits([u64; HINT_WORDS]);

impl Bits {
    pub(crate) fn insert(&mut self, slot: u32) {
        let (word, bit) = place(slot);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(to, from)| *to |= from);
    }

    /// Moves what is in the hints here.
    pub(crate) fn gather(&mut self, hints: &[AtomicU64; HINT_WORDS]) {
        for (word, hint) in self.0.iter_mut().zip(hints) {
            // Relaxed and without writing when there is nothing; a hint that is missed now is seen next time.
            if hint.load(Ordering::Relaxed) != 0 {
                *word |= hint.swap(0, Ordering::Acquire);
            }
        }
    }

    /// Takes out the first slot from `from` on, going round.
    pub(crate) fn take_from(&mut self, from: u32) -> Option<u32> {
        let (first, bit) = place(from);
        // The word of `from` twice: first from its bit on, last what is below.
        let below = bit.wrapping_sub(1);
        let turns = [(first, !below)].into_iter();
        let turns = turns.chain((1..HINT_WORDS).map(|n| ((first + n) % HINT_WORDS, u64::MAX)));
        for (index, mask) in turns.chain([(first, below)]) {
            let word = self.0.get_mut(index)?;
            let found = *word & mask;
            if found != 0 {
                let bit = found.trailing_zeros();
                *word &= !(1 << bit);
                return Some(index as u32 * 64 + bit);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn slots_are_taken_round_robin() {
        let mut bits = Bits::default();
        for slot in [0, 5, 63, 64, 130, 255] {
            bits.insert(slot);
        }
        let mut order = Vec::new();
        let mut from = 64;
        while let Some(slot) = bits.take_from(from) {
            order.push(slot);
            from = (slot + 1) % 256;
        }
        assert_eq!(order, [64, 130, 255, 0, 5, 63]);
        // Miri takes its time.
        let step = if cfg!(miri) { 37 } else { 1 };
        for slot in (0..256).step_by(step) {
            for from in (0..256).step_by(step) {
                bits.insert(slot);
                assert_eq!(bits.take_from(from), Some(slot));
                assert_eq!(bits.take_from(from), None);
            }
        }
        bits.insert(9999);
        assert_eq!(bits.take_from(0), None);
        assert_eq!(bits.take_from(9999), None);
    }
}
