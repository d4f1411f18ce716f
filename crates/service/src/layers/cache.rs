//! The cache through which lower layers are read, where a mount asks for one.

use crate::config::{Cache, LayerWriters};
use crate::failure::Failure;
use crate::instance::stats::CacheStats;
use crate::process::memory_group;
use parking_lot::Mutex;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vellum_branch::{DataCacheBranch, SETTLE};
use vellum_cache::{DEPTH, PredecessorFds, Room, S3Fifo, Shared, SlabMemory};
use vellum_sys::InheritedFds;
use vellum_vfs::Branch;

/// One in so many of the process's descriptors may be a file of the cache.
const DESCRIPTORS: u64 = 8;
/// How often it is looked at least whether others need the memory of the cache, where it is limited,
const LOOK: Duration = Duration::from_millis(250);
/// and whether it is, where it is not. The cache counts its seconds by that, too.
const LOOK_UNLIMITED: Duration = Duration::from_secs(1);
/// Time between two looks at least: the kernel says for every 2 MiB that it looks for memory.
const PAUSE: Duration = Duration::from_millis(4);

/// The process's one cache, which is there as long as one of its mounts is.
static ONE: Mutex<Weak<Shared<SlabMemory>>> = Mutex::new(Weak::new());

/// What a predecessor has cached, until the mounts are served again that use it.
#[derive(Clone)]
pub(crate) struct PredecessorCache {
    _cache: Arc<Shared<SlabMemory>>,
}

/// A mount in the cache.
pub(crate) struct Member(Arc<vellum_cache::Member<SlabMemory>>);

/// What the service's control groups leave to it.
struct CgroupRoom;

impl Room for CgroupRoom {
    fn bytes(&self, held: u64) -> u64 {
        memory_group::current().room(held)
    }
}

impl PredecessorCache {
    /// Goes on with a predecessor's cache, which may hold so many bytes now. Before any mount is in one.
    pub(crate) fn take(inherited: &mut InheritedFds, bytes: u64) -> Option<Self> {
        let [records, files] =
            [SlabMemory::RECORDS, SlabMemory::FILES].map(|name| inherited.take_memories(name));
        let numbered = |file: OwnedFd| (file.as_raw_fd(), file);
        let left = PredecessorFds { records, files: files.into_iter().map(numbered).collect() };
        let cache = Shared::resume(config(bytes), left, DEPTH, Some(Box::new(CgroupRoom)));
        let cache = cache.inspect_err(log_not_resumable).ok()?;
        let stats = cache.stats();
        tracing::info!(
            files = stats.files,
            blocks = stats.blocks,
            bytes = stats.size,
            "cached by a predecessor"
        );
        // Its mounts may have to wait for their clusters first.
        if let Err(error) = watch(&cache) {
            tracing::warn!("the cache does not see what memory there is: {error}");
        }
        *ONE.lock() = Arc::downgrade(&cache);
        Some(Self { _cache: cache })
    }
}

fn config(bytes: u64) -> vellum_cache::Config {
    let files = usize::try_from(vellum_sys::descriptor_limit() / DESCRIPTORS).unwrap_or(usize::MAX);
    vellum_cache::Config { capacity: bytes, files, policy: S3Fifo::queue }
}

fn log_not_resumable(error: &rustix::io::Errno) {
    tracing::warn!("a successor will find nothing cached: {error}");
}

/// An empty one.
fn cold(bytes: u64) -> Arc<Shared<SlabMemory>> {
    let memory = SlabMemory::resumable().inspect_err(log_not_resumable).unwrap_or_default();
    Shared::with(config(bytes), memory, DEPTH, Some(Box::new(CgroupRoom)))
}

/// Sees to it, as long as the cache is there, that it shrinks when others in the service's control groups need the memory, and that
/// time goes on in it, without which nobody would be idle. Starts a thread, the first time.
fn watch(cache: &Arc<Shared<SlabMemory>>) -> std::io::Result<()> {
    static WATCHED: Mutex<Weak<Shared<SlabMemory>>> = Mutex::new(Weak::new());
    let cache = Arc::downgrade(cache);
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
            let groups = memory_group::current();
            groups.wait(if groups.is_limited() { LOOK } else { LOOK_UNLIMITED });
        }
    })?;
    *watched = cache;
    Ok(())
}

impl Member {
    /// A further mount in the process's one cache.
    pub(crate) fn new(wanted: Cache, weight: u16) -> Result<Self, Failure> {
        let mut one = ONE.lock();
        let cache = one.upgrade().unwrap_or_else(|| cold(wanted.bytes));
        cache.grow(wanted.bytes);
        *one = Arc::downgrade(&cache);
        let failed = |e| Failure::system("the cache of layers").because(e);
        Ok(Self(cache.join(weight.into()).map_err(failed)?))
    }

    /// Another weight, from now on.
    pub(crate) fn set_weight(&self, weight: u16) -> Result<(), vellum_cache::Error> {
        self.0.set_weight(weight.into())
    }

    /// Has the cache watched, from the first time on that a mount in it is served.
    pub(crate) fn watch(&self) -> std::io::Result<()> {
        watch(self.0.shared())
    }

    /// A layer that is read through it.
    pub(crate) fn layer(&self, layer: Arc<dyn Branch>, sharing: LayerWriters) -> Arc<dyn Branch> {
        let sharing = match sharing {
            LayerWriters::Shared => vellum_branch::VersionCheck::Shared { settle: SETTLE },
            LayerWriters::Immutable => vellum_branch::VersionCheck::Immutable,
        };
        DataCacheBranch::new(layer, Arc::clone(&self.0), sharing)
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
