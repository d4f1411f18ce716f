//! Descriptors kept open to save opening them again, under one budget.
//!
//! A slot holds a handle or nothing; whoever needs it fills it. When more handles are kept than the budget
//! allows, the oldest that was not used since the last look is closed (the clock algorithm: one bit per slot, no
//! list to reorder, so that using a handle writes nothing shared).
//!
//! A process may have so many descriptors, whoever they are for. The kernel gives out the lowest number that is free, so a
//! number says how many are in use: from a certain one on no more are kept, and the rest is left to what is open for the
//! length of an operation. So what one client keeps open never makes another one's lookup fail.

use crate::sync::Mutex;
use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use vellum_vfs::{Errno, Error, Result};

/// A slot that may hold a handle.
pub(crate) struct Slot<T: ?Sized> {
    handle: Mutex<Option<Arc<T>>>,
    used: AtomicBool,
    pinned: AtomicBool,
}

impl<T: ?Sized> Slot<T> {
    pub(crate) const fn empty() -> Self {
        Self { handle: Mutex::new(None), used: AtomicBool::new(false), pinned: AtomicBool::new(false) }
    }
}

impl<T: ?Sized> Slot<T> {
    /// The handle, if it is open.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        let handle = self.handle.lock().clone()?;
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        Some(handle)
    }

    /// Puts a handle in; if another thread was faster, its handle stays and is returned.
    pub(crate) fn fill(&self, handle: Arc<T>) -> (Arc<T>, bool) {
        let mut slot = self.handle.lock();
        self.used.store(true, Relaxed);
        if let Some(first) = &*slot {
            return (Arc::clone(first), false);
        }
        *slot = Some(Arc::clone(&handle));
        (handle, true)
    }

    /// Replaces the handle; true if the slot was empty before.
    pub(crate) fn replace(&self, handle: Option<Arc<T>>) -> (bool, Option<Arc<T>>) {
        let mut slot = self.handle.lock();
        let old = std::mem::replace(&mut *slot, handle);
        (old.is_none(), old)
    }

    /// Takes the handle out, unless it must stay open; it is dropped after the lock.
    pub(crate) fn drop_handle(&self) -> Option<Arc<T>> {
        if self.pinned.load(Relaxed) { None } else { self.handle.lock().take() }
    }

    /// Keeps the handle open until the slot is dropped.
    pub(crate) fn pin(&self) {
        self.pinned.store(true, Relaxed);
    }
}

/// Something that can give its handle back.
pub(crate) trait Evict: Send + Sync {
    /// What became of the handle.
    fn evict(&self) -> EvictOutcome;
}

/// The outcome of a look at a slot.
pub(crate) enum EvictOutcome {
    Closed,
    /// Used since the last look, so it stays this time.
    Stays,
    /// There was none, or it must never be closed: stop watching it.
    Unwatch,
}

impl<T: ?Sized + Send + Sync> Evict for Slot<T> {
    fn evict(&self) -> EvictOutcome {
        if self.pinned.load(Relaxed) {
            return EvictOutcome::Unwatch;
        }
        if self.used.swap(false, Relaxed) {
            return EvictOutcome::Stays;
        }
        if self.drop_handle().is_some() { EvictOutcome::Closed } else { EvictOutcome::Unwatch }
    }
}

/// Most descriptors that are left to what is open for the length of an operation.
const RESERVE_MAX: u64 = 1024;

/// Most descriptors that are kept between two counts: a sixteenth of that reserve.
const GRANT_MAX: u64 = 64;

/// The budget and the slots that are filled under it. Unions of one process share one.
pub struct Budget {
    /// Handles for each union.
    each: usize,
    unions: AtomicUsize,
    /// How many descriptors may be in use when another is to be kept.
    kept_max: u64,
    watched: AtomicUsize,
    /// Descriptors that may be kept before it is counted again how many are in use.
    granted: AtomicU64,
    queue: Mutex<VecDeque<Weak<dyn Evict>>>,
}

/// A union's part in a budget.
pub(crate) struct Share(Arc<Budget>);

impl Share {
    pub(crate) fn of_budget(budget: &Arc<Budget>) -> Self {
        budget.unions.fetch_add(1, Relaxed);
        Self(Arc::clone(budget))
    }
}

impl Deref for Share {
    type Target = Budget;

    fn deref(&self) -> &Budget {
        &self.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.unions.fetch_sub(1, Relaxed);
    }
}

impl Budget {
    /// `each`: handles that a union may keep open; `descriptors`: how many the process may have.
    #[must_use]
    pub fn new(each: usize, descriptors: u64) -> Self {
        Self {
            each: each.max(16),
            unions: AtomicUsize::new(0),
            kept_max: descriptors - (descriptors / 4).min(RESERVE_MAX),
            watched: AtomicUsize::new(0),
            granted: AtomicU64::new(0),
            queue: Mutex::new(VecDeque::new()),
        }
    }

    fn limit(&self) -> usize {
        self.each.saturating_mul(self.unions.load(Relaxed).max(1))
    }

    /// How many descriptors too many are kept, as the number of the latest says.
    fn too_many(&self, latest: BorrowedFd<'_>) -> u64 {
        let in_use = u64::try_from(latest.as_raw_fd()).unwrap_or(0) + 1;
        in_use.saturating_sub(self.kept_max)
    }

    /// How many more may be kept without counting: few enough that what others open meanwhile has its place.
    fn grant(&self, latest: BorrowedFd<'_>) -> u64 {
        let in_use = u64::try_from(latest.as_raw_fd()).unwrap_or(0) + 1;
        (self.kept_max.saturating_sub(in_use) / 16).min(GRANT_MAX)
    }

    /// Watches a slot that has just been filled, with a handle that has this descriptor, and closes others while too many are open.
    pub(crate) fn watch(&self, slot: Weak<dyn Evict>, descriptor: Option<BorrowedFd<'_>>) {
        self.queue.lock().push_back(slot);
        self.watched.fetch_add(1, Relaxed);
        self.close(descriptor.map_or(0, |descriptor| self.too_many(descriptor)));
    }

    /// Stops watching what is no more: as long as it is watched its memory stays.
    pub(crate) fn trim(&self) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|slot| slot.strong_count() > 0);
        queue.shrink_to_fit();
        self.watched.fetch_sub(before - queue.len(), Relaxed);
    }

    /// Closes so many handles, and more while there are more than the budget allows.
    fn close(&self, mut wanted: u64) {
        let limit = self.limit();
        // Two rounds at most: the first may only clear the bits of slots that are in use.
        let mut looks = self.queue.lock().len().saturating_mul(2).min(limit);
        while (wanted > 0 || self.watched.load(Relaxed) > limit) && looks > 0 {
            looks -= 1;
            let Some(weak) = self.queue.lock().pop_front() else { break };
            match weak.upgrade().map(|s| s.evict()) {
                Some(EvictOutcome::Stays) => {
                    self.queue.lock().push_back(weak);
                    continue;
                }
                Some(EvictOutcome::Closed) => wanted = wanted.saturating_sub(1),
                Some(EvictOutcome::Unwatch) | None => {}
            }
            self.watched.fetch_sub(1, Relaxed);
        }
    }

    /// Whether a descriptor may be kept for as long as a client likes; `like`: any of the same kind. ENFILE: the rest is left to others.
    pub(crate) fn room_to_hold(&self, like: Option<BorrowedFd<'_>>) -> Result<()> {
        let Some(like) = like else { return Ok(()) };
        if self.granted.fetch_update(Relaxed, Relaxed, |granted| granted.checked_sub(1)).is_ok() {
            return Ok(());
        }
        // The number that the next descriptor gets says how many are in use.
        let too_many = || match like.try_clone_to_owned() {
            Ok(next) => {
                let next = std::os::fd::AsFd::as_fd(&next);
                self.granted.store(self.grant(next), Relaxed);
                self.too_many(next)
            }
            Err(_) => RESERVE_MAX,
        };
        // A file that is held by others, too, stays open when its handle is given back: then all handles go.
        for all in [0, u64::MAX] {
            match too_many() {
                0 => return Ok(()),
                some => self.close(some.max(all)),
            }
        }
        if too_many() == 0 {
            return Ok(());
        }
        Err(Error::new(Errno::NFILE, "too many files without a name are open"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn weak_slot<T: Send + Sync + 'static>(slot: &Arc<Slot<T>>) -> Weak<dyn Evict> {
        let weak: Weak<Slot<T>> = Arc::downgrade(slot);
        weak
    }

    #[test]
    fn the_budget_closes_unused_handles() {
        let budget = Budget::new(16, u64::MAX);
        let slots: Vec<Arc<Slot<u32>>> = (0..100).map(|_| Arc::new(Slot::empty())).collect();
        for (i, slot) in slots.iter().enumerate() {
            slot.fill(Arc::new(i as u32));
            budget.watch(weak_slot(slot), None);
        }
        let open = slots.iter().filter(|s| s.handle.lock().is_some()).count();
        assert!(open <= 32, "{open} open");
    }

    #[test]
    fn pinned_handles_stay_open() {
        let budget = Budget::new(16, u64::MAX);
        let pinned: Arc<Slot<u32>> = Arc::new(Slot::empty());
        pinned.fill(Arc::new(0));
        pinned.pin();
        budget.watch(weak_slot(&pinned), None);
        for _ in 0..100 {
            let slot: Arc<Slot<u32>> = Arc::new(Slot::empty());
            slot.fill(Arc::new(1));
            budget.watch(weak_slot(&slot), None);
        }
        assert_eq!(pinned.get().as_deref(), Some(&0));
    }

    #[test]
    fn handles_are_closed_when_descriptors_run_short() {
        let first = File::open("/").unwrap();
        let in_use = u64::try_from(first.as_raw_fd()).unwrap() + 1;
        // Others open and close descriptors at the same time.
        let roomy = Budget::new(1000, (in_use + 1000) * 2);
        let slots: Vec<Arc<Slot<File>>> = (0..100).map(|_| Arc::new(Slot::empty())).collect();
        let fill = |budget: &Budget| {
            for slot in &slots {
                let file = Arc::new(File::open("/").unwrap());
                if let (file, true) = slot.fill(Arc::clone(&file)) {
                    budget.watch(weak_slot(slot), Some(file.as_fd()));
                }
            }
            slots.iter().filter(|slot| slot.handle.lock().is_some()).count()
        };
        assert_eq!(fill(&roomy), 100);
        assert!(roomy.room_to_hold(Some(first.as_fd())).is_ok());
        slots.iter().for_each(|slot| drop(slot.drop_handle()));
        let narrow = Budget::new(1000, 4);
        assert!(fill(&narrow) <= 1, "more is kept");
        assert_eq!(narrow.room_to_hold(Some(first.as_fd())).map_err(|e| e.errno()), Err(Errno::NFILE));
        assert!(narrow.room_to_hold(None).is_ok());
    }
}
