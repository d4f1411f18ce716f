//! What a kernel holds: nodes, their table, their names and numbers.

pub(crate) mod handle_ids;
pub(crate) mod ids;
pub(crate) mod ino;
pub(crate) mod inodes;
pub(crate) mod limit;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod recovery;
pub(crate) mod shared_name;
pub(crate) mod table;
pub(crate) mod text_busy;

use crate::config::UnionConfig;
use crate::layers::layer::InodeKey;
use crate::nodes::handle_ids::{ForgottenObject, Note};
use crate::nodes::inodes::{Inodes, Shard};
use crate::nodes::node::{Body, Dir, File, Node};
use crate::nodes::recovery::ledger::{Flags, Ledger};
use crate::nodes::recovery::pending_nodes::Recovery;
use crate::nodes::table::Table;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vellum_vfs::{NodeId, Result};

/// All nodes, and where they are written down.
pub(crate) struct Nodes {
    table: Arc<Table>,
    inodes: Inodes,
    /// Nodes of a predecessor that have not been made again yet.
    recovery: Recovery,
    root: Arc<Node>,
}

impl Nodes {
    /// The root alone: a directory and its inode number.
    pub(crate) fn new(config: &UnionConfig, (dir, ino): (Dir, u64)) -> Self {
        let recovery = Recovery::from_ledger(config.ledger.as_deref());
        let table = Arc::new(Table::new(
            config.ledger.clone(),
            config.generations.clone(),
            Arc::clone(&config.nodes),
        ));
        if table.ledger.as_ref().is_some_and(|ledger| ledger.negative(NodeId::ROOT)) {
            dir.lease.negative.set_unknown();
        }
        let root = Arc::new(Node::new(NodeId::ROOT, ino, Body::Dir(Box::new(dir)), &table));
        table.acquire(&root);
        Self { table, inodes: Inodes::new(), recovery, root }
    }

    /// Drops all nodes; for the end of a mount.
    pub(crate) fn clear(&self) {
        self.table.clear();
    }

    /// How many ids are taken.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// From so many nodes on, the bell is rung.
    pub(crate) fn set_alarm(&self, at: usize) {
        self.table.set_alarm(at);
    }

    /// Up to `most` nodes that the kernel knows, and where to go on.
    pub(crate) fn kernel_nodes(&self, from: usize, most: usize) -> (Vec<NodeId>, usize) {
        self.table.kernel_nodes(from, most)
    }

    /// Gives memory back that nodes have left.
    pub(crate) fn trim(&self) {
        self.inodes.trim();
        self.table.trim();
    }

    pub(crate) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// The node of an id. ESTALE: it has none, or none yet.
    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>> {
        if id == NodeId::ROOT { Ok(Arc::clone(&self.root)) } else { self.table.get(id) }
    }

    /// Where nodes are written down for a successor, if they are.
    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        self.table.ledger.as_deref()
    }

    /// Whether there may be nodes of a predecessor that have not been made again.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_active()
    }

    /// A new node; with the id that its object had before, if `key` says which one that is.
    pub(crate) fn make(&self, key: Option<InodeKey>, ino: u64, body: Body) -> Result<Arc<Node>> {
        let id = match key.and_then(|key| self.table.handle_ids.take(key)) {
            Some(id) => id,
            None => self.table.reserve()?,
        };
        Ok(Arc::new(Node::new(id, ino, body, &self.table)))
    }

    /// Makes another node of the file that `current` shows, for a handle with an id that it had before; None: the id is not free.
    pub(crate) fn make_alias(&self, id: NodeId, current: &Arc<Node>) -> Option<Arc<Node>> {
        let file = current.as_file()?;
        if !self.table.handle_ids.claim(id) {
            return None;
        }
        let node = Arc::new(Node::alias(id, current.ino, Arc::clone(file), &self.table));
        self.write_new(&node, &file.state.read().names);
        drop(self.replace(&node, current));
        Some(node)
    }

    /// A file has another node, `next`, instead of or beside `node`. The one that it had before is to be dropped without any lock.
    #[must_use]
    pub(crate) fn replace(&self, node: &Node, next: &Arc<Node>) -> Option<Arc<Node>> {
        if node.id == next.id {
            return None;
        }
        let before = node.set_successor(next);
        if let Some(ledger) = self.ledger() {
            // A file that may have names which are not known.
            if ledger.flags(node.id).contains(Flags::LINKED) {
                ledger.add(next.id, Flags::LINKED);
            }
            ledger.replace(node.id, next.id);
        }
        before
    }

    /// Counts one lookup of a node by the kernel.
    pub(crate) fn acquire(&self, node: &Arc<Node>) {
        self.table.acquire(node);
    }

    /// Whether the kernel is said to hold an id, having looked it up so often. None at all may be a forget that was not carried out.
    pub(crate) fn has_lookup_count(&self, id: NodeId, lookups: u64) -> bool {
        let is_left = || self.table.is_forgotten(id) && self.table.handle_ids.find(id).is_none();
        self.table.lookups(id) == lookups && (lookups > 0 || is_left())
    }

    /// The kernel has forgotten a node. What is open it forgets last: opens that are still counted were counted twice, by a predecessor and
    /// by this process.
    fn end_opens(&self, id: NodeId, file: Option<&Arc<File>>) {
        let Some(ledger) = self.ledger().filter(|_| self.is_recovering()) else { return };
        let cached = ledger.end_opens(id);
        if let Some(file) = file.filter(|_| cached > 0) {
            let less = |opens: u32| Some(opens.saturating_sub(cached));
            let _ = file.cached_opens.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// Gives an id up that nobody will ask for.
    fn release(&self, id: NodeId) {
        self.table.release(id);
    }

    /// Takes back `count` lookups by the kernel; the node, if none are left.
    pub(crate) fn forget(&self, id: NodeId, count: u64) -> Option<Arc<Node>> {
        self.table.forget(id, count, |node| self.end_opens(id, node.and_then(|node| node.as_file())))
    }

    /// Remembers a forgotten node for handles.
    pub(crate) fn remember(&self, id: NodeId, note: Note) {
        self.table.handle_ids.note(id, note).for_each(|free| self.table.release(free));
    }

    /// What is remembered of a forgotten node.
    pub(crate) fn remembered(&self, id: NodeId) -> Option<ForgottenObject> {
        self.table.handle_ids.find(id)
    }

    /// Closes what is kept open for handles alone.
    pub(crate) fn close_handles(&self) {
        self.table.handle_ids.close_handles().into_iter().for_each(|free| self.table.release(free));
    }

    /// Whether the kernel has never heard of a node, or has forgotten it: a program has made it past the mount. So nothing of it is
    /// believed anywhere else, and nothing can be mounted over it.
    pub(crate) fn is_unknown_to_kernel(&self, node: &Node) -> bool {
        self.table.lookups(node.id) == 0
    }

    /// The part of the nodes by inode that holds `key`; locked while a node is found or made.
    pub(crate) fn shard(&self, key: InodeKey) -> &Shard {
        self.inodes.shard(key)
    }

    /// Notes the node of an inode that has several links.
    pub(crate) fn links(&self, key: InodeKey, node: &Arc<Node>) {
        self.inodes.set(key, node);
    }

    /// Forgets what is known of an inode.
    pub(crate) fn forget_inode(&self, key: InodeKey) {
        self.inodes.remove(key);
    }

    /// An inode's number may have been another object's before, and is going to be again.
    pub(crate) fn is_new_inode(&self, key: InodeKey) {
        self.inodes.remove(key);
        self.table.handle_ids.drop_key(key);
    }
}
