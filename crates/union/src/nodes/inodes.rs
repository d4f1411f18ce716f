//! Inodes that have several links are found by their numbers, so that all their names lead to one node.

use crate::layers::layer::InodeKey;
use crate::nodes::node::{File, Node};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

const SHARDS: usize = 64;

/// What is known of an inode. A file whose node was swapped may be left with old nodes only; it is the same file, and
/// gets another node.
pub(crate) struct InodeEntry {
    node: Weak<Node>,
    file: Weak<File>,
    /// Inode number as the union shows it.
    pub(crate) ino: u64,
}

impl InodeEntry {
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        let file = node.as_file().map_or_else(Weak::new, Arc::downgrade);
        Self { node: Arc::downgrade(node), file, ino: node.ino }
    }

    /// The file, and its node if that is still there. To be dropped without any lock.
    pub(crate) fn get(&self) -> Option<(Arc<File>, Option<Arc<Node>>)> {
        Some((self.file.upgrade()?, self.node.upgrade()))
    }
}

/// A part of the map.
pub(crate) type Shard = Mutex<HashMap<InodeKey, InodeEntry>>;

/// Nodes by inode, for inodes that have, or had, several links.
pub(crate) struct Inodes {
    shards: Box<[Shard]>,
}

impl Inodes {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// The part of the map that holds `key`; locked while a node is found or made.
    pub(crate) fn shard(&self, key: InodeKey) -> &Shard {
        let mixed = key.1.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.shards[mixed as usize % SHARDS]
    }

    /// Notes the node of an inode.
    pub(crate) fn set(&self, key: InodeKey, node: &Arc<Node>) {
        let mut shard = self.shard(key).lock();
        prune(&mut shard);
        shard.insert(key, InodeEntry::new(node));
    }

    /// Drops entries of nodes that are gone.
    pub(crate) fn trim(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|_, known| known.file.strong_count() > 0);
            shard.shrink_to_fit();
        }
    }

    /// Forgets what is known of an inode.
    pub(crate) fn remove(&self, key: InodeKey) {
        self.shard(key).lock().remove(&key);
    }
}

/// Drops entries of nodes that are gone, when the map is about to grow.
pub(crate) fn prune(shard: &mut HashMap<InodeKey, InodeEntry>) {
    if shard.len() == shard.capacity() {
        shard.retain(|_, known| known.file.strong_count() > 0);
    }
}
