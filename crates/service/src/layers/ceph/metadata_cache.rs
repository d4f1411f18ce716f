//! What this process knows of layers on CephFS that nobody changes: once for all mounts that have them, as long as one of them does.
//!
//! A layer is the same while its root is the same inode with the same count of changes, which the client mostly knows without asking. A
//! directory that was put in the place of another one so is another layer for the next mount, and a change in a root recalls all.

use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use vellum_branch::{CephBranch, CephClient, MetadataCache, MetadataCacheBranch};
use vellum_vfs::{Branch, Result};

/// Most bytes of what is known, about: 130,000 files.
const BYTES: usize = 64 << 20;

/// As [`CephBranch::version`] says. A snapshot's root has the inode number of the directory that it was taken of.
type Root = ((u64, u64), Option<u64>);

/// A layer that some mount has.
struct Layer {
    client: Weak<CephClient>,
    /// Of its root: device and inode number, and the inode's count of changes.
    root: Root,
    branch: Weak<MetadataCacheBranch>,
}

static LAYERS: Mutex<Vec<Layer>> = Mutex::new(Vec::new());

fn knowledge() -> &'static Arc<MetadataCache> {
    static KNOWLEDGE: OnceLock<Arc<MetadataCache>> = OnceLock::new();
    KNOWLEDGE.get_or_init(|| MetadataCache::new(BYTES))
}

fn find(layers: &mut Vec<Layer>, client: &Arc<CephClient>, root: Root) -> Option<Arc<MetadataCacheBranch>> {
    layers.retain(|layer| layer.branch.strong_count() > 0);
    let is_it = |layer: &&mut Layer| layer.client.as_ptr() == Arc::as_ptr(client) && layer.root.0 == root.0;
    let layer = layers.iter_mut().find(is_it)?;
    if layer.root != root {
        knowledge().recall();
        layer.root = root;
    }
    layer.branch.upgrade()
}

/// The layer that a directory is, as some mount has it.
pub(super) fn shared_layer(client: &Arc<CephClient>, branch: &CephBranch) -> Option<Arc<dyn Branch>> {
    find(&mut LAYERS.lock(), client, branch.version().ok()?).map(|branch| branch as Arc<dyn Branch>)
}

/// The layer that a directory is, for all who have it from now on.
pub(super) fn get_or_register(client: &Arc<CephClient>, branch: Arc<CephBranch>) -> Result<Arc<dyn Branch>> {
    let root = branch.version()?;
    let mut layers = LAYERS.lock();
    if let Some(there) = find(&mut layers, client, root) {
        return Ok(there);
    }
    let branch = MetadataCacheBranch::new(branch, knowledge());
    layers.push(Layer { client: Arc::downgrade(client), root, branch: Arc::downgrade(&branch) });
    Ok(branch)
}
