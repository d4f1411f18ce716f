//! Counting by many threads: each has a cache line of its own, so that counting writes nothing that others write.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Threads beyond so many share lines.
const LINES: usize = 16;

/// Two lines, for processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Debug)]
pub(crate) struct Counter([Line; LINES]);

impl Default for Counter {
    fn default() -> Self {
        Self(from_fn(|_| Line(AtomicU64::new(0))))
    }
}

impl Counter {
    pub(crate) fn add(&self) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static OWN: usize = NEXT.fetch_add(1, Relaxed) % LINES;
        }
        if let Some(Line(line)) = OWN.with(|own| self.0.get(*own)) {
            line.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|Line(line)| line.load(Relaxed)).sum()
    }
}
