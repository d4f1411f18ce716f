//! The client's end: claiming a slot, filling it, handing it over.
//!
//! Nothing here allocates, panics, takes a lock, or keeps state outside of the shared memory, so that it can be called
//! in a signal handler in the middle of itself.

use crate::Region;
use crate::bits::place;
use crate::copy::copy_in;
use crate::head::{Request, Response};
use crate::layout::{HEADER_WORDS, Layout};
use crate::pending_call::{PendingCall, WaitError};
use crate::platform::Platform;
use crate::state::{EMPTY, VALID, WRITING, is_of, word};
use crate::sync::{Ordering, fence};
use crate::view::{RingView, SlotView, store};
use core::fmt;
use core::num::NonZeroU16;

/// Slots that are tried before the ring counts as full.
const TRIES: u32 = 8;

/// Why a region cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// It is no region, is of another version, or is smaller than it says.
    Layout,
    /// The session is closed.
    Closed,
}

/// Why a call was not made, or has no answer. Either way the caller takes another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No free slot among those that were tried; nothing was sent.
    Full,
    /// More data than a slot holds; nothing was sent.
    TooLarge,
    /// The service has gone, or did not answer in time. Whether the call was carried out is not known.
    Gone,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Layout => "the shared memory is not a region of this version",
            Self::Closed => "the session is closed",
        })
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "no free slot",
            Self::TooLarge => "more data than a slot holds",
            Self::Gone => "the service has gone",
        })
    }
}

impl core::error::Error for AttachError {}
impl core::error::Error for CallError {}

/// Who calls: hints only, for speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Something of the thread, so that threads begin at different slots.
    pub key: u64,
    /// The core on which the thread runs, or [`CORE_UNKNOWN`](crate::CORE_UNKNOWN).
    pub core: u32,
}

/// A region, as a client sees it. Threads share it.
#[derive(Clone, Copy, Debug)]
pub struct Client<'m, P> {
    region: Region<'m>,
    layout: Layout,
    epoch: NonZeroU16,
    platform: P,
}

impl<'m, P: Platform> Client<'m, P> {
    /// Looks at what a region says of itself, and whether it is all there.
    pub fn attach(region: Region<'m>, platform: P) -> Result<Self, AttachError> {
        let epoch = region.word32(Layout::epoch()).ok_or(AttachError::Layout)?.load(Ordering::Acquire);
        let header = region.words(0, HEADER_WORDS).ok_or(AttachError::Layout)?;
        let mut words = [0; HEADER_WORDS];
        words.iter_mut().zip(header).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        let layout = Layout::from_words(words).ok_or(AttachError::Layout)?;
        if layout.bytes() > region.bytes() {
            return Err(AttachError::Layout);
        }
        let epoch = u16::try_from(epoch).map_err(|_| AttachError::Layout)?;
        let epoch = NonZeroU16::new(epoch).ok_or(AttachError::Closed)?;
        Ok(Self { region, layout, epoch, platform })
    }

    /// The layout that the service chose.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the service is another one by now, or has closed the session. Then attach again, or give up.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let epoch = self.region.word32(Layout::epoch());
        epoch.is_none_or(|epoch| epoch.load(Ordering::Acquire) != u32::from(self.epoch.get()))
    }

    /// Claims a free slot.
    pub fn claim(&self, caller: Caller) -> Result<Slot<'_, P>, CallError> {
        let ring = RingView::new(self.region).ok_or(CallError::Full)?;
        let start = hash(caller.key);
        let mask = self.layout.slots().wrapping_sub(1);
        let (empty, writing) = (word(self.epoch, EMPTY), word(self.epoch, WRITING));
        let mut turned = false;
        for turn in 0..TRIES.min(self.layout.slots()) {
            let slot = start.wrapping_add(turn) & mask;
            let Some(view) = SlotView::new(self.region, &self.layout, slot) else { continue };
            // Looked at first, as an exchange that fails takes the line away from its owner.
            let mut seen = view.state.load(Ordering::Relaxed);
            if seen == empty {
                match view.state.compare_exchange(empty, writing, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        return Ok(Slot {
                            platform: &self.platform,
                            epoch: self.epoch,
                            ring,
                            index: slot,
                            view,
                            core: caller.core,
                            claimed: true,
                        });
                    }
                    Err(now) => seen = now,
                }
            }
            turned |= !is_of(seen, self.epoch);
        }
        if turned {
            // Who attaches next sees the header that belongs to this word.
            fence(Ordering::Acquire);
        }
        Err(if turned || self.is_gone() { CallError::Gone } else { CallError::Full })
    }

    /// A whole call: sends `data` with `request`, whose `len` and `core` are set here, and waits for at most `timeout`
    /// nanoseconds. The response, and how many bytes of its data were copied to `out`.
    pub fn call(
        &self,
        caller: Caller,
        request: Request,
        data: &[u8],
        out: &mut [u8],
        timeout: Option<u64>,
    ) -> Result<(Response, usize), CallError> {
        if data.len() > self.layout.data_bytes() {
            return Err(CallError::TooLarge);
        }
        let mut slot = self.claim(caller)?;
        slot.write_data(0, data);
        // It fits, as it is not more than a slot's data.
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let pending = slot.send(Request { len, ..request })?;
        match pending.wait(timeout) {
            Ok(answer) => {
                let n = answer.read_data(0, out);
                Ok((answer.response(), n))
            }
            Err(WaitError::TimedOut(_) | WaitError::Gone) => Err(CallError::Gone),
        }
    }
}

/// A slot that a client has claimed. Dropped, it is free again.
pub struct Slot<'c, P: Platform> {
    platform: &'c P,
    epoch: NonZeroU16,
    ring: RingView<'c>,
    index: u32,
    view: SlotView<'c>,
    core: u32,
    claimed: bool,
}

impl<'c, P: Platform> Slot<'c, P> {
    /// Copies the request's data to `offset`; the bytes copied.
    pub fn write_data(&mut self, offset: usize, data: &[u8]) -> usize {
        copy_in(self.view.data, offset, data)
    }

    /// Hands the request to the service; `core` is set here.
    pub fn send(mut self, request: Request) -> Result<PendingCall<'c, P>, CallError> {
        let request = Request { core: self.core, ..request };
        store(self.view.request, request.to_words());
        let (writing, valid) = (word(self.epoch, WRITING), word(self.epoch, VALID));
        // Whoever sees VALID sees the head and the data.
        let published =
            self.view.state.compare_exchange(writing, valid, Ordering::Release, Ordering::Acquire).is_ok();
        self.claimed = false;
        if !published {
            // The epoch turned meanwhile, and the slot with it; acquired, so that who attaches next sees the new one.
            return Err(CallError::Gone);
        }
        self.leave_hint();
        self.ring_bell();
        Ok(PendingCall::new(self.platform, self.epoch, self.ring.core, self.view, request))
    }

    fn leave_hint(&self) {
        let (index, bit) = place(self.index);
        if let Some(hint) = self.ring.hints.get(index) {
            hint.fetch_or(bit, Ordering::Release);
        }
    }

    /// See [`Poller`](crate::Poller) about the fence.
    fn ring_bell(&self) {
        fence(Ordering::SeqCst);
        let bell = self.ring.bell;
        // One of those who come at the same time does it.
        if bell.load(Ordering::Relaxed) != 0 && bell.swap(0, Ordering::AcqRel) != 0 {
            self.platform.wake(bell);
        }
    }
}

impl<P: Platform> Drop for Slot<'_, P> {
    fn drop(&mut self) {
        if self.claimed {
            let (writing, empty) = (word(self.epoch, WRITING), word(self.epoch, EMPTY));
            // If it is no longer so, the epoch has turned, and the slot is lost.
            let _ = self.view.state.compare_exchange(writing, empty, Ordering::Release, Ordering::Relaxed);
        }
    }
}

impl<P: Platform> fmt::Debug for Slot<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Spreads keys that differ in few bits, such as addresses of thread control blocks.
const fn hash(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
