//! Whose fetch goes next where a storage has enough to do: start-time fair queueing (SFQ: Goyal, Vin and Cheng, SIGCOMM 1996) with a
//! depth (SFQ(D): Jin, Chase and Kaur, SIGMETRICS 2004).
//!
//! At most so many fetches as the depth are under way at a storage. As long as there are fewer, nobody waits, takes a lock or allocates.
//! Beyond that, each fetch has a *start*: where its container's last one ended in virtual time, or now, if that is later. It ends later
//! by its cost divided by the container's weight. Whenever one ends, the one that waits with the earliest start goes. So all that wait
//! have parts by weight, none is passed over for ever, who comes back after a while has saved up nothing, and the storage is never
//! idle while somebody waits.

use crate::key::BLOCK_BYTES;
use crate::shares::WEIGHT_MAX;
use crate::sync::{AtomicU32, AtomicU64, Gate, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Fetches under way at one storage. With fewer, one that takes long leaves it idle; with more, whoever is heavier waits for longer
/// behind what has been let go before: eight of 1 MiB each take some milliseconds.
pub const DEPTH: u32 = 8;
/// What an operation costs beside its bytes: as much as can be sent while one is answered.
pub const OPERATION_BYTES: u64 = BLOCK_BYTES;

/// Costs are counted in units of so many bytes, so that a weight of 1 has room for a hundred petabytes.
const UNIT_BYTES: u64 = 64;
/// How many are under way stands in the lower half of a word, how many wait in the upper one.
const WAITS: u64 = 1 << 32;

/// The fetches from one storage.
pub struct Fair {
    depth: u64,
    /// Nobody waits unless as many are under way as may be. Who begins to wait, or ceases to, holds the lock.
    word: AtomicU64,
    /// The latest start of one that has been let go.
    now: AtomicU64,
    waiting: Mutex<QueuedFetch>,
}

#[derive(Default)]
struct QueuedFetch {
    next: u64,
    queue: BinaryHeap<Reverse<Waiter>>,
}

struct Waiter {
    start: u64,
    /// Among equals the first.
    order: u64,
    gate: Arc<Gate>,
}

impl Waiter {
    const fn rank(&self) -> (u64, u64) {
        (self.start, self.order)
    }
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Waiter {}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// The fetches of one container from one storage.
#[derive(Debug)]
pub struct Flow {
    weight: AtomicU32,
    /// Where the next one starts at the earliest.
    end: AtomicU64,
}

impl Flow {
    /// Of a container with this weight, which is at least 1.
    #[must_use]
    pub fn new(weight: u32) -> Self {
        Self { weight: AtomicU32::new(weight.max(1)), end: AtomicU64::new(0) }
    }

    /// Another weight, from the next fetch on.
    pub fn set_weight(&self, weight: u32) {
        self.weight.store(weight.max(1), Relaxed);
    }

    /// The start of a fetch that comes now, and so the earliest one of the next.
    fn start(&self, now: u64, bytes: u64) -> u64 {
        let cost = bytes.saturating_add(OPERATION_BYTES) / UNIT_BYTES * u64::from(WEIGHT_MAX);
        let takes = cost / u64::from(self.weight.load(Relaxed));
        let mut end = self.end.load(Relaxed);
        loop {
            let start = end.max(now);
            match self.end.compare_exchange_weak(end, start.saturating_add(takes), Relaxed, Relaxed) {
                Ok(_) => return start,
                Err(other) => end = other,
            }
        }
    }
}

/// A place among those that are under way, or that wait. It is free again when this is dropped.
#[must_use = "the place is free again when this is dropped"]
pub struct Permit<'a> {
    fair: &'a Fair,
    /// None: it did not have to wait.
    gate: Option<Arc<Gate>>,
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("is_granted", &self.is_granted()).finish()
    }
}

impl fmt::Debug for Fair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (under_way, waiting) = self.counts();
        f.debug_struct("Fair")
            .field("under_way", &under_way)
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

impl Fair {
    /// For a storage at which at most `depth` fetches are under way; at least 1.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        Self {
            depth: u64::from(depth.max(1)),
            word: AtomicU64::new(0),
            now: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    /// How many are under way, and how many wait.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let word = self.word.load(Relaxed);
        (word % WAITS, word / WAITS)
    }

    /// A place for a fetch of so many bytes, for which [`Permit::wait`] waits.
    pub fn ask(&self, flow: &Flow, bytes: u64) -> Permit<'_> {
        let start = flow.start(self.now.load(Relaxed), bytes);
        if self.enter() {
            return self.begun(start);
        }
        let mut waiting = self.waiting.lock();
        // Once more, now that nobody leaves without this one: either there is room, or whoever ends next sees that somebody waits.
        let mut word = self.word.load(Relaxed);
        loop {
            let has_room = word % WAITS < self.depth;
            let next = if has_room { word + 1 } else { word + WAITS };
            match self.word.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) if has_room => return self.begun(start),
                Ok(_) => break,
                Err(other) => word = other,
            }
        }
        let gate = Arc::<Gate>::default();
        let order = waiting.next;
        waiting.next += 1;
        waiting.queue.push(Reverse(Waiter { start, order, gate: Arc::clone(&gate) }));
        Permit { fair: self, gate: Some(gate) }
    }

    /// Whether there was room.
    fn enter(&self) -> bool {
        let mut word = self.word.load(Relaxed);
        while word % WAITS < self.depth {
            match self.word.compare_exchange_weak(word, word + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
        false
    }

    fn begun(&self, start: u64) -> Permit<'_> {
        self.now.fetch_max(start, Relaxed);
        Permit { fair: self, gate: None }
    }

    /// One has ended: the next one goes in its place.
    fn leave(&self) {
        let mut word = self.word.load(Relaxed);
        while word < WAITS {
            match self.word.compare_exchange_weak(word, word - 1, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(other) => word = other,
            }
        }
        self.grant(&mut self.waiting.lock());
    }

    fn grant(&self, waiting: &mut QueuedFetch) {
        let Some(Reverse(next)) = waiting.queue.pop() else {
            // It has gone meanwhile.
            self.word.fetch_sub(1, AcqRel);
            return;
        };
        self.word.fetch_sub(WAITS, AcqRel);
        self.now.fetch_max(next.start, Relaxed);
        next.gate.open();
    }

    /// One that waits goes away. False: its turn has come.
    fn cancel(&self, gate: &Arc<Gate>) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.queue.len();
        waiting.queue.retain(|Reverse(waiter)| !Arc::ptr_eq(&waiter.gate, gate));
        let was_there = waiting.queue.len() < before;
        if was_there {
            self.word.fetch_sub(WAITS, AcqRel);
        }
        was_there
    }
}

impl Permit<'_> {
    /// Waits until it has come.
    pub fn wait(&self) {
        if let Some(gate) = &self.gate {
            gate.wait();
        }
    }

    /// Whether it has come.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_open())
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let waits = self.gate.as_ref().filter(|gate| !gate.is_open());
        if !waits.is_some_and(|gate| self.fair.cancel(gate)) {
            self.fair.leave();
        }
    }
}
