//! Whether a mount has one client thread or several at the moment.

use std::sync::atomic::{AtomicU32, Ordering};

/// A client thread is alone when no other has asked for anything for so many ticks.
const ALONE_TICKS: u32 = 10;

/// The client threads of a session. It is read with every request, and written once a tick at most.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ClientCount {
    /// Ticks of the watchdog, and [`ALONE_TICKS`]: the first client is alone.
    now: AtomicU32,
    /// A client thread that was seen (0: none),
    last: AtomicU32,
    /// and when it was first seen after another one.
    changed: AtomicU32,
}

impl ClientCount {
    pub(crate) const fn new() -> Self {
        Self { now: AtomicU32::new(ALONE_TICKS), last: AtomicU32::new(0), changed: AtomicU32::new(0) }
    }

    /// So many ticks have passed.
    pub(crate) fn pass(&self, ticks: u32) {
        self.now.fetch_add(ticks, Ordering::Relaxed);
    }

    /// A request of a client thread has come.
    pub(crate) fn note_client(&self, client: u32) {
        let now = self.now.load(Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 {
            self.last.store(client, Ordering::Relaxed);
        } else if last != client && self.changed.load(Ordering::Relaxed) != now {
            self.last.store(client, Ordering::Relaxed);
            self.changed.store(now, Ordering::Relaxed);
        }
    }

    /// There has been one client thread, and no other, for a while. It waits for its answer, so there is nobody to read
    /// for, and to wake another worker for nobody doubles the time of a small fsync. Who comes now waits for two ticks
    /// at most, until the watchdog acts; from then on there are two.
    pub(crate) fn is_single(&self) -> bool {
        let since = self.changed.load(Ordering::Relaxed);
        self.now.load(Ordering::Relaxed).wrapping_sub(since) >= ALONE_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_as_single_after_a_while() {
        let clients = ClientCount::new();
        let alone = |client| {
            clients.note_client(client);
            clients.is_single()
        };
        let ticks = |n| clients.pass(n);
        assert!(alone(7), "the first");
        ticks(1);
        assert!(!alone(8) && !alone(8));
        ticks(ALONE_TICKS - 1);
        assert!(!alone(8));
        ticks(1);
        assert!(alone(8) && alone(8));
        assert!(!alone(7) && !alone(8), "there are two now");
        // As long as both go on, in whatever order and however often in a tick.
        for round in 0..10 * ALONE_TICKS {
            ticks(1);
            for i in 0..1 + round % 5 {
                assert!(!alone(7 + (i + round / 7) % 2), "round {round}");
            }
        }
        ticks(ALONE_TICKS);
        assert!(!alone(9), "another one at last");
        ticks(ALONE_TICKS);
        assert!(alone(9));
    }
}
