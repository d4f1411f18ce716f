//! The service's end of a region: it makes one, and closes it.

use crate::Region;
use crate::layout::{HEADER_WORDS, Layout};
use crate::platform::Platform;
use crate::service_ring::Ring;
use crate::state::{EMPTY, LOST, SLEEPS, word};
use crate::sync::Ordering;
use crate::view::{RingView, SlotView};
use core::fmt;
use core::num::NonZeroU16;

/// The region is smaller than the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall;

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the shared memory is smaller than its layout")
    }
}

impl core::error::Error for TooSmall {}

/// A region, as the service sees it. The layout and the epoch are the service's own and are never read back.
#[derive(Debug)]
pub struct Session<'m, P> {
    region: Region<'m>,
    layout: Layout,
    epoch: NonZeroU16,
    platform: P,
}

impl<'m, P: Platform + Copy> Session<'m, P> {
    /// Makes a session of memory that no client has yet, whatever is in it.
    pub fn create(
        region: Region<'m>,
        layout: Layout,
        epoch: NonZeroU16,
        platform: P,
    ) -> Result<Self, TooSmall> {
        if region.bytes() < layout.bytes() {
            return Err(TooSmall);
        }
        let session = Self { region, layout, epoch, platform };
        for slot in session.slots() {
            slot.state.store(word(epoch, EMPTY), Ordering::Relaxed);
        }
        session.publish();
        Ok(session)
    }

    /// Ends the session: every call, also one whose client sleeps, ends with [`Gone`](crate::CallError::Gone), and no
    /// slot can be claimed again. Answers that are given later go nowhere.
    pub fn close(&self) {
        if let Some(epoch) = self.region.word32(Layout::epoch()) {
            epoch.store(0, Ordering::Release);
        }
        for slot in self.slots() {
            if slot.state.swap(LOST, Ordering::AcqRel) & SLEEPS != 0 {
                self.platform.wake(slot.state);
            }
        }
    }

    /// The ring, with a record of its own of what the service has in hand. To be made once.
    #[must_use]
    pub fn ring(&self) -> Option<Ring<'m, P>> {
        Ring::new(self.region, self.layout, self.epoch, self.platform)
    }

    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Writes what does not belong to slots; the epoch last, for it says that the rest is there.
    fn publish(&self) {
        if let Some(ring) = RingView::new(self.region) {
            ring.bell.store(0, Ordering::Relaxed);
            ring.core.store(crate::CORE_UNKNOWN, Ordering::Relaxed);
            ring.hints.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        if let Some(header) = self.region.words(0, HEADER_WORDS) {
            header
                .iter()
                .zip(self.layout.to_words())
                .for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        }
        if let Some(epoch) = self.region.word32(Layout::epoch()) {
            epoch.store(u32::from(self.epoch.get()), Ordering::Release);
        }
    }

    fn slots(&self) -> impl Iterator<Item = SlotView<'m>> {
        let (region, layout) = (self.region, self.layout);
        (0..layout.slots()).filter_map(move |slot| SlotView::new(region, &layout, slot))
    }
}
