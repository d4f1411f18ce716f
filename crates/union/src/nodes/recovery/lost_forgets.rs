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
pub struct LostForgets {
    lost: Vec<(NodeId, u64)>,
    /// Ids of the predecessor that are left, these among them.
    left: usize,
}

impl LostForgets {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    /// Whether no id of the predecessor is left, so that there never will be any.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.left == 0
    }
}

impl Core {
    /// Ids of a predecessor that the kernel does not hold now. Answers that make them known may be on their way. None: no kernel has
    /// begun to ask.
    pub(crate) fn lost_forgets(&self) -> Option<LostForgets> {
        let kernel = self.coherence.kernel()?;
        let Some(ledger) = self.nodes.ledger().filter(|_| self.nodes.is_recovering()) else {
            return Some(LostForgets::default());
        };
        // Ids of this process are in its table.
        let is_old =
            |record: &Record| record.id != NodeId::ROOT && self.nodes.recovery.is_of_predecessor(record.id);
        let mut found = LostForgets::default();
        for record in ledger.records().filter(is_old) {
            found.left += 1;
            if !kernel.notifier.holds(record.id) {
                found.lost.push((record.id, record.lookups));
            }
        }
        Some(found)
    }

    /// Forgets those that the kernel still does not hold, and has not been told of in between: no answer takes as long as the caller has
    /// waited. How many.
    pub(crate) fn forget_lost(&self, before: &LostForgets) -> usize {
        let Some(kernel) = self.coherence.kernel() else { return 0 };
        let is_lost = |&&(id, lookups): &&(NodeId, u64)| {
            self.nodes.has_lookup_count(id, lookups) && !kernel.notifier.holds(id)
        };
        // Not more often than then: an answer may be on its way now.
        before.lost.iter().filter(is_lost).map(|(id, lookups)| self.forget(*id, *lookups)).count()
    }
}
