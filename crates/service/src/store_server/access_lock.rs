//! Who may do what in a store at the same time.
//!
//! As if the device were locked by each command: one changes checkpoints at a time. Others look and restore meanwhile, but nothing is removed or
//! replaced while they do.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands that are heard at the same time.
const SEATS_MAX: usize = 16;
/// How long who removes or replaces something waits for those who read.
const READERS_MAX: Duration = Duration::from_secs(60);

/// Why somebody has to come again.
pub(super) const CROWDED: &str = "too many commands use the store; try again";
pub(super) const CHANGING: &str = "another command changes its checkpoints; wait until that ends";
pub(super) const READING: &str = "a checkpoint is being restored from it; try again when that is done";

#[derive(Debug, Default)]
struct Books {
    seats: usize,
    readers: usize,
    /// Somebody may change something.
    changes: bool,
    /// And waits for readers, or is just doing so.
    is_alone: bool,
}

/// All who use a store by its socket.
#[derive(Debug, Default)]
pub(super) struct AccessLock {
    books: Mutex<Books>,
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct AccessGuard {
    desk: Arc<AccessLock>,
    /// What it may do; None: not said yet.
    changes: Option<bool>,
}

impl AccessLock {
    /// Lets one more in. None: there are too many.
    pub(super) fn seat(self: &Arc<Self>) -> Option<AccessGuard> {
        let mut books = self.books.lock();
        if books.seats >= SEATS_MAX {
            return None;
        }
        books.seats += 1;
        Some(AccessGuard { desk: Arc::clone(self), changes: None })
    }
}

impl AccessGuard {
    /// Says what it is there for, once. An error: why not.
    pub(super) fn begin(&mut self, changes: bool) -> Result<(), &'static str> {
        let mut books = self.desk.books.lock();
        if changes {
            if books.changes {
                return Err(CHANGING);
            }
            books.changes = true;
        } else {
            let end = Instant::now() + READERS_MAX;
            while books.is_alone {
                if self.desk.changed.wait_until(&mut books, end).timed_out() {
                    return Err(CHANGING);
                }
            }
            books.readers += 1;
        }
        self.changes = Some(changes);
        Ok(())
    }

    /// Whether it may change something.
    pub(super) fn changes(&self) -> bool {
        self.changes == Some(true)
    }

    /// Whether it has said what it is there for.
    pub(super) fn has_begun(&self) -> bool {
        self.changes.is_some()
    }

    /// Does what nobody may see half done, when nobody reads.
    pub(super) fn exclusively<R>(&self, act: impl FnOnce() -> R) -> Result<R, &'static str> {
        self.exclusively_within(READERS_MAX, act)
    }

    fn exclusively_within<R>(&self, patience: Duration, act: impl FnOnce() -> R) -> Result<R, &'static str> {
        let end = Instant::now() + patience;
        let mut books = self.desk.books.lock();
        books.is_alone = true;
        let mut waited = true;
        while books.readers > 0 && waited {
            waited = !self.desk.changed.wait_until(&mut books, end).timed_out();
        }
        let is_free = books.readers == 0;
        drop(books);
        // Readers who come wait.
        let result = if is_free { Ok(act()) } else { Err(READING) };
        self.desk.books.lock().is_alone = false;
        self.desk.changed.notify_all();
        result
    }
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        let mut books = self.desk.books.lock();
        books.seats -= 1;
        match self.changes {
            Some(true) => books.changes = false,
            Some(false) => books.readers -= 1,
            None => {}
        }
        self.desk.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_writer_and_many_readers() {
        let desk = Arc::<AccessLock>::default();
        let seat = |changes| {
            let mut seat = desk.seat().unwrap();
            seat.begin(changes).map(|()| seat)
        };
        let writer = seat(true).unwrap();
        assert_eq!(seat(true).unwrap_err(), CHANGING);
        let reader = seat(false).unwrap();
        assert_eq!(writer.exclusively_within(Duration::from_millis(1), || ()), Err(READING));
        drop(reader);
        assert_eq!(writer.exclusively(|| desk.books.lock().is_alone), Ok(true));
        drop(writer);
        let all: Vec<AccessGuard> = (0..SEATS_MAX).map(|_| desk.seat().unwrap()).collect();
        assert!(desk.seat().is_none());
        drop(all);
        drop(seat(true).unwrap());
        let books = desk.books.lock();
        assert_eq!((books.seats, books.readers, books.changes, books.is_alone), (0, 0, false, false));
    }

    #[test]
    fn exclusive_access_and_readers_wait_for_each_other() {
        let desk = Arc::<AccessLock>::default();
        let (mut reader, mut writer) = (desk.seat().unwrap(), desk.seat().unwrap());
        reader.begin(false).unwrap();
        writer.begin(true).unwrap();
        let removing = std::thread::spawn(move || writer.exclusively(|| ()).map(|()| writer));
        while !desk.books.lock().is_alone {
            std::thread::yield_now();
        }
        let mut late = desk.seat().unwrap();
        let late = std::thread::spawn(move || late.begin(false).map(|()| late));
        assert!(!removing.is_finished() && !late.is_finished());
        drop(reader);
        removing.join().unwrap().unwrap();
        late.join().unwrap().unwrap();
    }
}
