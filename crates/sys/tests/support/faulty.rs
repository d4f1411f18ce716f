//! The twin of the system calls that makes them fail on demand.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use vellum_sys::{Call, Sys};

/// What a rule does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this errno and does nothing.
    Fail(Errno),
    /// A transfer moves at most so many bytes (at least 1, so that loops end).
    Short(usize),
}

/// Which of the matching calls a rule strikes, counted from the moment the rule is made; 0 is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// Only this one.
    Nth(u64),
    /// This one and all later ones.
    From(u64),
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    call: Option<Call>,
    when: Occurrence,
    fault: Fault,
    seen: u64,
}

struct Plan {
    total: AtomicU64,
    counts: [AtomicU64; Call::ALL.len()],
    /// From this call on (as `total` counts) the process counts as dead.
    kill_at: AtomicU64,
    rules: Mutex<Vec<Rule>>,
}

/// The kernel, with faults. Clones share their plan and their counts.
#[derive(Clone)]
pub struct Faulty(Arc<Plan>);

/// What calls answer once the process counts as dead.
pub const DEAD: Errno = Errno::SHUTDOWN;

impl Default for Faulty {
    fn default() -> Self {
        Self::new()
    }
}

impl Faulty {
    /// Without any fault yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Plan {
            total: AtomicU64::new(0),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            kill_at: AtomicU64::new(u64::MAX),
            rules: Mutex::new(Vec::new()),
        }))
    }

    /// Adds a rule for calls of one kind, or of every kind. Of several that strike, the
    /// first failure decides, or else the shortest transfer.
    pub fn add(&self, call: Option<Call>, when: Occurrence, fault: Fault) {
        self.rules(|rules| rules.push(Rule { call, when, fault, seen: 0 }));
    }

    /// The `nth` call from now (0: the next) of this kind, or of any, fails once.
    pub fn fail_nth(&self, call: Option<Call>, nth: u64, errno: Errno) {
        self.add(call, Occurrence::Nth(nth), Fault::Fail(errno));
    }

    /// Every call of this kind fails from now on.
    pub fn fail_all(&self, call: Call, errno: Errno) {
        self.add(Some(call), Occurrence::From(0), Fault::Fail(errno));
    }

    /// Every transfer of this kind moves at most `len` bytes from now on.
    pub fn short(&self, call: Call, len: usize) {
        self.add(Some(call), Occurrence::From(0), Fault::Short(len.max(1)));
    }

    /// From the `nth` call from now (0: the next) on, nothing reaches the kernel any more, as if the process had
    /// been killed; every call answers [`DEAD`].
    pub fn kill_at(&self, nth: u64) {
        self.0.kill_at.store(self.total().saturating_add(nth), SeqCst);
    }

    /// Whether the kill has struck.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.total() > self.0.kill_at.load(SeqCst)
    }

    /// Calls so far, refused ones included.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.total.load(SeqCst)
    }

    /// Calls of one kind so far, refused ones included.
    #[must_use]
    pub fn count(&self, call: Call) -> u64 {
        self.0.counts.get(call as usize).map_or(0, |count| count.load(SeqCst))
    }

    /// Forgets all rules, the kill and the counts.
    pub fn reset(&self) {
        self.rules(Vec::clear);
        self.0.kill_at.store(u64::MAX, SeqCst);
        self.0.total.store(0, SeqCst);
        for count in &self.0.counts {
            count.store(0, SeqCst);
        }
    }

    fn rules<R>(&self, act: impl FnOnce(&mut Vec<Rule>) -> R) -> R {
        act(&mut self.0.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Rule {
    /// Counts a call if it matches, and says what happens to it.
    fn strike(&mut self, call: Call) -> Option<Fault> {
        if self.call.is_some_and(|kind| kind != call) {
            return None;
        }
        let number = self.seen;
        self.seen += 1;
        let hit = match self.when {
            Occurrence::Nth(nth) => number == nth,
            Occurrence::From(nth) => number >= nth,
        };
        hit.then_some(self.fault)
    }
}

impl Sys for Faulty {
    fn gate(&self, call: Call, len: usize) -> Result<usize, Errno> {
        let number = self.0.total.fetch_add(1, SeqCst);
        if let Some(count) = self.0.counts.get(call as usize) {
            count.fetch_add(1, SeqCst);
        }
        if number >= self.0.kill_at.load(SeqCst) {
            return Err(DEAD);
        }
        // Every rule counts every call, also when another one has struck already.
        self.rules(|rules| {
            let (mut allowed, mut failure) = (len, None);
            for fault in rules.iter_mut().filter_map(|rule| rule.strike(call)) {
                match fault {
                    Fault::Fail(errno) => failure = failure.or(Some(errno)),
                    Fault::Short(max) => allowed = allowed.min(max),
                }
            }
            failure.map_or(Ok(allowed), Err)
        })
    }
}
