//! The state word of a slot: the epoch in the upper half, then a flag, then the state.
//!
//! Every change of it is a compare-exchange from a word of the same epoch, but for the end of the session.

use core::num::NonZeroU16;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Nobody's; a client may claim it.
pub(crate) const EMPTY: u32 = 1;
/// A client fills it.
pub(crate) const WRITING: u32 = 2;
/// The request is complete.
pub(crate) const VALID: u32 = 3;
/// The service works on it.
pub(crate) const TAKEN: u32 = 4;
/// The response is complete.
pub(crate) const DONE: u32 = 5;
/// The client gave up a call that the service works on; the service empties the slot when it is done.
pub(crate) const ABANDONED: u32 = 6;
/// The session is closed. The word has no epoch.
pub(crate) const LOST: u32 = 7;

/// The client sleeps on the word and wants to be woken.
pub(crate) const SLEEPS: u32 = 0x100;

/// The word of a state in an epoch.
pub(crate) const fn word(epoch: NonZeroU16, state: u32) -> u32 {
    (epoch.get() as u32) << 16 | state
}

pub(crate) const fn without_sleep_flag(word: u32) -> u32 {
    word & !SLEEPS
}

/// Whether a word is of the epoch.
pub(crate) const fn is_of(word: u32, epoch: NonZeroU16) -> bool {
    word >> 16 == epoch.get() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_epochs_differ() {
        let (one, two) = (NonZeroU16::MIN, NonZeroU16::MAX);
        assert_ne!(word(one, TAKEN), word(two, TAKEN));
        assert_eq!(without_sleep_flag(word(two, VALID) | SLEEPS), word(two, VALID));
        assert!(is_of(word(one, TAKEN), one) && !is_of(word(one, TAKEN), two) && !is_of(LOST, one));
    }
}
