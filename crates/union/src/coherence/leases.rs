//! What the kernel may believe of a directory, and what must have reached it before programs change the directory's names past it.

use crate::coherence::negative_dentries::NegativeDentries;
use crate::sync::Mutex;
use crate::sync::{AtomicBool, AtomicU64};
use std::sync::atomic::Ordering::SeqCst;
use vellum_vfs::ActiveOperations;

/// What the kernel may believe of a directory.
pub(crate) struct DirLease {
    pub(crate) attributes: AtomicBool,
    /// That names are not there.
    pub(crate) negative: NegativeDentries,
    /// Lists of its names: how often it was told one, ...
    names: AtomicU64,
    /// ... and how often it had been when that was last taken back. Never the same number twice: answers that are waited for are known by it.
    taken_back: AtomicU64,
    /// Programs make names in it past the mount: when they last did, as [`Handouts::now`](crate::coherence::writers::Handouts::now) has it; 0: they do not.
    pub(crate) shared: AtomicU64,
    /// What has to arrive before they may.
    waits: Mutex<Option<Box<Waits>>>,
}

/// Answers that had not arrived, and how many lists of names had been told then.
struct Waits {
    /// None: they have arrived since.
    answers: Option<Box<dyn ActiveOperations>>,
    names: u64,
}

impl DirLease {
    /// Of a directory of which nothing is known.
    pub(crate) fn everything() -> Self {
        Self {
            attributes: AtomicBool::new(true),
            negative: NegativeDentries::default(),
            names: AtomicU64::new(1),
            taken_back: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            waits: Mutex::new(None),
        }
    }

    /// The kernel has just heard of the directory.
    pub(crate) fn reset(&self) {
        self.attributes.store(false, SeqCst);
        self.recall_names();
    }

    /// The kernel is being told a list of names.
    pub(crate) fn note_names_sent(&self) {
        self.names.fetch_add(1, SeqCst);
    }

    /// Whether the kernel may believe in a list, which is about to be taken back. Not while it is being told one.
    pub(crate) fn recall_names(&self) -> bool {
        let names = self.names.load(SeqCst);
        self.taken_back.swap(names, SeqCst) != names
    }

    /// Whether no answer is on its way, of those `under_way`, that a change of the directory's names would make wrong for ever. The caller holds the
    /// directory's `ops` exclusively: what begins later sees that it is shared.
    pub(crate) fn has_no_pending_answers(
        &self,
        under_way: impl FnOnce() -> Box<dyn ActiveOperations>,
        now: u64,
    ) -> bool {
        let names = self.names.load(SeqCst);
        if self.shared.load(SeqCst) != now {
            self.shared.store(now, SeqCst);
        }
        let mut waits = self.waits.lock();
        let untold =
            names != self.taken_back.load(SeqCst) && waits.as_ref().is_none_or(|waits| waits.names != names);
        if untold {
            *waits = Some(Box::new(Waits { answers: Some(under_way()), names }));
        }
        let Some(waits) = &mut *waits else { return true };
        waits.answers.take_if(|answers| answers.is_finished());
        waits.answers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// An answer that may be on its way.
    #[derive(Clone)]
    struct Slow(Arc<AtomicBool>);

    impl ActiveOperations for Slow {
        fn is_finished(&self) -> bool {
            !self.0.load(SeqCst)
        }
    }

    #[test]
    fn a_recall_waits_for_pending_answers() {
        let kernel = Slow(Arc::new(AtomicBool::new(true)));
        let now = || Box::new(kernel.clone()) as Box<dyn ActiveOperations>;
        let lease = DirLease::everything();
        lease.reset();
        assert!(lease.has_no_pending_answers(now, 1), "nothing was told");
        lease.note_names_sent();
        assert!(
            !lease.has_no_pending_answers(now, 1) && !lease.has_no_pending_answers(now, 1),
            "a list is on its way"
        );
        kernel.0.store(false, SeqCst);
        assert!(lease.has_no_pending_answers(now, 1), "it has arrived");
        kernel.0.store(true, SeqCst);
        lease.note_names_sent();
        assert!(!lease.has_no_pending_answers(now, 1), "another one");
        kernel.0.store(false, SeqCst);
        assert!(
            lease.has_no_pending_answers(now, 1) && lease.has_no_pending_answers(|| panic!("asked again"), 1),
            "once"
        );
        assert!(lease.recall_names() && !lease.recall_names());
        kernel.0.store(true, SeqCst);
        assert!(lease.has_no_pending_answers(now, 1), "it was taken back");
        lease.note_names_sent();
        assert!(!lease.has_no_pending_answers(now, 1), "the first one after that");
    }
}
