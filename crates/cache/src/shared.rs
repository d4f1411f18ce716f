//! A cache for many threads.
//!
//! One lock holds the tables. It is never held while a storage is read, and a hit ([`crate::open_file`]) does not take it.

use crate::counter::Counter;
use crate::error::Result;
use crate::fair_queue::DEPTH;
use crate::file_blocks::{Entry, SharedMemory};
use crate::key::{BlockIndex, Key, Object};
use crate::lane::{Lanes, Storages};
use crate::memory::Memory;
use crate::shares::{Container, IDLE_TICKS, LENT_SHIFT_MAX};
use crate::slab::{Limits, PredecessorFds, RecoveredFile, SlabMemory};
use crate::stats::{ContainerStats, Stats};
use crate::store::{Config, Store};
use crate::sync::{Gate, Mutex};
use hashbrown::HashMap;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// After so many bytes have come in, it is asked again how much room there is.
const GROWTH_BYTES: u64 = 2 << 20;
/// Blocks that go in one piece where there is too little room.
const GIVEN_AT_ONCE: usize = 64;

/// After so many seconds without anybody all are as idle as they can be.
const TICKS_MAX: u64 = (IDLE_TICKS + LENT_SHIFT_MAX) as u64;

/// How much memory there is for a cache.
pub trait Room: Send + Sync {
    /// How many bytes it may hold now, where it holds `held`. It is asked without a lock.
    fn bytes(&self, held: u64) -> u64;
}

/// A cache that many threads use at once.
pub struct Shared<M: Memory> {
    pub(crate) memory: Arc<M>,
    pub(crate) tables: Mutex<Tables<M>>,
    /// None: there is always enough.
    room: Option<Box<dyn Room>>,
    /// Bytes that have come in since it was last asked how much room there is.
    grown: AtomicU64,
    /// What it has last been told of the time.
    seconds: AtomicU64,
    pub(crate) storages: Storages,
}

/// What the one lock is for.
pub(crate) struct Tables<M: Memory> {
    pub(crate) store: Store<SharedMemory<M>>,
    pub(crate) fetches: HashMap<(Key, BlockIndex), Arc<Gate>>,
    /// Hits that the store has not heard of, and how many there were when time last went on.
    hits: Vec<(Container, Arc<Counter>, u64)>,
}

impl<M: Memory> Shared<M> {
    /// An empty one.
    pub fn new(config: Config, memory: M) -> Arc<Self> {
        Self::with(config, memory, DEPTH, None)
    }

    /// An empty one that has at most `depth` fetches under way at each storage, and never holds more than there is room for.
    pub fn with(config: Config, memory: M, depth: u32, room: Option<Box<dyn Room>>) -> Arc<Self> {
        let memory = Arc::new(memory);
        let mut store = Store::new(config, SharedMemory(Arc::clone(&memory)));
        if let Some(room) = &room {
            // Nothing is there yet that would have to go.
            store.limit(room.bytes(0), 0).ok();
        }
        Arc::new(Self {
            memory,
            room,
            grown: AtomicU64::new(0),
            tables: Mutex::new(Tables { store, fetches: HashMap::new(), hits: Vec::new() }),
            seconds: AtomicU64::new(0),
            storages: Storages::new(depth),
        })
    }

    /// A further container, with its weight. It leaves when this is dropped and none of its files is open.
    pub fn join(self: &Arc<Self>, weight: u32) -> Result<Arc<Member<M>>> {
        let hits = Arc::new(Counter::default());
        let mut tables = self.tables.lock();
        let container = tables.store.join(weight)?;
        tables.hits.push((container, Arc::clone(&hits), 0));
        Ok(Arc::new(Member { shared: Arc::clone(self), container, hits, lanes: Lanes::new(weight) }))
    }

    /// Nothing of a file is found any more, nor comes in by fetches that are under way.
    pub fn invalidate(&self, object: Object) {
        self.tables.lock().store.invalidate(object);
    }

    /// It may hold so many bytes, if those are more than so far.
    pub fn grow(&self, capacity: u64) {
        self.tables.lock().store.grow(capacity);
    }

    /// Asks how much room there is, and gives up what there is none for. To be called now and then; the cache itself does as it grows.
    pub fn look(&self) {
        let Some(room) = &self.room else { return };
        self.grown.store(0, Relaxed);
        let held = self.tables.lock().store.size();
        let ceiling = room.bytes(held);
        // The lock for some blocks at a time: others read meanwhile.
        while matches!(self.tables.lock().store.limit(ceiling, GIVEN_AT_ONCE), Ok(false)) {}
    }

    /// So many bytes are about to come in.
    pub(crate) fn grows(&self, bytes: u64) {
        if self.room.is_some() && self.grown.fetch_add(bytes, Relaxed) + bytes >= GROWTH_BYTES {
            self.look();
        }
    }

    /// So many seconds have passed since a moment that stays. To be told at least once a second: only the first time in a second does
    /// anything.
    pub fn time_is(&self, seconds: u64) {
        // Read first, so that the line stays with all processors.
        if self.seconds.load(Relaxed) >= seconds {
            return;
        }
        let before = self.seconds.fetch_max(seconds, Relaxed);
        for _ in 0..seconds.saturating_sub(before).min(TICKS_MAX) {
            self.tick();
        }
    }

    fn tick(&self) {
        let mut tables = self.tables.lock();
        let Tables { store, hits, .. } = &mut *tables;
        store.tick();
        for (container, hits, before) in hits {
            let now = hits.sum();
            if now > *before {
                *before = now;
                store.used(*container);
            }
        }
    }

    /// Its bounds, sizes and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let tables = self.tables.lock();
        let mut stats = tables.store.stats();
        for (container, hits, _) in &tables.hits {
            let hits = hits.sum();
            stats.hits += hits;
            if let Some(stats) = stats.containers.iter_mut().find(|stats| stats.container == *container) {
                stats.hits += hits;
            }
        }
        stats
    }

    /// Panics where a sum is not what it is the sum of, or a fetch is under way; for tests, when nobody reads.
    pub fn audit(&self) {
        let tables = self.tables.lock();
        tables.store.audit();
        assert!(tables.fetches.is_empty(), "all fetches have ended");
    }
}

impl Shared<SlabMemory> {
    /// One that holds what a predecessor has left, as far as that can be believed and there is room for it, and that a successor can go on
    /// with. All of it is nobody's at first.
    pub fn resume(
        config: Config,
        left: PredecessorFds,
        depth: u32,
        room: Option<Box<dyn Room>>,
    ) -> std::result::Result<Arc<Self>, Errno> {
        let limits = Limits { bytes: config.capacity, files: config.files };
        let (memory, found) = SlabMemory::adopt(left, limits)?;
        let shared = Self::with(config, memory, depth, room);
        for RecoveredFile { version, memory, blocks, sealed } in found {
            let entry = Entry::with_blocks(version, memory, |index| blocks.binary_search(&index).is_ok());
            // What cannot be taken is dropped.
            shared.tables.lock().store.adopt(version, entry, &blocks, sealed).ok();
        }
        shared.look();
        Ok(shared)
    }
}

/// A container in a cache.
pub struct Member<M: Memory> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) container: Container,
    pub(crate) hits: Arc<Counter>,
    pub(crate) lanes: Lanes,
}

impl<M: Memory> Member<M> {
    /// What it uses. None: it has left.
    #[must_use]
    pub fn stats(&self) -> Option<ContainerStats> {
        self.shared.stats().containers.into_iter().find(|stats| stats.container == self.container)
    }

    /// Another weight, from now on. Nothing goes at once: shares follow as blocks come.
    pub fn set_weight(&self, weight: u32) -> Result<()> {
        self.shared.tables.lock().store.set_weight(self.container, weight)?;
        self.lanes.set_weight(weight);
        Ok(())
    }

    /// The cache that it is in.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared<M>> {
        &self.shared
    }
}

impl<M: Memory> Drop for Member<M> {
    fn drop(&mut self) {
        let mut tables = self.shared.tables.lock();
        tables.hits.retain(|(container, ..)| *container != self.container);
        // It is there until now.
        tables.store.leave(self.container).ok();
    }
}
