//! What the kernel holds of a branch that is shown.

use std::collections::HashMap;
use std::sync::Arc;
use vellum_union::HostEntry;
use vellum_vfs::{Attr, BranchDir, Errno, FileKind, NodeId, Result};

/// An object by its inode number. The kernel refuses one node of two kinds, and a number may go from one object to another.
type Number = (u64, FileKind);

/// An object of the branch.
pub(super) type ViewObject = HostEntry;

/// The directory that it is. ENOTDIR.
pub(super) fn directory(held: &ViewObject) -> Result<&dyn BranchDir> {
    match held {
        HostEntry::Directory(dir, _) => Ok(&**dir),
        _ => Err(Errno::NOTDIR.into()),
    }
}

struct Node {
    held: ViewObject,
    number: Number,
    lookups: u64,
}

/// All that the kernel has looked up and not forgotten.
pub(super) struct Nodes {
    root: ViewObject,
    known: HashMap<NodeId, Node>,
    /// One node for all names of an object.
    by_number: HashMap<Number, NodeId>,
    last: u64,
}

impl Nodes {
    pub(super) fn new(root: Arc<dyn BranchDir>) -> Self {
        let root = HostEntry::Directory(root, false);
        Self { root, known: HashMap::new(), by_number: HashMap::new(), last: NodeId::ROOT.0 }
    }

    /// What is behind a node. ESTALE: it was never told, or is forgotten.
    pub(super) fn object(&self, node: NodeId) -> Result<ViewObject> {
        if node == NodeId::ROOT {
            return Ok(self.root.clone());
        }
        self.known.get(&node).map(|node| node.held.clone()).ok_or_else(|| Errno::STALE.into())
    }

    /// The node of an object, looked up once more.
    pub(super) fn add(&mut self, held: ViewObject, attr: &Attr) -> NodeId {
        let number = (attr.ino, attr.kind());
        if let Some(id) = self.by_number.get(&number)
            && let Some(node) = self.known.get_mut(id)
        {
            node.held = held;
            node.lookups += 1;
            return *id;
        }
        self.last += 1;
        let id = NodeId(self.last);
        self.known.insert(id, Node { held, number, lookups: 1 });
        self.by_number.insert(number, id);
        id
    }

    pub(super) fn forget(&mut self, id: NodeId, count: u64) {
        let Some(node) = self.known.get_mut(&id) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0 {
            self.by_number.remove(&node.number);
            self.known.remove(&id);
        }
    }
}
