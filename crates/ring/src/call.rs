//! A call that the service has in hand.

use crate::copy::{copy_in, copy_out};
use crate::head::{Request, Response};
use crate::platform::Platform;
use crate::service_ring::Ring;
use crate::state::{ABANDONED, DONE, EMPTY, SLEEPS, TAKEN, without_sleep_flag, word};
use crate::sync::Ordering;
use crate::view::{SlotView, store};
use core::fmt;

/// Linux's number, the same on all machines that this runs on.
const EIO: i32 = 5;

/// A client changes the word of a call in hand twice: it sleeps, it gives up.
const TRIES: usize = 4;

/// A call in hand: a private copy of its head, and ways to copy data. Dropped without an answer it is answered with EIO.
///
/// There is no reference into the shared memory to be had, for the client may write there at any time.
pub struct Call<'r, P: Platform> {
    ring: &'r Ring<'r, P>,
    slot: u32,
    view: SlotView<'r>,
    request: Request,
    answered: bool,
}

impl<'r, P: Platform> Call<'r, P> {
    pub(crate) fn new(ring: &'r Ring<'r, P>, slot: u32, view: SlotView<'r>, request: Request) -> Self {
        Self { ring, slot, view, request, answered: false }
    }
}

impl<P: Platform> Call<'_, P> {
    /// The head. Its `len` is not more than a slot holds; everything else is as the client wrote it.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Bytes that a response can carry.
    #[must_use]
    pub fn capacity(&self) -> usize {
        size_of_val(self.view.data)
    }

    /// Copies the request's data from `offset` on; the bytes copied. They are read once, here; a second copy of the same
    /// bytes may differ.
    pub fn read_data(&self, offset: usize, out: &mut [u8]) -> usize {
        let there = (self.request.len as usize).min(self.capacity()).saturating_sub(offset);
        let n = there.min(out.len());
        out.get_mut(..n).map_or(0, |out| copy_out(self.view.data, offset, out))
    }

    /// Copies to the response's data from `offset` on; the bytes copied. Request and response use the same bytes, so
    /// whatever is still needed of the request is read before.
    pub fn write_data(&mut self, offset: usize, data: &[u8]) -> usize {
        copy_in(self.view.data, offset, data)
    }

    /// Says, or takes back, that something is about to be changed, for a client that outlives the service: see [`ServiceProgress`](crate::Left).
    pub fn announce(&self, changes: bool) {
        // Where the answer will be: the tag says it all.
        let tag = if changes { self.request.tag } else { !self.request.tag };
        store(self.view.response, Response::status(EIO).to_words(tag));
    }

    /// Answers. Whether the client will see it: false when it gave up meanwhile.
    pub fn reply(mut self, response: Response) -> bool {
        self.answer(response)
    }

    fn answer(&mut self, mut response: Response) -> bool {
        self.answered = true;
        let capacity = u32::try_from(self.capacity()).unwrap_or(u32::MAX);
        response.len = response.len.min(capacity);
        store(self.view.response, response.to_words(self.request.tag));
        // Before the client can see the response: as soon as it does it may use the slot again, and that call must not
        // be passed over because of this one.
        self.ring.unmark(self.slot);
        let epoch = self.ring.epoch();
        let state = self.view.state;
        let mut seen = word(epoch, TAKEN);
        for _ in 0..TRIES {
            let next = match without_sleep_flag(seen) {
                now if now == word(epoch, TAKEN) => word(epoch, DONE),
                now if now == word(epoch, ABANDONED) => word(epoch, EMPTY),
                // Of another epoch, or scribbled over: nobody waits for this.
                _ => return false,
            };
            match state.compare_exchange(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    if seen & SLEEPS != 0 {
                        self.ring.platform().wake(state);
                    }
                    return next == word(epoch, DONE);
                }
                Err(now) => seen = now,
            }
        }
        false
    }
}

impl<P: Platform> Drop for Call<'_, P> {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Response::status(EIO));
        }
    }
}

impl<P: Platform> fmt::Debug for Call<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("slot", &self.slot)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
