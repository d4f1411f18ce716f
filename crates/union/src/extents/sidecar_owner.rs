//! One at a time knows which blocks of a partial file count, where a sidecar says that.
//!
//! What it knows and the sidecar does not is written there when it ends. The kernel may forget a file, and ask for it again at once; the next one would read
//! the sidecar before that, and forget blocks for good. So it waits for the last one's end.

use crate::sync::{Mutex, turn};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vellum_vfs::{Errno, Error, Result};

/// Dead entries are removed when there are more than so many, and twice as many as live ones were then.
const KEPT: usize = 64;
/// Between two looks for the last one's end, and how long it is waited for: a storage may be away for a while.
const PAUSE: Duration = Duration::from_micros(100);
const PATIENCE: Duration = Duration::from_secs(120);

/// The sidecars of a layer that are open to be written, by their numbers.
#[derive(Default)]
pub(crate) struct OpenSidecars {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    by_number: HashMap<u64, Weak<SidecarOwner>>,
    swept_at: usize,
}

/// A sidecar is open, or has not been written yet by the one that ends.
pub(crate) struct SidecarOwner;

impl OpenSidecars {
    /// Opens one. Waits until the last one has ended. EIO: it does not.
    pub(crate) fn enter(&self, number: u64) -> Result<Arc<SidecarOwner>> {
        let begin = Instant::now();
        loop {
            {
                let mut open = self.open.lock();
                if open.by_number.get(&number).is_none_or(|last| last.strong_count() == 0) {
                    let alone = Arc::new(SidecarOwner);
                    open.by_number.insert(number, Arc::downgrade(&alone));
                    open.sweep();
                    return Ok(alone);
                }
            }
            if begin.elapsed() > PATIENCE {
                return Err(Error::new(Errno::IO, "the map of a partial file's blocks is not written"));
            }
            turn();
            std::thread::sleep(PAUSE);
        }
    }
}

impl Open {
    fn sweep(&mut self) {
        if self.by_number.len() > KEPT.max(2 * self.swept_at) {
            self.by_number.retain(|_, last| last.strong_count() > 0);
            self.swept_at = self.by_number.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrelated_and_released_sidecars_do_not_block() {
        let open = OpenSidecars::default();
        let first = open.enter(0).unwrap();
        for number in 1..10 * KEPT as u64 {
            drop(open.enter(number).unwrap());
        }
        drop(first);
        drop(open.enter(0).unwrap());
        assert!(open.open.lock().by_number.len() <= KEPT + 1);
    }

    #[test]
    fn the_next_sidecar_owner_waits() {
        let open = Arc::new(OpenSidecars::default());
        let first = open.enter(7).unwrap();
        let other = Arc::clone(&open);
        let next = std::thread::spawn(move || drop(other.enter(7).unwrap()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!next.is_finished());
        drop(first);
        next.join().unwrap();
    }
}
