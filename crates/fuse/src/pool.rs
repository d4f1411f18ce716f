//! Which worker threads read from the device, and when there are more of them.
//!
//! The kernel wakes one of the threads that wait in a read for every request it queues. With one client, every
//! thread too many is then a needless wake-up on another processor, which costs more than the operation. So as
//! few *readers* as possible wait for requests, normally one, and the other workers are parked. The number grows
//!
//! - when a reader finds the next request waiting already, several times in a row (several clients),
//! - when it receives something that may take long: it stops being a reader first (see [`takes_long`]),
//! - when it has been busy with one request from one tick to the next ([`TICK`]): the watchdog, which is
//!   the thread that called `run`, takes its place as a reader away and gives it to another,
//!
//! and shrinks when a reader has had to wait many times in a row while there are others.

use crate::request::{Operation, Request};
use crate::wire;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How often the watchdog looks, while there is work.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// Ticks without a request after which the watchdog sleeps until the next one.
const QUIET_TICKS: u32 = 25;
/// So many requests that were waiting already, in a row, ask for one more reader.
const BACKLOG: u32 = 8;
/// So many waits in a row make a reader superfluous, if there are others.
const WAITS: u32 = 64;
/// READ and WRITE of at least so many bytes count as long.
const LONG_IO: u32 = 64 << 10;

/// What a worker is doing, as the watchdog sees it.
mod state {
    /// Not a reader.
    pub(super) const PARKED: u32 = 0;
    /// Waits for a request.
    pub(super) const READING: u32 = 1;
    /// Works on a request and is the one to read the next.
    pub(super) const BUSY: u32 = 2;
    /// Works on a request, and another worker reads meanwhile.
    pub(super) const RELIEVED: u32 = 3;
}

/// One worker's place in the pool.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Seat {
    state: AtomicU32,
    /// Requests that it has begun.
    begun: AtomicU64,
    /// Requests in a row that were there already; its own worker's alone.
    backlog: AtomicU32,
    /// Waits in a row; its own worker's alone.
    waits: AtomicU32,
}

#[derive(Default)]
struct Books {
    seats: Vec<Arc<Seat>>,
    alive: usize,
    parked: usize,
    /// Parked workers that have been told to read and have not noticed yet.
    called: usize,
    closing: bool,
}

/// The workers of a session. It knows nothing of what they do.
pub(crate) struct Pool {
    max: usize,
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
    /// One more thread: make a seat for it with [`Pool::hire`].
    Worker,
}

impl Pool {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            books: Mutex::default(),
            readers: AtomicUsize::new(0),
            call: Condvar::new(),
            alarm: Condvar::new(),
            watchdog_asleep: AtomicBool::new(false),
        }
    }

    /// A seat for a new worker, which is a reader from the start.
    pub(crate) fn hire(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat {
            state: AtomicU32::new(state::READING),
            begun: AtomicU64::new(0),
            backlog: AtomicU32::new(0),
            waits: AtomicU32::new(0),
        });
        let mut books = self.books.lock();
        books.seats.push(Arc::clone(&seat));
        books.alive += 1;
        self.readers.fetch_add(1, Ordering::Relaxed);
        seat
    }

    /// A worker ends (or could not be started).
    pub(crate) fn dismiss(&self, seat: &Arc<Seat>) {
        let mut books = self.books.lock();
        if matches!(seat.state.load(Ordering::Acquire), state::READING | state::BUSY) {
            self.readers.fetch_sub(1, Ordering::Relaxed);
        }
        books.seats.retain(|other| !Arc::ptr_eq(other, seat));
        books.alive -= 1;
        self.alarm.notify_all();
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

    /// A worker has received a request. `at_once`: it was there already.
    pub(crate) fn begin(&self, seat: &Seat, at_once: bool) -> Need {
        seat.begun.store(seat.begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        seat.state.store(state::BUSY, Ordering::Release);
        if self.watchdog_asleep.load(Ordering::Relaxed) {
            let _books = self.books.lock();
            self.alarm.notify_all();
        }
        if !at_once {
            seat.backlog.store(0, Ordering::Relaxed);
            seat.waits.store(seat.waits.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
            return Need::Nothing;
        }
        seat.waits.store(0, Ordering::Relaxed);
        let backlog = seat.backlog.load(Ordering::Relaxed) + 1;
        seat.backlog.store(backlog % BACKLOG, Ordering::Relaxed);
        if backlog < BACKLOG {
            return Need::Nothing;
        }
        let mut books = self.books.lock();
        self.one_more_reader(&mut books)
    }

    /// What comes now may take long: another worker reads meanwhile.
    pub(crate) fn step_aside(&self, seat: &Seat) -> Need {
        if self.max == 1 {
            return Need::Nothing;
        }
        let mut books = self.books.lock();
        self.relieve(seat, &mut books)
    }

    /// The request is done. False: the worker is to end.
    pub(crate) fn done(&self, seat: &Seat) -> bool {
        let swapped =
            seat.state.compare_exchange(state::BUSY, state::READING, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_ok() {
            if seat.waits.load(Ordering::Relaxed) < WAITS || self.readers() <= 1 {
                return true;
            }
            // Many waits: is it needed at all?
            let mut books = self.books.lock();
            if self.readers() <= 1 {
                return !books.closing;
            }
            seat.waits.store(0, Ordering::Relaxed);
            self.readers.fetch_sub(1, Ordering::Relaxed);
            return self.park(seat, &mut books);
        }
        // Relieved: another one reads, unless it has ended in the meantime.
        let mut books = self.books.lock();
        if self.readers() == 0 && !books.closing {
            self.readers.store(1, Ordering::Relaxed);
            seat.state.store(state::READING, Ordering::Release);
            return true;
        }
        self.park(seat, &mut books)
    }

    fn park(&self, seat: &Seat, books: &mut parking_lot::MutexGuard<'_, Books>) -> bool {
        seat.state.store(state::PARKED, Ordering::Release);
        books.parked += 1;
        while books.called == 0 && !books.closing {
            self.call.wait(books);
        }
        books.parked -= 1;
        if books.closing {
            return false;
        }
        books.called -= 1;
        seat.state.store(state::READING, Ordering::Release);
        true
    }

    fn relieve(&self, seat: &Seat, books: &mut Books) -> Need {
        let swapped =
            seat.state.compare_exchange(state::BUSY, state::RELIEVED, Ordering::AcqRel, Ordering::Acquire);
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

    /// Watches over the workers until the last one has ended. `hire` starts one more; `pulse` hears after each tick how
    /// many requests were begun in it.
    pub(crate) fn watch(&self, mut hire: impl FnMut(), mut pulse: impl FnMut(u64)) {
        let mut seen: Vec<(Arc<Seat>, u64)> = Vec::new();
        let mut quiet = 0;
        let mut books = self.books.lock();
        while books.alive > 0 {
            if quiet >= QUIET_TICKS {
                self.watchdog_asleep.store(true, Ordering::Relaxed);
                self.alarm.wait(&mut books);
                self.watchdog_asleep.store(false, Ordering::Relaxed);
                quiet = 0;
                seen.clear();
            } else {
                self.alarm.wait_for(&mut books, TICK);
            }
            let mut progress = false;
            let mut hires = 0;
            let mut requests = 0;
            for seat in books.seats.clone() {
                let begun = seat.begun.load(Ordering::Relaxed);
                let before = seen.iter().find(|(other, _)| Arc::ptr_eq(other, &seat)).map(|(_, n)| *n);
                let busy = seat.state.load(Ordering::Acquire) == state::BUSY;
                progress |= busy || before != Some(begun);
                requests += begun - before.unwrap_or(begun).min(begun);
                // Busy with the same request as a tick ago.
                if busy && before == Some(begun) && self.relieve(&seat, &mut books) == Need::Worker {
                    hires += 1;
                }
            }
            seen.clear();
            seen.extend(
                books.seats.iter().map(|seat| (Arc::clone(seat), seat.begun.load(Ordering::Relaxed))),
            );
            quiet = if progress { 0 } else { quiet + 1 };
            pulse(requests);
            if hires > 0 {
                parking_lot::MutexGuard::unlocked(&mut books, || (0..hires).for_each(|_| hire()));
            }
        }
    }
}

/// Whether an operation may well take longer than waking another worker does.
pub(crate) fn takes_long(request: &Request<'_>) -> bool {
    match &request.operation {
        Operation::Fsync { .. }
        | Operation::Fsyncdir { .. }
        | Operation::Fallocate { .. }
        | Operation::CopyFileRange { .. } => true,
        Operation::Read { args } => args.size >= LONG_IO,
        Operation::Write { args, .. } => args.size >= LONG_IO,
        Operation::Setattr { args } => args.valid & wire::SetattrValid::SIZE.bits() != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn backlog_asks_for_one_more_reader() {
        let pool = Pool::new(2);
        let seat = pool.hire();
        for i in 1..=3 * BACKLOG {
            let need = pool.begin(&seat, true);
            assert_eq!(need == Need::Worker, i % BACKLOG == 0, "request {i}");
            assert!(pool.done(&seat));
        }
        for _ in 0..1000 {
            assert_eq!(pool.begin(&seat, false), Need::Nothing);
            assert!(pool.done(&seat));
        }
        let other = pool.hire();
        assert_eq!(pool.readers(), 2);
        for _ in 0..2 * BACKLOG {
            assert_eq!(pool.begin(&seat, true), Need::Nothing, "no more than the limit");
            assert!(pool.done(&seat));
        }
        pool.dismiss(&other);
        assert_eq!(pool.readers(), 1);
    }

    #[test]
    fn who_steps_aside_reads_again_if_nobody_else_does() {
        let pool = Pool::new(2);
        let seat = pool.hire();
        assert_eq!(pool.begin(&seat, false), Need::Nothing);
        assert_eq!(pool.step_aside(&seat), Need::Worker);
        assert_eq!(pool.readers(), 0);
        // The other one could not be started.
        assert!(pool.done(&seat));
        assert_eq!(pool.readers(), 1);
    }

    #[test]
    fn parked_workers_are_called_and_sent_home() {
        let pool = Arc::new(Pool::new(2));
        let (first, second) = (pool.hire(), pool.hire());
        let parked = {
            let (pool, second) = (Arc::clone(&pool), Arc::clone(&second));
            std::thread::spawn(move || {
                let mut rounds = 0;
                loop {
                    // Nothing but waits, and another reader: it is parked.
                    let _ = pool.begin(&second, false);
                    if !pool.done(&second) {
                        return rounds;
                    }
                    rounds += 1;
                }
            })
        };
        let begin = Instant::now();
        while pool.readers() > 1 {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        let _ = pool.begin(&first, false);
        assert_eq!(pool.step_aside(&first), Need::Nothing, "the parked one is called");
        assert_eq!(pool.readers(), 1);
        pool.close();
        assert!(!pool.done(&first), "another one reads");
        // The second is the only reader now; it is sent home by the device, not by the pool. Here: by parking.
        let _ = pool.hire();
        assert!(parked.join().unwrap() >= u64::from(WAITS) - 1);
    }

    #[test]
    fn the_watchdog_relieves_who_is_stuck() {
        let pool = Arc::new(Pool::new(2));
        let seat = pool.hire();
        let watchdog = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || {
                let mut hired = Vec::new();
                pool.watch(|| hired.push(pool.hire()), |_| ());
                hired.len()
            })
        };
        let _ = pool.begin(&seat, false);
        let begin = Instant::now();
        while pool.books.lock().alive < 2 {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        let others: Vec<_> =
            pool.books.lock().seats.iter().filter(|other| !Arc::ptr_eq(other, &seat)).cloned().collect();
        pool.dismiss(&seat);
        others.iter().for_each(|seat| pool.dismiss(seat));
        assert_eq!(watchdog.join().unwrap(), 1);
    }
}
