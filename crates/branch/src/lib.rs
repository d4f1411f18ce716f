//! Branches, the storage under a union: local directories, and memory for tests and models.
//!
//! [`CachedBranch`] reads any of them through a cache, [`FaultBranch`] puts faults in front of any of them.
#![forbid(unsafe_code)]

mod cached;
mod fault;
mod local;
mod memory;
mod path;

pub use cached::{CachedBranch, SETTLE, Sharing};
pub use fault::{DEAD, FaultBranch, FaultExport, FaultPlan};
pub use local::{LocalBranch, LocalExport};
pub use memory::{MemoryBranch, MemoryOptions};
