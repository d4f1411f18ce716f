//! The union of an instance: from plain data to the union's own terms.

use crate::config::{BlockCopy, BlockMap, Config, OverrideStat, Profile};
use crate::failure::Failure;
use crate::instance::inspect::{Explain, NodeAnswer, Step};
use crate::layers::Layers;
use crate::layers::source::LayerSource;
use crate::process::{boot_id, node_memory};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use vellum_union::{Budget, DURABLE, Extent, Mappable, Squash, Union, UnionConfig, UpperConfig};
use vellum_vfs::{Errno, NodeId, Result};

/// Hundredths of a filesystem that are left free by what nobody has asked for.
const SPARE: u64 = 5;
/// So much may wait to be written when somebody else wants the layer: a sync cannot be interrupted, and keeps the layer busy.
const SYNCED_AFTER: u64 = 4 << 20;

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
        profile: match config.profile {
            Profile::Cached => vellum_union::Profile::Cached,
            Profile::Passthrough => vellum_union::Profile::Passthrough,
        },
        uid_map: config.uid_map.clone(),
        gid_map: config.gid_map.clone(),
        squash: Squash { uid: config.squash_uid, gid: config.squash_gid },
        volatile: config.volatile,
        override_stat: config.override_owners.map(|kind| match kind {
            OverrideStat::Privileged => vellum_union::OverrideStat::Privileged,
            OverrideStat::User => vellum_union::OverrideStat::User,
        }),
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
    let far = config.written().is_some_and(|(upper, _)| is_far(upper));
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

impl Explain for Union {
    fn explain(&self, node: NodeId) -> Result<NodeAnswer> {
        let found = Self::explain(self, node)?;
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

    fn mappable(&self, node: NodeId) -> Result<Option<Mappable>> {
        Self::mappable(self, node)
    }

    fn background_fill(&self, bytes: u64) -> u64 {
        Self::background_fill(self, bytes)
    }

    fn sync_all(&self) -> Result<()> {
        Self::sync_all(self)
    }

    fn complete(&self, bytes: u64, go_on: &mut dyn FnMut(Step) -> bool) -> Result<Option<String>> {
        if !self.needs_lowers() {
            return Ok(None);
        }
        let extent = Extent { bytes, spare: SPARE, synced_after: SYNCED_AFTER };
        let done = self.flatten(extent, &mut |state| {
            go_on(if state.syncing { Step::Syncing } else { Step::Copied(state.bytes_done) })
        })?;
        if let Some((path, why)) = done.failed.first() {
            tracing::warn!(path, %why, files = done.files_failed, "files that take data from other layers stay so");
        }
        Ok((done.files > 0).then(|| {
            format!("{} of {} files completed that took data from other layers", done.files_done, done.files)
        }))
    }

    fn figures(&self) -> BTreeMap<String, u64> {
        BTreeMap::from([
            ("nodes".to_owned(), self.nodes() as u64),
            ("partial_files".to_owned(), self.partial_files() as u64),
        ])
    }

    fn summary(&self) -> BTreeMap<String, String> {
        let found = Self::summary(self);
        let mut summary = BTreeMap::from([
            ("nodes".to_owned(), found.nodes.to_string()),
            ("marks".to_owned(), found.xattrs.to_owned()),
        ]);
        if !found.whiteouts.is_empty() {
            summary.insert("whiteouts".to_owned(), found.whiteouts.to_owned());
        }
        summary
    }
}
