//! The cache through which lower layers are read, where a mount asks for one.

use crate::config::{Cache, Sharing};
use crate::failure::Failure;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use vellum_branch::{CachedBranch, SETTLE};
use vellum_cache::{Config, Kind, MemFd, Shared};
use vellum_vfs::Branch;

/// One in so many of the process's descriptors may be a file of the cache.
const DESCRIPTORS: u64 = 8;
/// What a mount weighs: containers have no weights of their own yet.
const WEIGHT: u32 = 100;

/// A mount in the cache.
pub(crate) struct Member(Arc<vellum_cache::Member<MemFd>>);

impl Member {
    /// A further mount in the process's one cache, which is there as long as one of its mounts is.
    pub(crate) fn new(wanted: Cache) -> Result<Self, Failure> {
        static ONE: Mutex<Weak<Shared<MemFd>>> = Mutex::new(Weak::new());
        let mut one = ONE.lock();
        let cache = one.upgrade().unwrap_or_else(|| {
            let files = usize::try_from(vellum_sys::descriptor_limit() / DESCRIPTORS).unwrap_or(usize::MAX);
            Shared::new(Config { capacity: wanted.bytes, files, policy: Kind::default() }, MemFd)
        });
        cache.grow(wanted.bytes);
        *one = Arc::downgrade(&cache);
        let member = cache.join(WEIGHT).map_err(|e| Failure::system("the cache of layers").because(e))?;
        Ok(Self(member))
    }

    /// A layer that is read through it.
    pub(crate) fn layer(&self, layer: Arc<dyn Branch>, sharing: Sharing) -> Arc<dyn Branch> {
        let sharing = match sharing {
            Sharing::Shared => vellum_branch::Sharing::Shared { settle: SETTLE },
            Sharing::Immutable => vellum_branch::Sharing::Immutable,
        };
        CachedBranch::new(layer, Arc::clone(&self.0), sharing)
    }

    /// What the mount has found there and what not, in blocks, and how many bytes it pays for.
    pub(crate) fn figures(&self) -> BTreeMap<String, u64> {
        let Some(own) = self.0.stats() else { return BTreeMap::new() };
        let figures = [("cache_hits", own.hits), ("cache_misses", own.misses), ("cache_bytes", own.charge)];
        figures.map(|(name, count)| (name.to_owned(), count)).into()
    }
}
