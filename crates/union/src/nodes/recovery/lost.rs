//! Forgets that are lost.
//!
//! The kernel says once that it has forgotten nodes, and waits for no answer. A service that is killed when it has read that, and not
//! written it down, leaves records of nodes that nobody will ever forget, with what they hold: files without a name stay open. So does
//! one that has counted a lookup and not answered it: the kernel asks again, and forgets what it was told. So a successor
//! asks the kernel which of the nodes it holds at all.

use crate::nodes::recovery::ledger::Record;
use crate::union::Core;
use vellum_vfs::NodeId;

/// Ids that the kernel does not hold, and how often it is said to have looked them up.
#[derive(Debug, Default)]
pub struct NotHeld(Vec<(NodeId, u64)>);

impl NotHeld {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Core {
    /// Ids of a predecessor that the kernel does not hold now. Answers that make them known may be on their way. None: no kernel has
    /// begun to ask.
    pub(crate) fn not_held(&self) -> Option<NotHeld> {
        let kernel = self.coherence.kernel()?;
        let Some(ledger) = self.nodes.ledger().filter(|_| self.nodes.is_recovering()) else {
            return Some(NotHeld::default());
        };
        // Ids of this process are in its table.
        let is_lost = |record: &Record| {
            record.id != NodeId::ROOT
                && self.nodes.recovery.is_of_predecessor(record.id)
                && !kernel.notifier.holds(record.id)
        };
        Some(NotHeld(ledger.records().filter(is_lost).map(|record| (record.id, record.lookups)).collect()))
    }

    /// Forgets those that the kernel still does not hold, and has not been told of in between: no answer takes as long as the caller has
    /// waited. How many.
    pub(crate) fn forget_lost(&self, before: &NotHeld) -> usize {
        let Some(kernel) = self.coherence.kernel() else { return 0 };
        let is_lost = |&&(id, lookups): &&(NodeId, u64)| {
            self.nodes.is_held_as_often(id, lookups) && !kernel.notifier.holds(id)
        };
        // Not more often than then: an answer may be on its way now.
        before.0.iter().filter(is_lost).map(|(id, lookups)| self.forget(*id, *lookups)).count()
    }
}
