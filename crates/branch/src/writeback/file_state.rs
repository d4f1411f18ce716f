//! What is known of a file while something of it is in the log, or somebody uses it.

use parking_lot::Mutex;
use std::sync::Arc;
use vellum_vfs::{BranchFile, Errno};

pub(super) struct TrackedFile {
    pub(super) ino: u64,
    /// Held while a change is written down and made, so that both have one order. Not while one waits for room.
    pub(super) order: Mutex<Order>,
    /// Held while the file is synced; before `order`.
    pub(super) writing: Mutex<()>,
    /// The last one.
    pub(super) failure: Mutex<Option<Failure>>,
}

#[derive(Default)]
pub(super) struct Order {
    /// By what the file will be synced. None: nothing of it is in the log, but for what is being synced.
    pub(super) open: Option<Arc<dyn BranchFile>>,
}

/// What was answered and could not be written.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    /// How many there had been of whatever file.
    pub(super) number: u64,
    pub(super) errno: Errno,
    /// Somebody has been told.
    pub(super) told: bool,
}

impl TrackedFile {
    pub(super) fn new(ino: u64) -> Self {
        Self { ino, order: Mutex::default(), writing: Mutex::default(), failure: Mutex::default() }
    }

    /// Whether nothing is to be written or told.
    pub(super) fn is_clean(&self) -> bool {
        self.failure.lock().is_none() && self.order.try_lock().is_some_and(|order| order.open.is_none())
    }

    /// Whether it has failed, and nobody knows.
    pub(super) fn has_unreported_failure(&self) -> bool {
        self.failure.lock().is_some_and(|failure| !failure.told)
    }

    /// A failure that one has to be told who knows of those up to `seen`.
    pub(super) fn failure_since(&self, seen: u64) -> Option<(u64, Errno)> {
        let mut failure = self.failure.lock();
        let failure = failure.as_mut().filter(|failure| failure.number > seen)?;
        failure.told = true;
        Some((failure.number, failure.errno))
    }
}
