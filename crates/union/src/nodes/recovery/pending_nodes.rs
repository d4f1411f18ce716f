//! What a predecessor has left that has not been made again yet.

use crate::nodes::ids::slot_of;
use crate::nodes::node::Node;
use crate::nodes::recovery::ledger::{Flags, Ledger, Record, Spot};
use crate::sync::Mutex;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vellum_vfs::{Name, NodeId};

/// Ids that were at a place, each with its inode number.
type PendingIds = SmallVec<[(NodeId, u64); 1]>;

/// By place, and how many there are in each directory.
#[derive(Default)]
struct Spots {
    at: HashMap<Spot, PendingIds>,
    within: HashMap<NodeId, u32>,
}

impl Spots {
    fn add(&mut self, spot: Spot, (id, ino): (NodeId, u64), is_held: bool) {
        *self.within.entry(spot.0).or_default() += 1;
        let pending = self.at.entry(spot).or_default();
        // A node that the kernel had forgotten may have been on its way out when the next one of its file was there.
        let at = if is_held { 0 } else { pending.len() };
        pending.insert(at, (id, ino));
    }

    /// Takes the first id at a place that is wanted.
    fn take(&mut self, spot: &Spot, is_wanted: impl Fn(&(NodeId, u64)) -> bool) -> Option<NodeId> {
        let pending = self.at.get_mut(spot)?;
        let (id, _) = pending.remove(pending.iter().position(is_wanted)?);
        if pending.is_empty() {
            self.at.remove(spot);
        }
        if let Some(count) = self.within.get_mut(&spot.0) {
            *count -= 1;
            if *count == 0 {
                self.within.remove(&spot.0);
            }
        }
        Some(id)
    }
}

/// Nodes of a predecessor that have not been made again yet.
#[derive(Default)]
pub(crate) struct Recovery {
    active: AtomicBool,
    spots: Mutex<Spots>,
    /// Descriptors that hold objects without a name.
    pub(super) held: Mutex<HashMap<RawFd, OwnedFd>>,
    /// Nodes that were made without a name, some of which no lookup of the kernel holds. Its lock: one is made at a time.
    pub(super) gone: Mutex<HashMap<NodeId, Weak<Node>>>,
    /// Nodes by which the files of stale ones are found.
    successors: HashSet<NodeId>,
    /// The last serial number that a predecessor gave to an id.
    serial: u32,
}

impl Recovery {
    pub(crate) fn from_ledger(ledger: Option<&Ledger>) -> Self {
        let successors = ledger.into_iter().flat_map(Ledger::records).filter_map(|r| r.successor).collect();
        let serial = ledger.map_or(0, Ledger::serial);
        let recovery = Self { successors, serial, ..Self::default() };
        {
            let mut spots = recovery.spots.lock();
            for record in ledger.into_iter().flat_map(Ledger::records) {
                recovery.active.store(true, Relaxed);
                if record.flags.intersects(Flags::GONE | Flags::STALE) {
                    continue;
                }
                for spot in record.places {
                    spots.add(spot, (record.id, record.ino), record.lookups > 0);
                }
            }
        }
        recovery
    }

    /// Whether a predecessor has given an id out.
    pub(super) const fn is_of_predecessor(&self, id: NodeId) -> bool {
        slot_of(id).1 <= self.serial
    }

    /// Whether the file of a stale node was to be found by a node.
    pub(crate) fn is_successor(&self, id: NodeId) -> bool {
        self.successors.contains(&id)
    }

    /// Whether a node without a name has been made again.
    pub(super) fn is_recovered(&self, id: NodeId) -> bool {
        self.gone.lock().get(&id).is_some_and(|node| node.strong_count() > 0)
    }

    /// Whether anything may have to be made again.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    pub(super) fn take(&self, parent: NodeId, name: Name<'_>, ino: u64) -> Option<NodeId> {
        let spot = (parent, Box::<CStr>::from(name.as_c_str()));
        self.spots.lock().take(&spot, |(_, known)| *known == ino)
    }

    /// An object has another number than was written down.
    pub(super) fn renumber(&self, record: &Record, number: u64) {
        let mut spots = self.spots.lock();
        for spot in &record.places {
            let pending = spots.at.get_mut(spot).into_iter().flatten();
            pending.filter(|(id, _)| *id == record.id).for_each(|(_, known)| *known = number);
        }
    }

    /// Gives an id up that nobody will ask for any more, so that its node is never made again. False: somebody makes it, or has made it;
    /// or others are to be found through it.
    pub(super) fn abandon(&self, record: &Record) -> bool {
        let mut spots = self.spots.lock();
        if spots.within.contains_key(&record.id) {
            return false;
        }
        let mut all = true;
        for spot in &record.places {
            all &= spots.take(spot, |(id, _)| *id == record.id).is_some();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_known_to_the_kernel_is_recovered() {
        let (name, ino) = (Name::new(c"f").unwrap(), 77);
        for held in [0, 1] {
            let ledger = Ledger::create().unwrap();
            ledger.chunk_begins(0);
            let ids = [NodeId(1 << 32 | 5), NodeId(2 << 32 | 4)];
            for id in ids {
                ledger.enter(id, ino, Some((NodeId::ROOT, name)), Flags::empty());
            }
            ledger.set_lookups(ids[held], 1);
            let recovery = Recovery::from_ledger(Some(&ledger));
            assert_eq!(recovery.take(NodeId::ROOT, name, ino), Some(ids[held]));
            assert_eq!(recovery.take(NodeId::ROOT, name, ino), Some(ids[1 - held]));
            assert_eq!(recovery.take(NodeId::ROOT, name, ino), None);
        }
    }
}
