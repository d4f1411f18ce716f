//! How many nodes the unions of a process may have together, and the bell by which they say that there are many, or fewer.
//!
//! Nodes are the kernel's to keep: it names what it has looked at, and forgets when it likes. Where memory is limited, somebody has to
//! ask it to forget; unions only say when.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitEvent {
    /// A union has as many nodes as it was to say.
    Crowded,
    /// Many nodes are no more.
    Forgotten,
    /// Nothing, for as long as the caller would wait.
    Nothing,
}

/// The limit. It limits nothing before somebody says so.
pub struct NodeLimit {
    most: AtomicUsize,
    /// There are too many: none is made that nobody has asked for by name.
    is_short: AtomicBool,
    rung: Mutex<(bool, bool)>,
    bell: Condvar,
}

impl Default for NodeLimit {
    fn default() -> Self {
        Self {
            most: AtomicUsize::new(usize::MAX),
            is_short: AtomicBool::new(false),
            rung: Mutex::new((false, false)),
            bell: Condvar::new(),
        }
    }
}

impl NodeLimit {
    #[must_use]
    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    pub fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Whether lists of names are to make no nodes.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(Relaxed)
    }

    pub fn set_short(&self, is_short: bool) {
        if self.is_short() != is_short {
            self.is_short.store(is_short, Relaxed);
        }
    }

    pub(crate) fn is_crowded(&self) {
        self.rung.lock().0 = true;
        self.bell.notify_one();
    }

    /// Many nodes have been forgotten.
    pub(crate) fn has_forgotten(&self) {
        self.rung.lock().1 = true;
        self.bell.notify_one();
    }

    /// Waits until something happens; None: for ever.
    pub fn wait(&self, most: Option<Duration>) -> LimitEvent {
        let mut rung = self.rung.lock();
        loop {
            if std::mem::take(&mut rung.0) {
                return LimitEvent::Crowded;
            }
            if std::mem::take(&mut rung.1) {
                return LimitEvent::Forgotten;
            }
            match most {
                None => self.bell.wait(&mut rung),
                Some(most) => {
                    if self.bell.wait_for(&mut rung, most).timed_out() {
                        return LimitEvent::Nothing;
                    }
                }
            }
        }
    }
}
