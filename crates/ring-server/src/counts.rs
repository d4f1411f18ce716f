//! What programs were given over rings, counted. Each program's thread counts for itself, on lines that nobody else writes to.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted, and the names that reports have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A file was opened or made.
    Open = 0,
    /// A directory was made.
    MakeDir,
    /// A symbolic link was made.
    MakeLink,
    /// Attributes were changed.
    SetAttributes,
    /// The kernel was to be asked instead.
    Kernel,
}

const NAMES: [&str; 5] = ["ring_opens", "ring_mkdirs", "ring_symlinks", "ring_setattrs", "ring_to_kernel"];

/// The counts of one program.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counts([AtomicU64; NAMES.len()]);

impl Counts {
    pub(crate) fn count(&self, call: Call) {
        if let Some(count) = self.0.get(call as usize) {
            // A plain load and store: nobody else writes here.
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }
}

/// The counts of all programs of an instance.
#[derive(Debug, Default)]
pub(crate) struct RingStats(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    programs: Vec<Arc<Counts>>,
    /// Of programs that have gone.
    past: [u64; NAMES.len()],
}

impl RingStats {
    /// Counts for one more program.
    pub(crate) fn add_program(&self) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        let mut guard = self.0.lock();
        let books = &mut *guard;
        books.programs.retain(|program| {
            let stays = Arc::strong_count(program) > 1;
            if !stays {
                add(&mut books.past, program);
            }
            stays
        });
        books.programs.push(Arc::clone(&counts));
        counts
    }

    /// All of them, by name.
    pub(crate) fn figures(&self) -> BTreeMap<String, u64> {
        let books = self.0.lock();
        let mut all = books.past;
        books.programs.iter().for_each(|program| add(&mut all, program));
        NAMES.iter().map(|name| (*name).to_owned()).zip(all).collect()
    }
}

fn add(all: &mut [u64; NAMES.len()], program: &Counts) {
    all.iter_mut().zip(&program.0).for_each(|(all, count)| *all += count.load(Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outlive_their_programs() {
        let stats = RingStats::default();
        for _ in 0..3 {
            let program = stats.add_program();
            program.count(Call::Open);
            program.count(Call::Kernel);
        }
        let last = stats.add_program();
        last.count(Call::Open);
        assert_eq!(stats.0.lock().programs.len(), 1);
        let figures = stats.figures();
        assert_eq!((figures["ring_opens"], figures["ring_to_kernel"], figures["ring_mkdirs"]), (4, 3, 0));
    }
}
