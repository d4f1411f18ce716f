//! A call that has been sent: waiting for its answer, reading it, giving it up.

use crate::copy::copy_out;
use crate::head::{CORE_UNKNOWN, Request, Response};
use crate::platform::{Platform, WakeReason};
use crate::state::{ABANDONED, DONE, EMPTY, SLEEPS, TAKEN, VALID, without_sleep_flag, word};
use crate::sync::{AtomicU32, Ordering};
use crate::view::{SlotView, load};
use core::fmt;
use core::num::NonZeroU16;

/// Looks at the word before the clock is read at all.
const QUICK_LOOKS: u32 = 64;
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;
/// The longest that a client spins: about what it costs to sleep and be woken.
const SPIN_MAX: u32 = 50_000;
/// Calls that take longer than this, in nanoseconds, are slept on at once.
const LONG: u64 = 200_000;
/// The service changes the word once, from VALID to TAKEN or from TAKEN to DONE, while a client changes it too.
const TRIES: usize = 4;

/// Why there is no answer.
pub enum WaitError<'c, P: Platform> {
    /// Not in this time. One can wait on, or drop it, which gives the call up.
    TimedOut(PendingCall<'c, P>),
    /// The service is another one by now, or has closed the session.
    Gone,
}

impl<P: Platform> fmt::Debug for WaitError<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut(_) => "TimedOut",
            Self::Gone => "Gone",
        })
    }
}

/// How far a service that has gone had come with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceProgress {
    /// It had not begun, and nobody ever will.
    NotBegun,
    /// It had the call in hand, and had not said that it would change anything ([`Call::announce`](crate::Call::announce)).
    NothingChanged,
    /// It was about to change something, or has.
    Unknown,
}

/// A call under way. Dropped, it is given up: taken back if the service has not begun, else the slot stays out of use
/// until the service is done with it. A late answer never meets another call.
pub struct PendingCall<'c, P: Platform> {
    platform: &'c P,
    epoch: NonZeroU16,
    service_core: &'c AtomicU32,
    view: SlotView<'c>,
    tag: u64,
    core: u32,
    settled: bool,
}

/// What a look at the word says.
enum Now {
    Waiting(u32),
    Done,
    Gone,
}

impl<'c, P: Platform> PendingCall<'c, P> {
    pub(crate) fn new(
        platform: &'c P,
        epoch: NonZeroU16,
        service_core: &'c AtomicU32,
        view: SlotView<'c>,
        request: Request,
    ) -> Self {
        let Request { tag, core, .. } = request;
        Self { platform, epoch, service_core, view, tag, core, settled: false }
    }

    /// Waits for the answer, for at most `timeout` nanoseconds.
    ///
    /// On the core that the service was on last it sleeps at once, for the service cannot run before it does. Elsewhere
    /// it spins a while first, about twice as long as calls of this slot have taken lately.
    pub fn wait(mut self, timeout: Option<u64>) -> Result<Answer<'c>, WaitError<'c, P>> {
        match self.await_answer(timeout) {
            Now::Done => {
                self.settled = true;
                let answer = Answer::new(self.epoch, self.view, self.tag);
                // An answer to something else would be a fault of the service. The slot is never used again.
                answer.ok_or(WaitError::Gone)
            }
            Now::Gone => {
                self.settled = true;
                Err(WaitError::Gone)
            }
            Now::Waiting(_) => Err(WaitError::TimedOut(self)),
        }
    }

    /// Gives the call up because the service has gone.
    #[must_use]
    pub fn abandon(mut self) -> ServiceProgress {
        self.settled = true;
        if self.leave() == Some(VALID) {
            return ServiceProgress::NotBegun;
        }
        // An announcement, or an answer that has come at the last moment.
        let (_, tag) = Response::from_words(load(self.view.response));
        if tag == self.tag { ServiceProgress::Unknown } else { ServiceProgress::NothingChanged }
    }

    /// Leaves the slot; the state that it was in.
    fn leave(&self) -> Option<u32> {
        let mut seen = self.view.state.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let (was, next) = match without_sleep_flag(seen) {
                state if state == word(self.epoch, VALID) => (VALID, EMPTY),
                state if state == word(self.epoch, DONE) => (DONE, EMPTY),
                state if state == word(self.epoch, TAKEN) => (TAKEN, ABANDONED),
                _ => return None,
            };
            let next = word(self.epoch, next);
            // Release: who claims the slot next must not see what this call still wrote.
            match self.view.state.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(was),
                Err(now) => seen = now,
            }
        }
        None
    }

    fn await_answer(&self, timeout: Option<u64>) -> Now {
        let spins = self.core == CORE_UNKNOWN || self.core != self.service_core.load(Ordering::Relaxed);
        if spins {
            for _ in 0..QUICK_LOOKS {
                match self.look() {
                    Now::Waiting(_) => self.platform.pause(),
                    settled => return settled,
                }
            }
        }
        let begin = self.platform.now();
        let elapsed = || self.platform.now().saturating_sub(begin);
        if spins {
            let limit = u64::from(self.view.spin.load(Ordering::Relaxed).min(SPIN_MAX));
            let limit = timeout.map_or(limit, |timeout| timeout.min(limit));
            while elapsed() < limit {
                for _ in 0..LOOKS {
                    match self.look() {
                        Now::Waiting(_) => self.platform.pause(),
                        settled => return self.learn(elapsed(), settled),
                    }
                }
            }
        }
        loop {
            let seen = match self.look() {
                Now::Waiting(seen) => seen,
                settled if spins => return self.learn(elapsed(), settled),
                settled => return settled,
            };
            let left = timeout.map(|timeout| timeout.saturating_sub(elapsed()));
            if left == Some(0) {
                return Now::Waiting(seen);
            }
            let asleep = seen | SLEEPS;
            // It fails when the service has got further; then look again.
            let marked = seen == asleep
                || self
                    .view
                    .state
                    .compare_exchange(seen, asleep, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if marked && self.platform.wait(self.view.state, asleep, left) == WakeReason::TimedOut {
                return self.look();
            }
        }
    }

    fn look(&self) -> Now {
        let seen = self.view.state.load(Ordering::Acquire);
        match without_sleep_flag(seen) {
            state if state == word(self.epoch, VALID) || state == word(self.epoch, TAKEN) => {
                Now::Waiting(seen)
            }
            state if state == word(self.epoch, DONE) => Now::Done,
            _ => Now::Gone,
        }
    }

    /// Brings how long to spin nearer to twice what this took, or to nothing when that is too long. What is a little too long may have
    /// been so because of the sleep itself, which takes as long as the longest spin: so it is tried again.
    fn learn(&self, took: u64, settled: Now) -> Now {
        let max = u64::from(SPIN_MAX);
        let aim = if took <= LONG { took.saturating_mul(2).min(max) as u32 } else { 0 };
        let spin = self.view.spin.load(Ordering::Relaxed).min(SPIN_MAX);
        let next = spin - spin / 8 + aim / 8;
        if next != spin {
            self.view.spin.store(next, Ordering::Relaxed);
        }
        settled
    }
}

impl<P: Platform> Drop for PendingCall<'_, P> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        self.leave();
    }
}

impl<P: Platform> fmt::Debug for PendingCall<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// An answer. Dropped, its slot is free again.
#[derive(Debug)]
pub struct Answer<'c> {
    epoch: NonZeroU16,
    view: SlotView<'c>,
    response: Response,
}

impl<'c> Answer<'c> {
    fn new(epoch: NonZeroU16, view: SlotView<'c>, tag: u64) -> Option<Self> {
        let (response, answered) = Response::from_words(load(view.response));
        // Made only when it is right: one that is dropped frees the slot.
        (answered == tag).then(|| Self { epoch, view, response })
    }
}

impl Answer<'_> {
    /// Its head.
    #[must_use]
    pub fn response(&self) -> Response {
        self.response
    }

    /// Copies the response's data from `offset` on; the bytes copied.
    pub fn read_data(&self, offset: usize, out: &mut [u8]) -> usize {
        let there = (self.response.len as usize).min(size_of_val(self.view.data)).saturating_sub(offset);
        let n = there.min(out.len());
        out.get_mut(..n).map_or(0, |out| copy_out(self.view.data, offset, out))
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let (done, empty) = (word(self.epoch, DONE), word(self.epoch, EMPTY));
        // Release: the data have been read. If it is no longer DONE, the epoch has turned, and the slot is lost.
        let _ = self.view.state.compare_exchange(done, empty, Ordering::Release, Ordering::Relaxed);
    }
}
