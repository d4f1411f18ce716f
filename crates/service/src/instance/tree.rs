//! The union of an instance: from plain data to the union's own terms.

use crate::config::{BlockCopy, BlockMap, Config, Profile};
use crate::failure::Failure;
use crate::instance::inspect::NodeAnswer;
use crate::layers::Layers;
use crate::layers::source::LayerSource;
use crate::process::{boot_id, node_memory};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use vellum_union::{Budget, DURABLE, Squash, Union, UnionConfig, UpperConfig};
use vellum_vfs::{Errno, NodeId, Result};

/// What all trees of the process keep open: it has one limit of descriptors, which has been raised before.
fn handles() -> Arc<Budget> {
    static HANDLES: OnceLock<Arc<Budget>> = OnceLock::new();
    let new = || Arc::new(Budget::new(UnionConfig::HANDLES, vellum_sys::descriptor_limit()));
    Arc::clone(HANDLES.get_or_init(new))
}

/// Makes the tree of `layers`; `further`: what it has of the process.
pub fn build(
    config: &Config,
    layers: Layers,
    further: impl FnOnce(&mut UnionConfig),
) -> std::result::Result<Union, Failure> {
    let mut wanted = UnionConfig {
        nodes: Arc::clone(node_memory::limit()),
        upper: layers.upper.map(|(branch, work)| UpperConfig { branch, work }),
        lowers: layers.lowers,
        profile: config.profile,
        uid_map: config.uid_map.clone(),
        gid_map: config.gid_map.clone(),
        squash: Squash { uid: config.squash_uid, gid: config.squash_gid },
        volatile: config.volatile,
        override_stat: config.override_owners,
        static_nlink: config.static_nlink,
        no_xattr: config.no_xattrs,
        no_acl: config.no_acl,
        handles: handles(),
        ..UnionConfig::new()
    };
    // Where nobody writes, nothing has to stay one file.
    if config.writable() {
        wanted.passthrough_from = vellum_union::PASSTHROUGH_FROM;
    }
    match config.block_copy {
        BlockCopy::Usual if config.profile == Profile::Passthrough => {
            wanted.partial_from = Some(vellum_union::PARTIAL_FROM_PASSTHROUGH);
        }
        BlockCopy::Usual => {}
        BlockCopy::Off => wanted.partial_from = None,
        BlockCopy::From(bytes) => wanted.partial_from = Some(bytes),
    }
    // Holes cannot be seen on CephFS, and such a layer may be on another host tomorrow. What is not synced to a store may be gone with this
    // process.
    let is_far = |upper: &LayerSource| upper.ceph().is_some() || upper.zoned().is_some();
    let far = config.writable_layers().is_some_and(|(upper, _)| is_far(upper));
    wanted.run = if far { Some(DURABLE) } else { boot_id::run() };
    wanted.sidecars = far || config.block_map == BlockMap::Sidecar;
    if let Some(timeout) = config.timeout {
        wanted.ttl = timeout;
    }
    further(&mut wanted);
    Union::new(wanted).map_err(|e| match e.errno() {
        Errno::INVAL => Failure::input(e.to_string()),
        _ => Failure::system("cannot read the layers").because(e),
    })
}

/// Where `node` comes from.
pub(super) fn explain(tree: &Union, node: NodeId) -> Result<NodeAnswer> {
    let found = tree.explain(node)?;
    let mut details = BTreeMap::new();
    details.insert("inode".to_owned(), found.ino.to_string());
    match (found.data_below, found.blocks) {
        (Some((layer, path)), Some(blocks)) => {
            let share = 100.0 * blocks.own as f64 / blocks.limit.max(1) as f64;
            let text = format!(
                "{} of {} bytes its own ({share:.1} %), {} saved; the others in layer {layer}: {path}",
                blocks.own,
                blocks.limit,
                blocks.limit.saturating_sub(blocks.own)
            );
            details.insert("data".to_owned(), text);
        }
        (Some((layer, path)), None) => {
            details.insert("data".to_owned(), format!("still in layer {layer}: {path}"));
        }
        (None, _) => {}
    }
    if found.stale {
        details.insert("node".to_owned(), "replaced by a newer one of the same file".to_owned());
    }
    Ok(NodeAnswer {
        layer: found.layer,
        path: found.layer_path,
        in_upper: found.in_upper,
        merged_from: found.merged_from,
        details,
    })
}

/// What a tree counts, by name.
pub(super) fn figures(tree: &Union) -> BTreeMap<String, u64> {
    BTreeMap::from([
        ("nodes".to_owned(), tree.nodes() as u64),
        ("partial_files".to_owned(), tree.partial_files() as u64),
    ])
}

/// What is to be said of a tree as a whole, by name.
pub(super) fn summary(tree: &Union) -> BTreeMap<String, String> {
    let found = tree.summary();
    let mut summary = BTreeMap::from([
        ("nodes".to_owned(), found.nodes.to_string()),
        ("marks".to_owned(), found.xattrs.to_owned()),
    ]);
    if !found.whiteouts.is_empty() {
        summary.insert("whiteouts".to_owned(), found.whiteouts.to_owned());
    }
    summary
}
