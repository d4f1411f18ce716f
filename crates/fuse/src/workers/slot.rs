//! One worker's place in the [pool](crate::workers::pool): what it is doing, and what it has seen of its clients.

use crate::workers::thread_state::ThreadState;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// So many requests that other clients had kept waiting for us, in a row, ask for one more reader.
pub(crate) const BACKLOG: u32 = 8;
/// After so many requests a reader looks back whether it was needed beside the others.
pub(crate) const WINDOW: u32 = 128;
/// With fewer backlogged requests among them it was not.
pub(crate) const NEEDED: u32 = WINDOW / 8;

/// What a worker is doing, as the watchdog sees it.
pub(crate) mod state {
    /// Waits for a request; so does a new worker.
    pub(crate) const READING: u32 = 0;
    /// Not a reader.
    pub(crate) const PARKED: u32 = 1;
    /// Works on a request and is the one to read the next.
    pub(crate) const BUSY: u32 = 2;
    /// Works on a request, and another worker reads meanwhile.
    pub(crate) const RELIEVED: u32 = 3;
}

/// One worker's place in the pool.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// Which of the workers it is: below the most that there are at a time.
    pub(crate) number: usize,
    pub(crate) state: AtomicU32,
    /// Requests that it has begun.
    pub(crate) begun: AtomicU64,
    /// The client thread of the last request; this and what follows is its own worker's alone.
    client: AtomicU32,
    /// Requests in a row that were there already, each from another client than the one before.
    backlog: AtomicU32,
    /// Requests since the last look back,
    pub(crate) window: AtomicU32,
    /// and how many of them were backlog.
    backlog_in_window: AtomicU32,
    /// The worker's thread, once it runs.
    thread: OnceLock<ThreadState>,
}

impl Slot {
    pub(crate) fn new(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    /// The calling thread is the worker.
    pub(crate) fn take(&self) {
        if let Some(thread) = ThreadState::of_this_thread() {
            let _ = self.thread.set(thread);
        }
    }

    /// The number, from 1, of the request that its worker works on; None: on none.
    pub(crate) fn current_request(&self) -> Option<u64> {
        let busy = matches!(self.state.load(Ordering::Acquire), state::BUSY | state::RELIEVED);
        busy.then(|| self.begun.load(Ordering::Relaxed))
    }

    /// Whether its worker sleeps in the kernel, for all that can be known.
    pub(crate) fn is_asleep(&self) -> bool {
        self.thread.get().is_none_or(ThreadState::is_asleep)
    }

    /// Notes a request of `client`, and says whether there is enough backlog for one more reader.
    pub(crate) fn learn(&self, client: u32, at_once: bool) -> bool {
        // Plain loads and stores: nobody else writes here.
        let add = |counter: &AtomicU32| counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let other = self.client.load(Ordering::Relaxed) != client;
        self.client.store(client, Ordering::Relaxed);
        add(&self.window);
        if !(at_once && other) {
            self.backlog.store(0, Ordering::Relaxed);
            return false;
        }
        add(&self.backlog_in_window);
        let backlog = self.backlog.load(Ordering::Relaxed) + 1;
        self.backlog.store(backlog % BACKLOG, Ordering::Relaxed);
        backlog == BACKLOG
    }

    /// At the end of a window: whether it was worth reading beside others. Then the next window begins.
    pub(crate) fn is_surplus(&self) -> bool {
        if self.window.load(Ordering::Relaxed) < WINDOW {
            return false;
        }
        self.window.store(0, Ordering::Relaxed);
        let backlog = self.backlog_in_window.load(Ordering::Relaxed);
        self.backlog_in_window.store(0, Ordering::Relaxed);
        backlog < NEEDED
    }
}
