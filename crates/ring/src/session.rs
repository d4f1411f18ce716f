//! The service's end of a region: it makes one, takes one over after a restart, and closes it.

use crate::Region;
use crate::layout::{HEADER_WORDS, Layout};
use crate::platform::Platform;
use crate::ring::Ring;
use crate::state::{EMPTY, LOST, SLEEPS, turned, word};
use crate::sync::Ordering;
use crate::view::{RingView, SlotView};
use core::fmt;
use core::num::NonZeroU16;

/// How often a word that others may be changing is tried.
const TRIES: usize = 8;

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
        let session = Self::over(region, layout, epoch, platform)?;
        for slot in session.slots() {
            slot.state.store(word(epoch, EMPTY), Ordering::Relaxed);
        }
        session.publish();
        Ok(session)
    }

    /// Takes over the session of a service that has died, with its clients. Their calls end with
    /// [`Gone`](crate::CallError::Gone); they attach again and go on. Slots that a client may be in the middle of are
    /// lost until there is a new region.
    ///
    /// The dead service must not write any more, also not by system calls that it had begun, and `epoch` is another
    /// than it had.
    pub fn adopt(
        region: Region<'m>,
        layout: Layout,
        epoch: NonZeroU16,
        platform: P,
    ) -> Result<Self, TooSmall> {
        let session = Self::over(region, layout, epoch, platform)?;
        session.publish();
        session.turn(epoch.get());
        Ok(session)
    }

    /// Ends the session: every call, also one whose client sleeps, ends with [`Gone`](crate::CallError::Gone), and no
    /// slot can be claimed again. Answers that are given later go nowhere.
    pub fn close(&self) {
        if let Some(epoch) = self.region.word32(Layout::epoch()) {
            epoch.store(0, Ordering::Release);
        }
        self.turn(0);
    }

    /// A ring, with a record of its own of what the service has in hand. To be made once for each ring.
    #[must_use]
    pub fn ring(&self, ring: u32) -> Option<Ring<'m, P>> {
        Ring::new(self.region, self.layout, self.epoch, ring, self.platform)
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    fn over(region: Region<'m>, layout: Layout, epoch: NonZeroU16, platform: P) -> Result<Self, TooSmall> {
        if region.bytes() < layout.bytes() {
            return Err(TooSmall);
        }
        Ok(Self { region, layout, epoch, platform })
    }

    /// Writes what does not belong to slots; the epoch last, for it says that the rest is there.
    fn publish(&self) {
        for ring in 0..self.layout.rings() {
            let Some(ring) = RingView::new(self.region, &self.layout, ring) else { continue };
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

    /// Turns every slot's word to another epoch, and wakes who sleeps there.
    fn turn(&self, epoch: u16) {
        for slot in self.slots() {
            let mut seen = slot.state.load(Ordering::Relaxed);
            let mut turned_it = false;
            for _ in 0..TRIES {
                let next = turned(seen, epoch);
                match slot.state.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        turned_it = true;
                        break;
                    }
                    Err(now) => seen = now,
                }
            }
            if !turned_it {
                // No honest client changes a word so often.
                seen = slot.state.swap(u32::from(epoch) << 16 | LOST, Ordering::AcqRel);
            }
            if seen & SLEEPS != 0 {
                self.platform.wake(slot.state);
            }
        }
    }

    fn slots(&self) -> impl Iterator<Item = SlotView<'m>> {
        let (region, layout) = (self.region, self.layout);
        (0..layout.rings()).flat_map(move |ring| {
            (0..layout.slots()).filter_map(move |slot| SlotView::new(region, &layout, ring, slot))
        })
    }
}
