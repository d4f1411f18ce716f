//! The union of an instance: from plain data to the union's own terms.

use crate::config::{Config, OwnerRecord, Profile};
use crate::explain::{Explain, NodeAnswer};
use crate::failure::Failure;
use crate::layers::Layers;
use std::collections::BTreeMap;
use vellum_union::{Squash, Union, UnionConfig, UpperConfig};
use vellum_vfs::{NodeId, Result};

/// Makes the tree of `layers`.
pub fn build(config: &Config, layers: Layers) -> Result<Union, Failure> {
    let mut wanted = UnionConfig {
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
        override_stat: config.owner_record != OwnerRecord::Inode,
        static_nlink: config.static_nlink,
        no_xattr: config.no_xattrs,
        no_acl: config.no_acl,
        ..UnionConfig::new()
    };
    if let Some(timeout) = config.timeout {
        wanted.ttl = timeout;
    }
    Union::new(wanted).map_err(|e| Failure::system(format!("cannot read the layers: {e}")))
}
