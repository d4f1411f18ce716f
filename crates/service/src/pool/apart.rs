//! A program and the thread that serves it are faster apart: each sees at once what the other has done. On one processor they take turns,
//! and on a busy machine Linux leaves them so, although the other processor is idle by then: it looks for an idle one only when a thread
//! wakes, and not at all where the processors have had much to do lately (`SIS_UTIL`).

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

/// So many calls in a row from the processor that the thread is on, and it goes to another one.
const TOGETHER_MAX: u32 = 16;
/// After it has gone it stays where it is put for so long, at least;
const STAY: Duration = Duration::from_millis(10);
/// and, where the others turn out to have much to do, so many times longer each time, but not longer than this.
const LONGER: u32 = 4;
const STAY_MAX: Duration = Duration::from_secs(10);
/// To get to a processor that is idle takes less.
const BUSY: Duration = Duration::from_micros(200);

/// Keeps the calling thread away from its client's processor, where there is another one for it.
#[derive(Debug)]
pub(super) struct Apart {
    together: u32,
    until: Option<Instant>,
    stay: Duration,
}

impl Apart {
    pub(super) const fn new() -> Self {
        Self { together: 0, until: None, stay: STAY }
    }

    /// A call has come from the processor `client`, while the thread is on `here`.
    pub(super) fn called(&mut self, client: u32, here: u32) {
        if client != here {
            self.together = 0;
            return;
        }
        self.together += 1;
        if self.together < TOGETHER_MAX {
            return;
        }
        self.together = 0;
        let now = Instant::now();
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.went(leave(here as usize));
        self.until = Some(Instant::now() + self.stay);
    }

    /// It has taken so long to go; None: there is nowhere to go.
    fn went(&mut self, took: Option<Duration>) {
        self.stay = match took {
            Some(took) if took < BUSY => STAY,
            Some(_) => (self.stay * LONGER).min(STAY_MAX),
            None => STAY_MAX,
        };
    }
}

/// Has the calling thread go to another processor, and leaves it free to go anywhere; how long it took to be there.
fn leave(here: usize) -> Option<Duration> {
    // The first thread's are those that the process may have by now, whoever says so; it never leaves.
    let all = sched_getaffinity(Some(getpid())).ok()?;
    let mut others = all;
    if here >= CpuSet::MAX_CPU || !others.is_set(here) || others.count() < 2 {
        return None;
    }
    others.unset(here);
    let begin = Instant::now();
    sched_setaffinity(None, &others).ok()?;
    let took = begin.elapsed();
    sched_setaffinity(None, &all).ok()?;
    Some(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_its_clients_processor() {
        let before = sched_getaffinity(None).unwrap();
        if before.count() < 2 {
            return;
        }
        let here = rustix::thread::sched_getcpu();
        assert!(leave(here).is_some());
        assert_eq!(sched_getaffinity(None).unwrap(), before, "it may go anywhere");
        assert!(leave(CpuSet::MAX_CPU).is_none() && leave(CpuSet::MAX_CPU - 1).is_none());
    }

    #[test]
    fn where_all_processors_are_busy_it_stays() {
        let mut apart = Apart::new();
        for _ in 0..100 {
            apart.called(1, 0);
        }
        assert_eq!((apart.together, apart.until), (0, None));
        apart.went(Some(BUSY));
        assert_eq!(apart.stay, STAY * LONGER);
        (0..20).for_each(|_| apart.went(Some(BUSY)));
        assert_eq!(apart.stay, STAY_MAX);
        apart.went(Some(BUSY / 2));
        assert_eq!(apart.stay, STAY);
        apart.went(None);
        assert_eq!(apart.stay, STAY_MAX);
    }
}
