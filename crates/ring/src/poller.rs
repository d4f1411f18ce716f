//! How the service finds calls, and sleeps when there are none.

use crate::bits::Bits;
use crate::call::Call;
use crate::head::{CORE_UNKNOWN, Response};
use crate::platform::{Platform, WakeReason};
use crate::service_ring::{Ring, SlotCheck};
use crate::sync::{AtomicU32, Ordering, fence};

/// Linux's number, the same on all machines that this runs on.
const EPROTO: i32 = 71;
/// After so many alarms without a call the bell is not believed.
const FALSE_ALARMS_MAX: u32 = 16;
/// How often a ring is looked at whose bell is not believed: nanoseconds.
const DISTRUST: u64 = 1_000_000;

/// Why sleeping ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepOutcome {
    /// There is, or may be, a call.
    Rung,
    /// The time was over, or a millisecond of it where the bell is not believed.
    TimedOut,
}

/// Finds the calls of one ring.
///
/// However the client scribbles over its memory, each method does at most one look at each slot.
#[derive(Debug)]
pub struct Poller<'r, P> {
    ring: &'r Ring<'r, P>,
    /// Slots that a hint was seen of.
    pending: Bits,
    /// The slot after the one that was taken last.
    next: u32,
    /// The slot to look at when there are no hints.
    sweep: u32,
    core: u32,
    client_core: u32,
    false_alarms: u32,
    /// Slept on while the bell is not believed.
    quiet: AtomicU32,
}

impl<'r, P: Platform> Poller<'r, P> {
    pub(crate) fn new(ring: &'r Ring<'r, P>) -> Self {
        Self {
            ring,
            pending: Bits::default(),
            next: 0,
            sweep: 0,
            core: CORE_UNKNOWN,
            client_core: CORE_UNKNOWN,
            false_alarms: 0,
            quiet: AtomicU32::new(0),
        }
    }

    /// Says on which core the service runs, so that clients there do not spin.
    pub fn note_core(&mut self, core: u32) {
        if core != self.core {
            self.core = core;
            self.ring.view().core.store(core, Ordering::Relaxed);
        }
    }

    /// The next call, if there is one. Slots take turns.
    pub fn poll(&mut self) -> Option<Call<'r, P>> {
        self.pending.gather(self.ring.view().hints);
        let mut unsteady = Bits::default();
        let mut found = None;
        while let Some(slot) = self.pending.take_from(self.next) {
            match self.take(slot) {
                SlotCheck::Taken(call) => {
                    found = Some(call);
                    break;
                }
                SlotCheck::Nothing => {}
                SlotCheck::Unsteady => unsteady.insert(slot),
            }
        }
        self.pending.join(unsteady);
        // Hints can be lost: with a client's thread that dies before it leaves one, or by scribbling. One slot each time
        // is looked at without.
        if found.is_none() {
            let slot = self.sweep;
            self.sweep = self.following(slot);
            if let SlotCheck::Taken(call) = self.take(slot) {
                found = Some(call);
            }
        }
        found
    }

    /// Polls for `spin` nanoseconds; only once when the last call came from the core that this is on.
    pub fn poll_for(&mut self, spin: u64) -> Option<Call<'r, P>> {
        /// Looks between two readings of the clock.
        const LOOKS: usize = 16;
        if let Some(call) = self.poll() {
            return Some(call);
        }
        if spin == 0 || (self.client_core == self.core && self.core != CORE_UNKNOWN) {
            return None;
        }
        let platform = self.ring.platform();
        let begin = platform.now();
        loop {
            for _ in 0..LOOKS {
                platform.pause();
                if let Some(call) = self.poll() {
                    return Some(call);
                }
            }
            if platform.now().saturating_sub(begin) >= spin {
                return None;
            }
        }
    }

    /// Sleeps until a client rings, for at most `timeout` nanoseconds. Afterwards poll.
    pub fn sleep(&mut self, timeout: Option<u64>) -> SleepOutcome {
        if self.is_distrusted() {
            // A client that rings for nothing costs a look each millisecond, and no more.
            let timeout = timeout.map_or(DISTRUST, |timeout| timeout.min(DISTRUST));
            self.ring.platform().wait(&self.quiet, 0, Some(timeout));
            return SleepOutcome::TimedOut;
        }
        let mut slept = SleepOutcome::Rung;
        if self.arm() {
            let bell = self.ring.view().bell;
            if self.ring.platform().wait(bell, 1, timeout) == WakeReason::TimedOut {
                slept = SleepOutcome::TimedOut;
            }
            bell.swap(0, Ordering::AcqRel);
        }
        self.woke(slept == SleepOutcome::Rung);
        slept
    }

    /// Whether its client rang so often for nothing that its bell is not believed any more.
    #[must_use]
    pub fn is_distrusted(&self) -> bool {
        self.false_alarms >= FALSE_ALARMS_MAX
    }

    /// Says that the service is about to sleep, and looks at every slot once more. False: there is something to do.
    ///
    /// Clients publish, fence, and look at the bell; this sets the bell, fences, and looks at what they published. In
    /// the one order that both fences have, whoever comes second sees what the first one wrote. The bell itself is only
    /// exchanged, by both, so that its changes are in one order too: an old 0 cannot hide a new 1.
    fn arm(&mut self) -> bool {
        let bell = self.ring.view().bell;
        bell.swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let mut nothing = true;
        for slot in 0..self.ring.slots() {
            if self.ring.is_waiting(slot) {
                self.pending.insert(slot);
                nothing = false;
            }
        }
        if !nothing {
            bell.swap(0, Ordering::AcqRel);
        }
        nothing
    }

    fn woke(&mut self, rung: bool) {
        if rung {
            self.false_alarms = self.false_alarms.saturating_add(1);
        }
    }

    fn take(&mut self, slot: u32) -> SlotCheck<'r, P> {
        let look = self.ring.take(slot);
        if let SlotCheck::Taken(call) = look {
            self.next = self.following(slot);
            self.false_alarms = 0;
            self.client_core = call.request().core;
            if call.request().len as usize > call.capacity() {
                call.reply(Response::status(EPROTO));
                return SlotCheck::Nothing;
            }
            return SlotCheck::Taken(call);
        }
        look
    }

    fn following(&self, slot: u32) -> u32 {
        // The number of slots is a power of two.
        (slot + 1) & (self.ring.slots() - 1)
    }
}
