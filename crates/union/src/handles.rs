//! Descriptors kept open to save opening them again, under one budget.
//!
//! A slot holds a handle or nothing; whoever needs it fills it. When more handles are kept than the budget
//! allows, the oldest that was not used since the last look is closed (the clock algorithm: one bit per slot, no
//! list to reorder, so that using a handle writes nothing shared).

use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

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

/// A slot as the budget watches it.
pub(crate) fn weak_slot<T: ?Sized + Send + Sync + 'static>(slot: &Arc<Slot<T>>) -> Weak<dyn Evict> {
    let weak: Weak<Slot<T>> = Arc::downgrade(slot);
    weak
}

/// Something that can give its handle back.
pub(crate) trait Evict: Send + Sync {
    /// What became of the handle.
    fn evict(&self) -> Evicted;
}

/// The outcome of a look at a slot.
pub(crate) enum Evicted {
    /// Closed.
    Closed,
    /// Used since the last look, so it stays this time.
    Stays,
    /// There was none, or it must never be closed: stop watching it.
    Unwatch,
}

impl<T: ?Sized + Send + Sync> Evict for Slot<T> {
    fn evict(&self) -> Evicted {
        if self.pinned.load(Relaxed) {
            return Evicted::Unwatch;
        }
        if self.used.swap(false, Relaxed) {
            return Evicted::Stays;
        }
        if self.drop_handle().is_some() { Evicted::Closed } else { Evicted::Unwatch }
    }
}

/// The budget and the slots that are filled under it.
pub(crate) struct Budget {
    limit: usize,
    watched: AtomicUsize,
    queue: Mutex<VecDeque<Weak<dyn Evict>>>,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(16), watched: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Watches a slot that has just been filled, and closes others while too many are open.
    pub(crate) fn watch(&self, slot: Weak<dyn Evict>) {
        let mut looks = {
            let mut queue = self.queue.lock();
            queue.push_back(slot);
            queue.len()
        };
        self.watched.fetch_add(1, Relaxed);
        // Two rounds at most: the first may only clear the bits of slots that are in use.
        looks = looks.saturating_mul(2).min(self.limit);
        while self.watched.load(Relaxed) > self.limit && looks > 0 {
            looks -= 1;
            let Some(weak) = self.queue.lock().pop_front() else { break };
            match weak.upgrade().map(|s| s.evict()) {
                Some(Evicted::Stays) => self.queue.lock().push_back(weak),
                Some(Evicted::Closed | Evicted::Unwatch) | None => {
                    self.watched.fetch_sub(1, Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_closes_what_is_not_used() {
        let budget = Budget::new(16);
        let slots: Vec<Arc<Slot<u32>>> = (0..100).map(|_| Arc::new(Slot::empty())).collect();
        for (i, slot) in slots.iter().enumerate() {
            slot.fill(Arc::new(i as u32));
            budget.watch(weak_slot(slot));
        }
        let open = slots.iter().filter(|s| s.handle.lock().is_some()).count();
        assert!(open <= 32, "{open} open");
    }

    #[test]
    fn what_is_pinned_stays_open() {
        let budget = Budget::new(16);
        let pinned: Arc<Slot<u32>> = Arc::new(Slot::empty());
        pinned.fill(Arc::new(0));
        pinned.pin();
        budget.watch(weak_slot(&pinned));
        for _ in 0..100 {
            let slot: Arc<Slot<u32>> = Arc::new(Slot::empty());
            slot.fill(Arc::new(1));
            budget.watch(weak_slot(&slot));
        }
        assert_eq!(pinned.get().as_deref(), Some(&0));
    }
}
