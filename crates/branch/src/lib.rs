//! Branches, the storage under a union: local directories, directories of CephFS, the store on zoned devices, and memory for tests and
//! models.
//!
//! [`CachedBranch`] reads any of them through a cache, [`KnownBranch`] asks none of them twice, [`FaultBranch`] puts faults in front of any
//! of them.
#![forbid(unsafe_code)]

mod acl;
mod behind;
mod cached;
mod ceph;
mod checks;
mod convert;
mod fault;
mod known;
mod local;
mod memory;
mod path;
mod tree;
mod whole;
mod wrappers;
mod xattr;
mod zoned;

pub use behind::{Behind, BehindLimits, Replayed, parse_hostile_log};
pub use cached::{CachedBranch, SETTLE, Sharing};
pub use ceph::{
    CEPH_WRITER, CephAccess, CephBranch, CephClaim, CephClient, CephLineage, CephRefusal, CephSetup,
    CephTrouble, CephWriter, ceph_calls, ceph_clients, load_ceph, on_expulsion,
};
pub use fault::{DEAD, FaultBranch, FaultExport, FaultPlan};
pub use known::{Knowledge, KnownBranch};
pub use local::{LocalBranch, LocalExport};
pub use memory::{MemoryBranch, MemoryOptions};
pub use zoned::{ZonedBranch, ZonedTree};
