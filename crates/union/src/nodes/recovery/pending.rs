//! What a predecessor has left that has not been made again yet.

use crate::nodes::node::Node;
use crate::nodes::recovery::ledger::{Flags, Ledger};
use crate::sync::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vellum_vfs::{Name, NodeId};

/// Ids that were at a place, each with its inode number.
type Pending = SmallVec<[(NodeId, u64); 1]>;

/// Nodes of a predecessor that have not been made again yet.
#[derive(Default)]
pub(crate) struct Recovery {
    active: AtomicBool,
    pub(super) spots: Mutex<HashMap<(NodeId, Box<CStr>), Pending>>,
    /// Descriptors that hold objects without a name.
    pub(super) held: Mutex<HashMap<RawFd, OwnedFd>>,
    /// Nodes that were made without a name, some of which no lookup of the kernel holds. Its lock: one is made at a time.
    pub(super) gone: Mutex<HashMap<NodeId, Weak<Node>>>,
}

impl Recovery {
    pub(crate) fn of(ledger: Option<&Ledger>) -> Self {
        let recovery = Self::default();
        {
            let mut spots = recovery.spots.lock();
            for record in ledger.into_iter().flat_map(Ledger::records) {
                recovery.active.store(true, Relaxed);
                if record.flags.intersects(Flags::GONE | Flags::STALE) {
                    continue;
                }
                for spot in record.places {
                    let pending = spots.entry(spot).or_default();
                    // A node that the kernel had forgotten may have been on its way out when the next one of its file was there.
                    let at = if record.lookups > 0 { 0 } else { pending.len() };
                    pending.insert(at, (record.id, record.ino));
                }
            }
        }
        recovery
    }

    /// Whether a node without a name has been made again.
    pub(super) fn is_made(&self, id: NodeId) -> bool {
        self.gone.lock().get(&id).is_some_and(|node| node.strong_count() > 0)
    }

    /// Whether anything may have to be made again.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    pub(super) fn take(&self, parent: NodeId, name: Name<'_>, ino: u64) -> Option<NodeId> {
        let mut spots = self.spots.lock();
        let spot = (parent, Box::<CStr>::from(name.as_c_str()));
        let pending = spots.get_mut(&spot)?;
        let at = pending.iter().position(|(_, known)| *known == ino)?;
        let (id, _) = pending.remove(at);
        if pending.is_empty() {
            spots.remove(&spot);
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_nodes_of_a_file_the_one_that_the_kernel_holds_is_made_again() {
        let (name, ino) = (Name::new(c"f").unwrap(), 77);
        for held in [0, 1] {
            let ledger = Ledger::create().unwrap();
            ledger.chunk_begins(0);
            let ids = [NodeId(1 << 32 | 5), NodeId(2 << 32 | 4)];
            for id in ids {
                ledger.enter(id, ino, Some((NodeId::ROOT, name)), Flags::empty());
            }
            ledger.set_lookups(ids[held], 1);
            let recovery = Recovery::of(Some(&ledger));
            assert_eq!(recovery.take(NodeId::ROOT, name, ino), Some(ids[held]));
            assert_eq!(recovery.take(NodeId::ROOT, name, ino), Some(ids[1 - held]));
            assert_eq!(recovery.take(NodeId::ROOT, name, ino), None);
        }
    }
}
