//! Branches, the storage under a union: local directories, directories of CephFS, the store on zoned devices, and memory for tests and
//! models.
//!
//! [`DataCacheBranch`] reads any of them through a cache, [`MetadataCacheBranch`] asks none of them twice.
#![forbid(unsafe_code)]

mod acl;
mod ceph;
mod convert;
mod data_cache;
mod exact_io;
mod kernel_checks;
mod local;
mod memory;
mod metadata_cache;
mod path;
mod tree;
mod writeback;
mod xattr;
mod zoned;

pub use ceph::{
    CEPH_WRITER, CephAccess, CephBranch, CephClaim, CephClient, CephLineage, CephRefusal, CephSetup,
    CephTrouble, CephWriter, ceph_calls, ceph_clients, load_ceph, on_expulsion,
};
pub use data_cache::{DataCacheBranch, SETTLE, VersionCheck};
pub use local::{LocalBranch, LocalExport};
pub use memory::{MemoryBranch, MemoryOptions};
pub use metadata_cache::{MetadataCache, MetadataCacheBranch};
pub use writeback::{ReplayOutcome, Writeback, WritebackLimits, parse_hostile_log};
pub use zoned::{ZonedBranch, ZonedTree};

#[cfg(test)]
#[path = "../tests/support/fault/mod.rs"]
mod fault;
