//! What supervisor, standby and service tell each other: some words, which the service could write nonsense to.
//!
//! Nothing depends on them but how the family's own mounts go on.

use crate::failure::Failure;
use rustix::process::{Pid, getpid};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;
use vellum_sys::ForkSharedWords;

/// Words of a board.
#[derive(Clone, Copy)]
enum Word {
    /// Number of the process that serves, or is about to.
    Service,
    /// A service has served: it is known how to go on.
    Serves,
    /// Since when the one that is there now serves, in milliseconds of the machine's clock; 0: it does not yet.
    ServingSince,
    /// How many services were before this one.
    Restarts,
    /// The mounts are being taken away.
    Ending,
    /// So many services, one after the other, were killed for want of memory, and in which second the last one was.
    Starved,
    StarvedAt,
}

/// The board. Copies show the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct SupervisorState(ForkSharedWords);

impl SupervisorState {
    /// A new one, for this process and those that come from it.
    pub(super) fn create(restarts: u64) -> Result<Self, Failure> {
        let words = ForkSharedWords::create();
        let board = Self(words.map_err(|e| Failure::system("memory for the supervisor").because(e))?);
        board.set(Word::Restarts, restarts);
        Ok(board)
    }

    fn word(&self, word: Word) -> Option<&AtomicU64> {
        self.0.words().get(word as usize)
    }

    fn get(&self, word: Word) -> u64 {
        self.word(word).map_or(0, |word| word.load(Acquire))
    }

    fn set(&self, word: Word, value: u64) {
        if let Some(word) = self.word(word) {
            word.store(value, Release);
        }
    }

    /// Another service is to be started.
    pub(super) fn expect_service(&self) {
        self.set(Word::ServingSince, 0);
    }

    /// This process is the service.
    pub(super) fn begin_service(&self) {
        self.set(Word::Service, getpid().as_raw_nonzero().get().unsigned_abs().into());
    }

    /// It begins to serve a mount: whoever kills it now does not do so for what it was left.
    pub(super) fn begin_mount(&self) {
        if self.get(Word::ServingSince) == 0 {
            self.set(Word::ServingSince, now().max(1));
        }
    }

    pub(super) fn set_serving(&self) {
        self.set(Word::Serves, 1);
        self.begin_mount();
    }

    /// The service is no more, for certain.
    pub(super) fn set_service_gone(&self) {
        self.set(Word::Service, 0);
    }

    /// The process that serves, or has served.
    pub(super) fn service(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.get(Word::Service)).ok()?)
    }

    /// Whether a service has served.
    pub(super) fn has_served(&self) -> bool {
        self.get(Word::Serves) != 0
    }

    /// How long the last one has served; None: it has not.
    pub(super) fn served_for(&self) -> Option<Duration> {
        let since = Some(self.get(Word::ServingSince)).filter(|&since| since != 0)?;
        Some(Duration::from_millis(now().saturating_sub(since)))
    }

    /// Another service will be there.
    pub(super) fn count_restart(&self) {
        self.set(Word::Restarts, self.restarts() + 1);
    }

    /// How many there were.
    pub(super) fn restarts(&self) -> u64 {
        self.get(Word::Restarts)
    }

    /// A service, or its supervisor, was killed for want of memory in this second of the machine's clock. How many were, one soon after the
    /// other.
    pub(super) fn count_starved(&self, second: u64, soon: u64) -> u64 {
        let is_soon = second.saturating_sub(self.get(Word::StarvedAt)) < soon;
        let count = if is_soon { self.get(Word::Starved) + 1 } else { 1 };
        self.set(Word::Starved, count);
        self.set(Word::StarvedAt, second);
        count
    }

    /// The mounts are being taken away.
    pub(super) fn end(&self) {
        self.set(Word::Ending, 1);
    }

    /// Whether they are.
    pub(super) fn is_ending(&self) -> bool {
        self.get(Word::Ending) != 0
    }
}

/// Milliseconds of the machine's clock, which is the same in all processes.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_out_of_memory_kills_are_counted() {
        let board = SupervisorState::create(0).unwrap();
        // The machine has been up for less than that.
        assert_eq!(board.count_starved(7, 60), 1);
        for (second, count) in [(7, 2), (66, 3), (125, 4), (185, 1), (186, 2), (900, 1)] {
            assert_eq!(board.count_starved(second, 60), count, "in second {second}");
        }
        // A supervisor that was killed itself leaves it to its standby.
        let standbys = board;
        assert_eq!((standbys.count_starved(901, 60), board.count_starved(902, 60)), (2, 3));
    }

    #[test]
    fn a_service_serves_from_its_first_mount_on() {
        let board = SupervisorState::create(0).unwrap();
        board.begin_mount();
        std::thread::sleep(Duration::from_millis(30));
        board.set_serving();
        assert!(board.served_for() >= Some(Duration::from_millis(29)), "{:?}", board.served_for());
        board.expect_service();
        assert_eq!(board.served_for(), None);
        assert!(board.has_served());
    }
}
