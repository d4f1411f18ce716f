//! Hard links: several names, one file.
//!
//! In memory, an inode with several links is found by its number, so that all its names lead to one node. In a
//! lower layer, the other names of an inode are found by listing the layer once: when such a file is copied up,
//! all names that show in the union become hard links in the upper, and stay linked for whoever mounts it.

use crate::layer::c_string;
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock, Weak};
use vellum_vfs::{Branch, BranchDir, Errno, FileKind, Name, Result};

const SHARDS: usize = 64;
/// Deepest directory in a layer that is searched for hard links.
const DEPTH_MAX: usize = 1024;

/// An inode in a layer: layer index and the layer's own inode number.
pub(crate) type InodeKey = (u16, u64);

/// A part of the map.
type Shard = Mutex<HashMap<InodeKey, Weak<Node>>>;

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
        shard.insert(key, Arc::downgrade(node));
    }

    /// Forgets what is known of an inode.
    pub(crate) fn remove(&self, key: InodeKey) {
        self.shard(key).lock().remove(&key);
    }
}

/// Drops entries of nodes that are gone, when the map is about to grow.
pub(crate) fn prune(shard: &mut HashMap<InodeKey, Weak<Node>>) {
    if shard.len() == shard.capacity() {
        shard.retain(|_, node| node.strong_count() > 0);
    }
}

/// All names of every inode that has several names in one layer.
#[derive(Default)]
pub(crate) struct LayerLinks {
    names: OnceLock<HashMap<u64, Vec<Box<CStr>>>>,
}

impl LayerLinks {
    /// Paths in the layer (no leading slash) of the inode `ino`.
    pub(crate) fn paths(&self, branch: &dyn Branch, ino: u64) -> Result<&[Box<CStr>]> {
        let names = match self.names.get() {
            Some(names) => names,
            None => {
                let found = scan(branch)?;
                self.names.get_or_init(|| found)
            }
        };
        Ok(names.get(&ino).map_or(&[], Vec::as_slice))
    }
}

/// Lists the layer twice: first numbers only, then the names of those that occur twice.
fn scan(branch: &dyn Branch) -> Result<HashMap<u64, Vec<Box<CStr>>>> {
    let mut times: HashMap<u64, bool> = HashMap::new();
    walk(&*branch.root(), &mut Vec::new(), 0, &mut |_, ino| {
        times.entry(ino).and_modify(|again| *again = true).or_insert(false);
    })?;
    times.retain(|_, again| *again);
    let mut names: HashMap<u64, Vec<Box<CStr>>> = HashMap::new();
    walk(&*branch.root(), &mut Vec::new(), 0, &mut |path, ino| {
        if times.contains_key(&ino) {
            names.entry(ino).or_default().push(c_string(path.to_vec()));
        }
    })?;
    Ok(names)
}

fn walk(
    dir: &dyn BranchDir,
    path: &mut Vec<u8>,
    depth: usize,
    each: &mut dyn FnMut(&[u8], u64),
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Ok(());
    }
    let mut inner: Vec<Box<CStr>> = Vec::new();
    let base = path.len();
    let push = |path: &mut Vec<u8>, name: &[u8]| {
        if base > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    };
    dir.list(&mut |item| {
        if item.kind == Some(FileKind::Directory) {
            inner.push(item.name.as_c_str().into());
        } else {
            push(path, item.name.bytes());
            each(path, item.ino);
            path.truncate(base);
        }
        Ok(())
    })?;
    for name in inner {
        let name = Name::new(&name)?;
        match dir.open_dir(name) {
            Ok(child) => {
                push(path, name.bytes());
                walk(&*child, path, depth + 1, each)?;
                path.truncate(base);
            }
            Err(e) if e.errno() == Errno::NOTDIR => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
