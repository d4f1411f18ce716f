//! Which worker threads read from the device, and when there are more of them.
//!
//! The kernel wakes one of the threads that wait in a read for every request it queues. With one client, every
//! thread too many is then a needless wake-up on another processor, which costs more than the operation. So as
//! few *readers* as possible wait for requests, normally one, and the other workers are parked. The number grows
//!
//! - when a reader finds the next request waiting already, several times in a row, and each from another client
//!   thread than the one before,
//! - when it receives something that may take long, and there are other clients (see [`ClientCount::is_single`]): it stops being
//!   a reader first (see [`is_slow`]),
//! - when it has been busy with one request from one tick to the next ([`TICK`]) and sleeps: the watchdog, which is
//!   the thread that called `run`, takes its place as a reader away and gives it to another,
//!
//! and shrinks when a reader seldom finds such a request while there are others.
//!
//! A storage that does not answer can hold as many workers as there are. Where one may, there is a second, higher limit: when all workers
//! sleep over requests from one look of the watchdog to the next, and none reads, one more is started. Those beyond the usual number end
//! when they have had nothing to do for some seconds.
//!
//! All of this must hold on a busy machine too, where nothing is more ordinary than a worker that has not had a
//! processor for some milliseconds. One client thread waits for its answer before it asks again, so a second
//! request of the same thread was not kept waiting by us, however early it is there; and a worker that only
//! wants a processor is not helped by a second one that wants it as well.
//! Unpacking an archive beside two busy processes on two processors took 1.5 times as long as with a single worker
//! before both were minded, and takes as long now.

use crate::request::{Operation, Request};
use crate::wire::{self, Opcode};
use crate::workers::client_count::ClientCount;
use crate::workers::slot::{Slot, state};
use parking_lot::{Condvar, Mutex};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use zerocopy::FromBytes;

/// How often the watchdog looks, while there is work.
const TICK: Duration = vellum_sys::cpu_latency::TICK;
/// The longest time between two looks, in ticks. As long as no look finds a worker at work, each comes after twice the time of the
/// one before: who is stuck is noticed that much later at most, and a look wakes a thread. Of the switches between threads in 64
/// services that each start a program, most were those of their watchdogs.
const TICKS_MAX: u32 = 8;
/// Ticks without a request after which the watchdog sleeps until the next one.
const QUIET_TICKS: u32 = 25;
/// Ticks after which a worker is relieved even though it is not asleep: it computes or copies, and another
/// processor may be free. Many more than it usually takes to get a processor on a busy machine.
const RUNNING_TICKS: u32 = 5;
/// READ and WRITE of at least so many bytes count as long.
const LONG_IO: u32 = 64 << 10;
/// How long a worker that does not read waits for something to do.
const LINGER: Duration = Duration::from_secs(10);

/// What the watchdog remembers of a slot from one tick to the next.
struct SlotSnapshot {
    slot: Arc<Slot>,
    begun: u64,
    /// Ticks in a row with the same request.
    ticks: u32,
}

/// What a tick has shown.
#[derive(Default)]
struct Tick {
    /// Workers are at work.
    busy: bool,
    /// They are, or have been.
    progress: bool,
    /// Requests begun since the last tick.
    requests: u64,
    /// Threads to start.
    hires: u32,
}

/// Requests that were under way at some moment: the slot, and which of its requests.
#[derive(Default)]
pub(crate) struct Requests(Vec<(usize, u64)>);

#[derive(Default)]
struct Books {
    slots: Vec<Arc<Slot>>,
    alive: usize,
    parked: usize,
    /// Parked workers that have been told to read and have not noticed yet.
    called: usize,
    /// The last look has found all workers asleep over requests.
    stuck: bool,
    closing: bool,
}

/// The workers of a session. It knows nothing of what they do.
pub(crate) struct Pool {
    /// The usual number of workers at most,
    max: usize,
    /// and what it may grow to as long as all wait for something else.
    most: usize,
    linger: Duration,
    clients: ClientCount,
    books: Mutex<Books>,
    /// Workers that read, or are going to read after their request; changed only with the books locked.
    readers: AtomicUsize,
    /// Parked workers wait here.
    call: Condvar,
    /// The watchdog waits here.
    alarm: Condvar,
    watchdog_asleep: AtomicBool,
}

/// What a pool wants of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// One more thread: make a slot for it with [`Pool::hire`].
    Worker,
}

impl Pool {
    pub(crate) fn new(max: usize, most: usize) -> Self {
        Self {
            max,
            most: most.max(max),
            linger: LINGER,
            clients: ClientCount::new(),
            books: Mutex::default(),
            readers: AtomicUsize::new(0),
            call: Condvar::new(),
            alarm: Condvar::new(),
            watchdog_asleep: AtomicBool::new(false),
        }
    }

    /// A slot for a new worker, which is a reader from the start.
    pub(crate) fn hire(&self) -> Arc<Slot> {
        let mut books = self.books.lock();
        let is_free = |number: &usize| books.slots.iter().all(|slot| slot.number != *number);
        let number = (0..).find(is_free).unwrap_or_default();
        let slot = Arc::new(Slot::new(number));
        books.slots.push(Arc::clone(&slot));
        books.alive += 1;
        self.readers.fetch_add(1, Ordering::Relaxed);
        slot
    }

    /// A worker ends (or could not be started). One that was told to, because there are too many, has been struck out.
    pub(crate) fn dismiss(&self, slot: &Arc<Slot>) {
        let mut books = self.books.lock();
        if !books.slots.iter().any(|other| Arc::ptr_eq(other, slot)) {
            return;
        }
        if matches!(slot.state.load(Ordering::Acquire), state::READING | state::BUSY) {
            self.readers.fetch_sub(1, Ordering::Relaxed);
        }
        books.slots.retain(|other| !Arc::ptr_eq(other, slot));
        books.alive -= 1;
        self.alarm.notify_all();
    }

    /// A worker has waited long for nothing. True: it is to end, for others read, or nobody has to: [`Pool::watch`] waits for what comes.
    pub(crate) fn should_end(&self, slot: &Slot) -> bool {
        let mut books = self.books.lock();
        if books.closing || books.alive > 1 && self.readers() <= 1 {
            return false;
        }
        self.readers.fetch_sub(1, Ordering::Relaxed);
        books.slots.retain(|other| !std::ptr::eq(Arc::as_ptr(other), slot));
        books.alive -= 1;
        self.alarm.notify_all();
        true
    }

    /// The requests under way now.
    pub(crate) fn active_requests(&self) -> Requests {
        let books = self.books.lock();
        let at_work = |slot: &Arc<Slot>| Some((Arc::as_ptr(slot).addr(), slot.current_request()?));
        Requests(books.slots.iter().filter_map(at_work).collect())
    }

    /// Whether none of these is under way any more.
    pub(crate) fn has_answered(&self, these: &Requests) -> bool {
        let books = self.books.lock();
        let now = |slot: &Arc<Slot>| {
            these.0.contains(&(Arc::as_ptr(slot).addr(), slot.current_request().unwrap_or(0)))
        };
        !books.slots.iter().any(now)
    }

    /// The connection has ended: parked workers go home.
    pub(crate) fn close(&self) {
        self.books.lock().closing = true;
        self.call.notify_all();
        self.alarm.notify_all();
    }

    /// Workers that read.
    pub(crate) fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// A worker has received a request. `client`: the thread that waits for the answer, None when nobody does.
    /// `at_once`: it was there already.
    pub(crate) fn begin(&self, slot: &Slot, client: Option<u32>, at_once: bool) -> Need {
        slot.begun.store(slot.begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        slot.state.store(state::BUSY, Ordering::Release);
        if self.watchdog_asleep.load(Ordering::Relaxed) {
            let _books = self.books.lock();
            self.alarm.notify_all();
        }
        if let Some(client) = client {
            self.clients.note_client(client);
        }
        if client.is_some_and(|client| slot.learn(client, at_once)) {
            let mut books = self.books.lock();
            return self.one_more_reader(&mut books);
        }
        Need::Nothing
    }

    /// What comes now may take long: another worker reads meanwhile.
    pub(crate) fn step_aside(&self, slot: &Slot) -> Need {
        if self.max == 1 || self.clients.is_single() {
            return Need::Nothing;
        }
        let mut books = self.books.lock();
        self.relieve(slot, &mut books)
    }

    /// The request is done. False: the worker is to end.
    pub(crate) fn done(&self, slot: &Slot) -> bool {
        let swapped =
            slot.state.compare_exchange(state::BUSY, state::READING, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_ok() {
            if !slot.is_surplus() || self.readers() <= 1 {
                return true;
            }
            let mut books = self.books.lock();
            if self.readers() <= 1 {
                return !books.closing;
            }
            self.readers.fetch_sub(1, Ordering::Relaxed);
            return self.park(slot, &mut books);
        }
        // Relieved: another one reads, unless it has ended in the meantime.
        let mut books = self.books.lock();
        if self.readers() == 0 && !books.closing {
            self.readers.store(1, Ordering::Relaxed);
            slot.state.store(state::READING, Ordering::Release);
            return true;
        }
        self.park(slot, &mut books)
    }

    fn park(&self, slot: &Slot, books: &mut parking_lot::MutexGuard<'_, Books>) -> bool {
        slot.state.store(state::PARKED, Ordering::Release);
        books.parked += 1;
        while books.called == 0 && !books.closing {
            if self.call.wait_for(books, self.linger).timed_out() && books.called == 0 && !books.closing {
                books.parked -= 1;
                books.slots.retain(|other| !std::ptr::eq(Arc::as_ptr(other), slot));
                books.alive -= 1;
                return false;
            }
        }
        books.parked -= 1;
        if books.closing {
            return false;
        }
        books.called -= 1;
        slot.state.store(state::READING, Ordering::Release);
        true
    }

    fn relieve(&self, slot: &Slot, books: &mut Books) -> Need {
        let swapped =
            slot.state.compare_exchange(state::BUSY, state::RELIEVED, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            return Need::Nothing;
        }
        self.readers.fetch_sub(1, Ordering::Relaxed);
        if self.readers() > 0 {
            return Need::Nothing;
        }
        self.one_more_reader(books)
    }

    fn one_more_reader(&self, books: &mut Books) -> Need {
        if books.closing {
            return Need::Nothing;
        }
        if books.parked > books.called {
            books.called += 1;
            self.readers.fetch_add(1, Ordering::Relaxed);
            self.call.notify_one();
            return Need::Nothing;
        }
        if books.alive < self.max { Need::Worker } else { Need::Nothing }
    }

    /// Watches over the workers until the connection has ended. `hire` starts one more; `pulse` hears after each look
    /// how many requests were begun since the one before, and how many ticks that is ago; true: it wants to hear after each tick. `rest`
    /// waits for a request when there is no worker.
    pub(crate) fn watch(
        &self,
        mut hire: impl FnMut(),
        mut pulse: impl FnMut(u64, u32) -> bool,
        mut rest: impl FnMut(),
    ) {
        let mut seen: Vec<SlotSnapshot> = Vec::new();
        let (mut quiet, mut ticks) = (0, 1);
        let mut books = self.books.lock();
        while books.alive > 0 || !books.closing {
            if books.alive == 0 {
                seen.clear();
                (quiet, ticks) = (0, 1);
                parking_lot::MutexGuard::unlocked(&mut books, || {
                    rest();
                    hire();
                });
                if books.alive == 0 {
                    // It could not be started.
                    self.alarm.wait_for(&mut books, TICK * TICKS_MAX);
                }
                continue;
            }
            if quiet >= QUIET_TICKS {
                self.watchdog_asleep.store(true, Ordering::Relaxed);
                // A worker that has not seen that may just have begun, and wakes nobody. It has until the end of this wait to be seen.
                self.alarm.wait_for(&mut books, TICK * TICKS_MAX);
                if books.alive > 0 && is_quiet(&books, &seen) {
                    self.alarm.wait(&mut books);
                }
                self.watchdog_asleep.store(false, Ordering::Relaxed);
                (quiet, ticks) = (0, 1);
                seen.clear();
            } else {
                self.alarm.wait_for(&mut books, TICK * ticks);
            }
            self.clients.pass(ticks);
            let tick = self.tick(&mut books, &mut seen, Slot::is_asleep);
            quiet = if tick.progress { 0 } else { quiet + ticks };
            // It may open a file, and if that lies on this mount, a worker has to answer first.
            let steady = parking_lot::MutexGuard::unlocked(&mut books, || pulse(tick.requests, ticks));
            ticks = if tick.busy || steady { 1 } else { (ticks * 2).min(TICKS_MAX) };
            if tick.hires > 0 {
                parking_lot::MutexGuard::unlocked(&mut books, || (0..tick.hires).for_each(|_| hire()));
            }
        }
    }

    /// Relieves who has been asleep over one request since the last tick, or awake over it for many.
    fn tick(&self, books: &mut Books, seen: &mut Vec<SlotSnapshot>, asleep: impl Fn(&Slot) -> bool) -> Tick {
        let mut result = Tick::default();
        seen.retain(|seen| books.slots.iter().any(|slot| Arc::ptr_eq(slot, &seen.slot)));
        for slot in books.slots.clone() {
            let begun = slot.begun.load(Ordering::Relaxed);
            let busy = slot.state.load(Ordering::Acquire) == state::BUSY;
            result.busy |= busy;
            let Some(seen) = seen.iter_mut().find(|seen| Arc::ptr_eq(&seen.slot, &slot)) else {
                seen.push(SlotSnapshot { slot, begun, ticks: 0 });
                result.progress = true;
                continue;
            };
            result.progress |= busy || seen.begun != begun;
            result.requests += begun - seen.begun;
            seen.ticks = if busy && seen.begun == begun { seen.ticks + 1 } else { 0 };
            seen.begun = begun;
            if seen.ticks > 0
                && (seen.ticks >= RUNNING_TICKS || asleep(&slot))
                && self.relieve(&slot, books) == Need::Worker
            {
                result.hires += 1;
            }
        }
        // In two looks one after the other: who has just gone to sleep may wake.
        let stuck = self.is_stuck(books, asleep);
        if stuck && books.stuck && result.hires == 0 {
            result.hires = 1;
        }
        books.stuck = stuck && result.hires == 0;
        result.busy |= stuck;
        result
    }

    /// Whether nobody reads, everybody sleeps over a request, and there may be one more.
    fn is_stuck(&self, books: &Books, asleep: impl Fn(&Slot) -> bool) -> bool {
        let waits = |slot: &Arc<Slot>| slot.state.load(Ordering::Acquire) == state::RELIEVED && asleep(slot);
        self.readers() == 0
            && !books.closing
            && (self.max..self.most).contains(&books.alive)
            && books.slots.iter().all(waits)
    }
}

/// Whether no worker is at work, or has been since it was looked at.
fn is_quiet(books: &Books, seen: &[SlotSnapshot]) -> bool {
    books.slots.iter().all(|slot| {
        let was_seen = seen
            .iter()
            .any(|seen| Arc::ptr_eq(&seen.slot, slot) && seen.begun == slot.begun.load(Ordering::Relaxed));
        was_seen && slot.state.load(Ordering::Acquire) != state::BUSY
    })
}

/// The client thread that waits for the answer to the request in `bytes`. None: nobody does, or the kernel does for
/// reasons of its own (writing back), or somebody in a foreign PID namespace, who cannot be told from others.
pub(crate) fn client(bytes: &[u8]) -> Option<u32> {
    let (header, _) = wire::InHeader::read_from_prefix(bytes).ok()?;
    let unattended = matches!(
        Opcode::from_u32(header.opcode),
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::Release | Opcode::Releasedir)
    );
    (header.pid != 0 && !unattended).then_some(header.pid)
}

/// Whether an operation may well take longer than waking another worker does.
pub(crate) fn is_slow(request: &Request<'_>, slow_xattr: Option<&CStr>) -> bool {
    match &request.operation {
        Operation::Fsync { .. }
        | Operation::Fsyncdir { .. }
        | Operation::Fallocate { .. }
        | Operation::CopyFileRange { .. } => true,
        Operation::Read { args } => args.size >= LONG_IO,
        Operation::Write { args, .. } => args.size >= LONG_IO,
        Operation::Setattr { args } => args.valid & wire::SetattrValid::SIZE.bits() != 0,
        Operation::Getxattr { name, .. } => slow_xattr.is_some_and(|slow| *name == slow),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
