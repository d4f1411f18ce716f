//! A ring as the service holds it: what is in the shared memory, and beside it, in memory of the service's own, which
//! slots it works on.

use crate::bits::place;
use crate::call::Call;
use crate::head::Request;
use crate::layout::{HINT_WORDS, Layout};
use crate::platform::Platform;
use crate::state::{SLEEPS, TAKEN, VALID, without_sleep_flag, word};
use crate::sync::{AtomicU64, Ordering};
use crate::view::{RingView, SlotView, load};
use crate::{Poller, Region};
use core::num::NonZeroU16;

/// A client changes the word of a call that is VALID once, to say that it sleeps.
const TRIES: usize = 3;

/// The service's side of one ring.
#[derive(Debug)]
pub struct Ring<'m, P> {
    region: Region<'m>,
    layout: Layout,
    epoch: NonZeroU16,
    view: RingView<'m>,
    /// The slots of which there is a [`Call`]. The truth; what the shared memory says about them is the client's affair.
    taken: [AtomicU64; HINT_WORDS],
    platform: P,
}

/// What came of looking at a slot.
pub(crate) enum SlotCheck<'r, P: Platform> {
    Taken(Call<'r, P>),
    Nothing,
    /// The word changed too often.
    Unsteady,
}

impl<'m, P: Platform> Ring<'m, P> {
    pub(crate) fn new(region: Region<'m>, layout: Layout, epoch: NonZeroU16, platform: P) -> Option<Self> {
        let view = RingView::new(region)?;
        let taken = core::array::from_fn(|_| AtomicU64::new(0));
        Some(Self { region, layout, epoch, view, taken, platform })
    }

    /// What finds the calls. One at a time: two would take different calls, but could both sleep on one bell.
    #[must_use]
    pub fn poller(&self) -> Poller<'_, P> {
        Poller::new(self)
    }

    /// How many calls are in hand.
    #[must_use]
    pub fn pending_calls(&self) -> u32 {
        self.taken.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    pub(crate) fn view(&self) -> &RingView<'m> {
        &self.view
    }

    pub(crate) fn platform(&self) -> &P {
        &self.platform
    }

    pub(crate) fn slots(&self) -> u32 {
        self.layout.slots()
    }

    pub(crate) fn epoch(&self) -> NonZeroU16 {
        self.epoch
    }

    pub(crate) fn slot(&self, slot: u32) -> Option<SlotView<'m>> {
        SlotView::new(self.region, &self.layout, slot)
    }

    /// Whether a slot says that it has a request, and is not in hand.
    pub(crate) fn is_waiting(&self, slot: u32) -> bool {
        let Some(view) = self.slot(slot) else { return false };
        without_sleep_flag(view.state.load(Ordering::Relaxed)) == word(self.epoch, VALID)
            && !self.is_taken(slot)
    }

    /// Takes the call in a slot, if there is one.
    pub(crate) fn take(&self, slot: u32) -> SlotCheck<'_, P> {
        let Some(view) = self.slot(slot) else { return SlotCheck::Nothing };
        let mut seen = view.state.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            if without_sleep_flag(seen) != word(self.epoch, VALID) || !self.mark(slot) {
                return SlotCheck::Nothing;
            }
            let next = word(self.epoch, TAKEN) | (seen & SLEEPS);
            match view.state.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let request = Request::from_words(load(view.request));
                    return SlotCheck::Taken(Call::new(self, slot, view, request));
                }
                Err(now) => seen = now,
            }
            self.unmark(slot);
        }
        SlotCheck::Unsteady
    }

    fn is_taken(&self, slot: u32) -> bool {
        let (index, bit) = place(slot);
        self.taken.get(index).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Enters a slot as taken; false when it is already.
    fn mark(&self, slot: u32) -> bool {
        let (index, bit) = place(slot);
        self.taken.get(index).is_some_and(|word| word.fetch_or(bit, Ordering::Acquire) & bit == 0)
    }

    pub(crate) fn unmark(&self, slot: u32) {
        let (index, bit) = place(slot);
        if let Some(word) = self.taken.get(index) {
            word.fetch_and(!bit, Ordering::Release);
        }
    }
}
