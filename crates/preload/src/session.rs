//! The session with the pool's service: a ring for calls, and a socket by which descriptors come.
//!
//! One call at a time is made in it. Whoever finds it in use, be it another thread or himself in a signal handler, takes the next one, of
//! which a process has a few, and if they are all in use the other way, through the kernel. A session begins when calls that could use it
//! have come up, and ends when the service has gone, when the process is to have another identity, or when the program wants the socket's
//! number for a file of its own.

pub(crate) mod call_path;
pub(crate) mod calls;
pub(crate) mod detach_state;
pub(crate) mod dirs;
pub(crate) mod file_generations;
mod mount_type;
pub(crate) mod root_mount;
pub(crate) mod socket;
mod unsynced_dirs;

use self::socket::{Greeting, Take};
use crate::fds::service_fds;
use crate::fds::session_fds::{self, Descriptor, OWN, SessionFds};
use crate::session::dirs::Dirs;
use crate::session::unsynced_dirs::UnsyncedDirs;
use crate::shim::paths::PATH_MAX;
use crate::shim::{attributes, process, raw, signals};
use crate::thresholds::session::{
    AGAIN, AGAIN_MAX, CREDIT, ENTERING, FEW, MANY, MOST, RARE, RARELY, SLICE, SLICE_MAX, SLICES,
    WITHOUT_CREDIT_EACH,
};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use vellum_ring::files::RING_WANTED;
use vellum_ring::{Caller, Client, Linux, Region, Request, Response, ServiceProgress, WaitError};

/// What a call is made with. Whoever has the [`SessionGuard`] of its slot has it.
pub(crate) struct State {
    client: Option<Client<'static, Linux>>,
    /// The service has seen in this session that no domain holds the program.
    pub(crate) is_free: bool,
    /// Calls until a session is begun.
    due: u32,
    /// How many that will be after the next failure.
    again: u32,
    tag: u64,
    /// Directories of unions that have no token.
    refused: u32,
    credit: i32,
    without_credit: u32,
    /// When [`State::spend_credit`] was last asked, in nanoseconds.
    last: u64,
    pub(crate) path: [u8; PATH_MAX],
    pub(crate) dirs: Dirs,
    pub(crate) fresh: UnsyncedDirs,
}

impl State {
    /// Whether a call is likely to be worth its while. `now`: nanoseconds of a clock that never goes back.
    pub(crate) fn spend_credit(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.last) > RARE {
            self.pay(RARELY);
        }
        self.last = now;
        if self.credit > 0 {
            return true;
        }
        self.without_credit = self.without_credit.wrapping_add(1);
        self.without_credit.is_multiple_of(WITHOUT_CREDIT_EACH)
    }

    /// Something was done for nothing.
    pub(crate) fn pay(&mut self, cost: i32) {
        self.credit = (self.credit - cost).max(-2 * ENTERING);
    }

    /// A call went well.
    pub(crate) fn earn(&mut self) {
        self.credit = (self.credit + 1).min(CREDIT);
    }
}

/// One session, or the place for it.
#[repr(align(128))]
struct SessionSlot {
    state: UnsafeCell<State>,
    /// Somebody has the right to make a call.
    busy: AtomicBool,
    /// The session is to end as soon as nobody has it.
    ending: AtomicBool,
    /// The region of the session.
    base: AtomicUsize,
    len: AtomicUsize,
}

// SAFETY: only a `SessionGuard` refers to the state, and there is one at a time.
unsafe impl Sync for SessionSlot {}

impl SessionSlot {
    const fn new(few: u32) -> Self {
        Self {
            state: UnsafeCell::new(State {
                client: None,
                is_free: false,
                due: few,
                again: AGAIN,
                tag: 0,
                refused: 0,
                credit: CREDIT,
                without_credit: 0,
                last: 0,
                path: [0; PATH_MAX],
                dirs: Dirs::new(),
                fresh: UnsyncedDirs::new(),
            }),
            busy: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }
}

static FIRST: SessionSlot = SessionSlot::new(FEW);
static FURTHER: [SessionSlot; MOST - 1] = [const { SessionSlot::new(MANY) }; MOST - 1];
/// Threads of this process may have different identities.
static NEVER: AtomicBool = AtomicBool::new(false);
/// How many forks there are between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The first call already is worth a session: the program is going to work for long.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// All slots, with what they have open.
fn slots() -> impl Iterator<Item = (&'static SessionSlot, &'static SessionFds)> {
    core::iter::once(&FIRST).chain(&FURTHER).zip(&OWN)
}

/// A session is to begin with the first call that could use it. For the time before that call.
pub(crate) fn begin_at_once() {
    AT_ONCE.store(true, Relaxed);
    if let Some(mut hold) = SessionGuard::lock(&FIRST, &OWN[0]) {
        hold.due = 1;
    }
}

/// Whether a session is to begin as soon as it could be used.
pub(crate) fn is_at_once() -> bool {
    AT_ONCE.load(Relaxed)
}

/// The sockets of all slots.
#[cfg(test)]
pub(crate) fn sockets() -> [i32; MOST] {
    OWN.each_ref().map(|own| own.socket.get_ordered())
}

/// The right to make a call, until it is dropped.
pub(crate) struct SessionGuard {
    slot: &'static SessionSlot,
    pub(crate) own: &'static SessionFds,
}

impl SessionGuard {
    /// None: others have all of them, or this is not the process whose sessions they are.
    pub(crate) fn take() -> Option<Self> {
        if NEVER.load(Relaxed) || process::is_borrowed() || detach_state::is_detached() {
            return None;
        }
        for (slot, own) in slots() {
            let hold = Self::lock(slot, own);
            // Further ones are for when there is a session, and it is in use.
            if hold.is_some() || own.socket.get() < 0 {
                return hold;
            }
        }
        None
    }

    fn lock(slot: &'static SessionSlot, own: &'static SessionFds) -> Option<Self> {
        if slot.busy.load(Relaxed) {
            return None;
        }
        // Made only when it is right: one that is dropped gives the right to somebody else.
        let is_right = slot.busy.compare_exchange(false, true, SeqCst, Relaxed).is_ok();
        is_right.then(|| Self { slot, own })
    }
}

impl Deref for SessionGuard {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: this is the only `SessionGuard` of the slot.
        unsafe { &*self.slot.state.get() }
    }
}

impl DerefMut for SessionGuard {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: this is the only guard of the slot.
        unsafe { &mut *self.slot.state.get() }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        loop {
            if self.slot.ending.swap(false, SeqCst) {
                self.close();
            }
            self.slot.busy.store(false, SeqCst);
            // Who wants it to end has found it in use, or it is free for him to end it.
            if !self.slot.ending.load(SeqCst) || self.slot.busy.swap(true, SeqCst) {
                return;
            }
        }
    }
}

/// Ends the sessions, now or as soon as the calls under way are over. New ones may begin.
pub(crate) fn end() {
    slots().for_each(|(slot, own)| end_one(slot, own));
}

fn end_one(slot: &'static SessionSlot, own: &'static SessionFds) {
    if own.is_closed() && !slot.busy.load(SeqCst) {
        return;
    }
    slot.ending.store(true, SeqCst);
    drop(SessionGuard::lock(slot, own));
}

/// Whether anything of a session is left, or a call is under way.
pub(crate) fn is_any() -> bool {
    slots().any(|(slot, own)| slot.busy.load(SeqCst) || slot.base.load(SeqCst) != 0 || !own.is_closed())
}

/// As if no session had ever been tried. None is left, and all other threads stand still.
pub(crate) fn forget() {
    for (slot, own) in slots() {
        if let Some(mut hold) = SessionGuard::lock(slot, own) {
            hold.dirs.forget_foreign();
            (hold.due, hold.again, hold.refused) = (hold.few(), AGAIN, 0);
        }
    }
}

/// Whether all threads of this process are one user, with the same rights, as far as is known.
pub(crate) fn is_one_user() -> bool {
    !NEVER.load(Relaxed)
}

/// Ends the sessions, and there is no other one in this process.
pub(crate) fn end_permanently() {
    NEVER.store(true, SeqCst);
    end();
}

/// Ends the session that has a number that is to be another file. False: a call is under way.
pub(crate) fn release_number(number: i32) -> bool {
    const LOOKS: u32 = 100_000;
    for _ in 0..LOOKS {
        let Some((slot, own)) = slots().find(|(_, own)| own.has(number)) else { return true };
        end_one(slot, own);
        core::hint::spin_loop();
    }
    false
}

/// This is a child made by fork: the sessions are its parent's.
pub(crate) fn forked() {
    FORKS.fetch_add(1, SeqCst);
    for (slot, own) in slots() {
        own.socket.close();
        if let Some(mut hold) = SessionGuard::lock(slot, own) {
            // It is not mapped here, and something else may be.
            slot.base.store(0, SeqCst);
            hold.forget();
            continue;
        }
        // A call was under way. If it was this thread's, interrupted by who forks, it goes on, and must find memory there: that says that
        // the service has gone. If it was another thread's, that is not here, and nobody will ever make a call.
        let (base, len) = (slot.base.load(SeqCst), slot.len.load(SeqCst));
        if base != 0 {
            raw::map_empty_at(base, len);
        }
    }
}

/// Why a call has brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// It has failed, with this error number.
    Failed(i32),
    /// Nothing happened: the kernel is to be asked.
    Kernel,
    /// It may have been carried out, or not.
    Unknown,
}

impl SessionGuard {
    /// The socket of the session; -1: there is none.
    pub(crate) fn socket(&self) -> i32 {
        self.own.socket.get()
    }

    /// After how many calls a session begins.
    fn few(&self) -> u32 {
        match core::ptr::eq(self.slot, &raw const FIRST) {
            true if is_at_once() => 1,
            true => FEW,
            false => MANY,
        }
    }

    /// Whether nothing is known of a device and it is time to find out if its files are served.
    pub(crate) fn poll_unknown_device(&mut self, device: u64) -> bool {
        let [major, _] = attributes::split(device);
        // A union has no device of its own.
        major == 0 && !service_fds::is_known() && !self.dirs.is_foreign(device) && self.poll_due()
    }

    /// Whether files of this device are served.
    pub(crate) fn check_device(&mut self, device: u64) -> bool {
        if service_fds::is_union(device) {
            return true;
        }
        let [major, _] = attributes::split(device);
        if (major != 0 || service_fds::is_known()) && !self.dirs.is_foreign(device) {
            self.dirs.keep_foreign(device);
        }
        false
    }

    /// A call that could use a session has come up: whether there is one, or is to be one now.
    pub(crate) fn poll_due(&mut self) -> bool {
        self.is_begun() || {
            self.due = self.due.saturating_sub(1);
            let is_due = self.due == 0;
            self.due = self.due.max(1);
            is_due
        }
    }

    /// The next call that could use a session is worth one, unless the last has failed not long ago.
    pub(crate) fn hurry(&mut self) {
        if self.due <= FEW {
            self.due = 1;
        }
    }

    fn is_begun(&self) -> bool {
        self.client.is_some() && self.socket() >= 0
    }

    /// Whether there is a session, or one has been asked for.
    pub(crate) fn ask_if_due(&mut self) -> bool {
        if self.is_begun() || self.ask().is_some() {
            return true;
        }
        self.fail();
        false
    }

    /// A union's directory has no token: a session that was asked for its sake is not needed. After a few of them the socket is asked
    /// whether the union's files are handed out at all.
    pub(crate) fn note_refusal(&mut self) {
        if !self.is_begun() {
            self.close();
        }
        self.refused = self.refused.saturating_add(1);
        if self.refused == FEW && !service_fds::is_known() {
            service_fds::greet();
        }
    }

    /// Whether there is a session, with a service that serves files of this device. It has been asked for.
    pub(crate) fn ensure_ready(&mut self, device: u64) -> bool {
        if !self.is_begun() && self.begin().is_none() {
            self.fail();
            return false;
        }
        let may = self.check_device(device);
        if !may {
            self.close();
        }
        may
    }

    /// Asks for a session. The service greets, and gives the ring, at once.
    fn ask(&mut self) -> Option<()> {
        self.close();
        if !signals::next_sigaction().is_some_and(signals::install) {
            return None;
        }
        let high = session_fds::move_away(socket::connect()?)?;
        if !socket::send(high.0, RING_WANTED) {
            return None;
        }
        // From here on `close` takes it back.
        self.own.socket.set(high);
        Some(())
    }

    fn begin(&mut self) -> Option<()> {
        if !greeted(self.socket()) {
            return None;
        }
        let answer = socket::take(self.socket(), Take::Waiting)?;
        let memory = Descriptor(answer.fd?);
        if answer.number != RING_WANTED || !socket::is_sealed(memory.0) {
            return None;
        }
        let (_, bytes) = raw::stat(memory.0)?;
        let len = usize::try_from(bytes).ok()?;
        self.slot.len.store(len, SeqCst);
        let forks = FORKS.load(SeqCst);
        let base = raw::map_shared(memory.0, len)?;
        self.slot.base.store(base, SeqCst);
        if FORKS.load(SeqCst) != forks {
            // A handler has forked just now, and this is the child: it is not mapped here.
            self.slot.base.store(0, SeqCst);
            return None;
        }
        // SAFETY: a new mapping of memory that cannot become shorter; it is taken away by `close` alone, when nothing refers to it any
        // more, because whoever closes has the only right to make a call.
        let region = NonNull::new(base as *mut u8).and_then(|base| unsafe { Region::new(base, len) });
        self.client = Some(Client::attach(region?, Linux).ok()?);
        Some(())
    }

    /// Ends the session.
    fn close(&mut self) {
        self.forget();
        let (base, len) = (self.slot.base.load(SeqCst), self.slot.len.load(SeqCst));
        if base != 0 {
            raw::unmap(base, len);
            self.slot.base.store(0, SeqCst);
        }
        self.own.socket.close();
    }

    /// As if there had never been one.
    fn forget(&mut self) {
        self.client = None;
        self.is_free = false;
        self.due = self.few();
        self.dirs.clear();
        self.fresh.clear();
    }

    /// Ends the session because it is no good; the next one begins later.
    pub(crate) fn fail(&mut self) {
        self.close();
        self.due = self.again;
        self.again = self.again.saturating_mul(2).min(AGAIN_MAX);
    }

    pub(crate) fn call(&mut self, request: Request, data: &[u8]) -> Result<Response, CallFailure> {
        let Some(client) = self.client else { return Err(CallFailure::Kernel) };
        if data.len() > client.layout().data_bytes() {
            return Err(CallFailure::Kernel);
        }
        self.tag = self.tag.wrapping_add(1);
        let core = Linux.core();
        let caller = Caller { key: 0, core };
        let Ok(mut slot) = client.claim(caller) else {
            // With one call at a time a slot is free, unless the service has gone or still has what was given up.
            self.fail();
            return Err(CallFailure::Kernel);
        };
        slot.write_data(0, data);
        let request = Request { len: data.len() as u32, tag: self.tag, ..request };
        let Ok(mut pending) = slot.send(request) else {
            self.fail();
            return Err(CallFailure::Kernel);
        };
        for turn in 0..SLICES {
            match pending.wait(Some((SLICE << turn).min(SLICE_MAX))) {
                Ok(answer) => return Ok(answer.response()),
                Err(WaitError::TimedOut(still)) if !socket::is_hung_up(self.socket()) => pending = still,
                Err(WaitError::TimedOut(left)) => {
                    let last = match left.wait(Some(0)) {
                        Ok(answer) => Ok(answer.response()),
                        Err(WaitError::TimedOut(left)) => Err(match left.abandon() {
                            ServiceProgress::NotBegun | ServiceProgress::NothingChanged => {
                                CallFailure::Kernel
                            }
                            ServiceProgress::Unknown => CallFailure::Unknown,
                        }),
                        Err(WaitError::Gone) => Err(CallFailure::Unknown),
                    };
                    // Not before: this takes the ring's memory away.
                    self.fail();
                    return last;
                }
                Err(WaitError::Gone) => {
                    self.fail();
                    return Err(CallFailure::Unknown);
                }
            }
        }
        drop(pending);
        self.fail();
        Err(CallFailure::Unknown)
    }
}

/// Takes what the socket says first, on a stack that is given back before more is done.
#[inline(never)]
fn greeted(socket: i32) -> bool {
    service_fds::greeted(socket, &mut Greeting::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_without_credit_retries_occasionally() {
        let mut state = SessionSlot::new(FEW).state.into_inner();
        assert!((0..100).all(|_| state.spend_credit(0)));
        (0..100).for_each(|_| state.pay(ENTERING));
        assert_eq!((0..160).filter(|_| state.spend_credit(0)).count(), 10);
        // And is soon where it was, if that goes well.
        (0..10).for_each(|_| state.earn());
        assert!(state.spend_credit(0));
        (0..100).for_each(|_| state.earn());
        assert_eq!(state.credit, CREDIT);
    }

    #[test]
    fn frequent_calls_earn_credit_and_rare_ones_do_not() {
        let mut state = SessionSlot::new(FEW).state.into_inner();
        let mut now = 0;
        let mut calls = |count: usize, apart: u64| {
            let made = (0..count).filter(|_| {
                now += apart;
                let is_made = state.spend_credit(now);
                if is_made {
                    state.earn();
                }
                is_made
            });
            made.count()
        };
        assert!(calls(1000, 2 * RARE) < 200);
        assert!(calls(1000, RARE / 2) > 700);
        assert_eq!(calls(100, RARE / 2), 100);
        // A pause now and then is none of that.
        assert_eq!((0..50).map(|_| calls(10, RARE / 2) + calls(1, 10 * RARE)).sum::<usize>(), 550);
    }
}
