//! Ends the test program when nothing has moved for a while: a deadlock must not hang whoever waits for the tests.

use parking_lot::Mutex;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long nothing may move.
const PATIENCE: Duration = Duration::from_secs(60);

static STEPS: AtomicU64 = AtomicU64::new(0);
static RUNNING: AtomicU64 = AtomicU64::new(0);
static WHAT: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// Something that must end; what it is doing is printed if it does not.
pub struct Watched(u64);

impl Watched {
    /// Begins to watch.
    pub fn new(what: String) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        START.call_once(|| drop(std::thread::spawn(watch)));
        let id = NEXT.fetch_add(1, Relaxed);
        WHAT.lock().push((id, what));
        RUNNING.fetch_add(1, Relaxed);
        moved();
        Self(id)
    }

    /// Says what it does now.
    pub fn now(&self, what: impl FnOnce(&mut String)) {
        moved();
        if let Some((_, text)) = WHAT.lock().iter_mut().find(|(id, _)| *id == self.0) {
            what(text);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Relaxed);
        WHAT.lock().retain(|(id, _)| *id != self.0);
    }
}

/// Something has moved.
pub fn moved() {
    STEPS.fetch_add(1, Relaxed);
}

fn watch() {
    let mut last = 0;
    loop {
        std::thread::sleep(PATIENCE);
        let now = STEPS.load(Relaxed);
        if now == last && RUNNING.load(Relaxed) > 0 {
            eprintln!("nothing has moved for {PATIENCE:?}: a deadlock?");
            for (_, what) in &*WHAT.lock() {
                eprintln!("still running: {what}");
            }
            // Not a panic: that would end this thread only.
            std::process::abort();
        }
        last = now;
    }
}
