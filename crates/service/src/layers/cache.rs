//! The cache through which lower layers are read, where a mount asks for one.

use crate::config::{Cache, Sharing};
use crate::failure::Failure;
use crate::instance::stats::CacheStats;
use crate::process::memory_group;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vellum_branch::{CachedBranch, SETTLE};
use vellum_cache::{Config, DEPTH, Kind, Packed, Room, Shared};
use vellum_vfs::Branch;

/// One in so many of the process's descriptors may be a file of the cache.
const DESCRIPTORS: u64 = 8;
/// How often it is looked at least whether others need the memory of the cache, where it is limited,
const LOOK: Duration = Duration::from_millis(250);
/// and whether it is, where it is not. The cache counts its seconds by that, too.
const LOOK_UNLIMITED: Duration = Duration::from_secs(1);
/// Time between two looks at least: the kernel says for every 2 MiB that it looks for memory.
const PAUSE: Duration = Duration::from_millis(4);

/// A mount in the cache.
pub(crate) struct Member(Arc<vellum_cache::Member<Packed>>);

/// What the service's control groups leave to it.
struct InGroups;

impl Room for InGroups {
    fn bytes(&self, held: u64) -> u64 {
        memory_group::own().room(held)
    }
}

impl Member {
    /// A further mount in the process's one cache, which is there as long as one of its mounts is.
    pub(crate) fn new(wanted: Cache, weight: u16) -> Result<Self, Failure> {
        static ONE: Mutex<Weak<Shared<Packed>>> = Mutex::new(Weak::new());
        let mut one = ONE.lock();
        let cache = one.upgrade().unwrap_or_else(|| {
            let files = usize::try_from(vellum_sys::descriptor_limit() / DESCRIPTORS).unwrap_or(usize::MAX);
            let config = Config { capacity: wanted.bytes, files, policy: Kind::default() };
            Shared::with(config, Packed::default(), DEPTH, Some(Box::new(InGroups)))
        });
        cache.grow(wanted.bytes);
        *one = Arc::downgrade(&cache);
        let failed = |e| Failure::system("the cache of layers").because(e);
        Ok(Self(cache.join(weight.into()).map_err(failed)?))
    }

    /// Another weight, from now on.
    pub(crate) fn set_weight(&self, weight: u16) -> Result<(), vellum_cache::Error> {
        self.0.set_weight(weight.into())
    }

    /// Sees to it, as long as the cache is there, that it shrinks when others in the service's control groups need the memory, and that
    /// time goes on in it, without which nobody would be idle. Starts a thread, the first time that a mount in it is served.
    pub(crate) fn watch(&self) -> std::io::Result<()> {
        static WATCHED: Mutex<Weak<Shared<Packed>>> = Mutex::new(Weak::new());
        let cache = Arc::downgrade(self.0.shared());
        let mut watched = WATCHED.lock();
        if watched.ptr_eq(&cache) {
            return Ok(());
        }
        let mine = cache.clone();
        std::thread::Builder::new().name("vellum-memory".into()).spawn(move || {
            let begun = Instant::now();
            while let Some(cache) = mine.upgrade() {
                cache.time_is(begun.elapsed().as_secs());
                cache.look();
                // Nobody is kept by it meanwhile.
                drop(cache);
                std::thread::sleep(PAUSE);
                let groups = memory_group::own();
                groups.wait(if groups.is_limited() { LOOK } else { LOOK_UNLIMITED });
            }
        })?;
        *watched = cache;
        Ok(())
    }

    /// A layer that is read through it.
    pub(crate) fn layer(&self, layer: Arc<dyn Branch>, sharing: Sharing) -> Arc<dyn Branch> {
        let sharing = match sharing {
            Sharing::Shared => vellum_branch::Sharing::Shared { settle: SETTLE },
            Sharing::Immutable => vellum_branch::Sharing::Immutable,
        };
        CachedBranch::new(layer, Arc::clone(&self.0), sharing)
    }

    /// The mount's weight, the bytes that it pays for, and what it has found and what not, in blocks.
    pub(crate) fn stats(&self) -> Option<CacheStats> {
        let own = self.0.stats()?;
        Some(CacheStats {
            weight: own.weight,
            is_idle: own.idle,
            bytes: own.charge,
            lent_bytes: own.lent,
            hits: own.hits,
            misses: own.misses,
            evictions: own.evictions,
        })
    }
}
