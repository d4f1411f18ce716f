//! Hard links: several names, one file.
//!
//! In memory, an inode with several links is found by its number, so that all its names lead to one node. In a
//! lower layer, the other names of an inode are found by listing the layer once: when such a file is copied up,
//! all names that show in the union become hard links in the upper, and stay linked for whoever mounts it.

use crate::layer::{Layer, c_string};
use crate::node::{File, Node};
use crate::sync::Mutex;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock, Weak};
use vellum_vfs::{Branch, BranchDir, Errno, FileKind, Name, Result};

const SHARDS: usize = 64;
/// Deepest directory in a layer that is searched for hard links.
const DEPTH_MAX: usize = 1024;

/// An inode in a layer: layer index and the layer's own inode number.
pub(crate) type InodeKey = (u16, u64);

/// What is known of an inode. A file whose node was swapped may be left with old nodes only; it is the same file, and
/// gets another node.
pub(crate) struct Known {
    node: Weak<Node>,
    file: Weak<File>,
    /// Inode number as the union shows it.
    pub(crate) ino: u64,
}

impl Known {
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
type Shard = Mutex<HashMap<InodeKey, Known>>;

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
        shard.insert(key, Known::new(node));
    }

    /// Forgets what is known of an inode.
    pub(crate) fn remove(&self, key: InodeKey) {
        self.shard(key).lock().remove(&key);
    }
}

/// Drops entries of nodes that are gone, when the map is about to grow.
pub(crate) fn prune(shard: &mut HashMap<InodeKey, Known>) {
    if shard.len() == shard.capacity() {
        shard.retain(|_, known| known.file.strong_count() > 0);
    }
}

/// A directory of a layer that shows through to another path of the layers below it.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    /// Its path in the union of the layers below.
    pub(crate) from: Box<[u8]>,
    /// Its path in the layer.
    pub(crate) to: Box<[u8]>,
}

impl Moved {
    /// Where a path of the layers below is now, if it is in this directory.
    pub(crate) fn apply(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = path.strip_prefix(&*self.from)?;
        (rest.first() == Some(&b'/')).then(|| [&*self.to, rest].concat())
    }
}

/// All names of every inode that has several names in one layer, and all directories that have moved in it.
#[derive(Default)]
pub(crate) struct LayerLinks {
    names: OnceLock<HashMap<u64, Vec<Box<CStr>>>>,
    moved: Mutex<Option<Arc<Vec<Moved>>>>,
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

    /// Directories of the layer that have moved.
    pub(crate) fn moved(&self, layer: &Layer) -> Result<Arc<Vec<Moved>>> {
        if let Some(known) = &*self.moved.lock() {
            return Ok(Arc::clone(known));
        }
        let mut found = Vec::new();
        find_moved(layer, &*layer.branch.root(), b"", b"", 0, &mut found)?;
        let found = Arc::new(found);
        *self.moved.lock() = Some(Arc::clone(&found));
        Ok(found)
    }

    /// A directory of the layer has moved since.
    pub(crate) fn moved_again(&self) {
        *self.moved.lock() = None;
    }
}

/// Collects the directories with a redirect below `dir`, whose path is `path` in the layer and `below` in the union of
/// the layers below it.
fn find_moved(
    layer: &Layer,
    dir: &dyn BranchDir,
    path: &[u8],
    below: &[u8],
    depth: usize,
    found: &mut Vec<Moved>,
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Ok(());
    }
    let mut inner: Vec<Box<CStr>> = Vec::new();
    dir.list(&mut |item| {
        if matches!(item.kind, None | Some(FileKind::Directory)) {
            inner.push(item.name.as_c_str().into());
        }
        Ok(())
    })?;
    let under =
        |base: &[u8], name: &[u8]| if base.is_empty() { name.to_vec() } else { [base, b"/", name].concat() };
    for name in inner {
        let name = Name::new(&name)?;
        let child = match dir.open_dir(name) {
            Ok(child) => child,
            Err(e) if matches!(e.errno(), Errno::NOTDIR | Errno::LOOP) => continue,
            Err(e) => return Err(e),
        };
        let at = under(path, name.bytes());
        let from = match crate::marks::read_dir_marks(&*child, layer.marking.spaces)?.redirect {
            Some(redirect) => {
                let from = match redirect.strip_prefix(b"/") {
                    Some(absolute) => absolute.to_vec(),
                    None => under(below, &redirect),
                };
                found.push(Moved { from: from.clone().into(), to: at.clone().into() });
                from
            }
            None => under(below, name.bytes()),
        };
        find_moved(layer, &*child, &at, &from, depth + 1, found)?;
    }
    Ok(())
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
        if matches!(item.kind, None | Some(FileKind::Directory)) {
            inner.push(item.name.as_c_str().into());
        }
        if item.kind != Some(FileKind::Directory) {
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
            Err(e) if matches!(e.errno(), Errno::NOTDIR | Errno::LOOP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Moved;

    #[test]
    fn a_path_moves_with_its_directory_only() {
        let moved = Moved { from: b"a/b"[..].into(), to: b"x"[..].into() };
        assert_eq!(moved.apply(b"a/b/c").as_deref(), Some(&b"x/c"[..]));
        assert_eq!(moved.apply(b"a/bc"), None);
        assert_eq!(moved.apply(b"a/b"), None);
    }
}
