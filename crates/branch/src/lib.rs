//! Branches, the storage under a union: local directories, and memory for tests and models.
//!
//! [`FaultBranch`] puts faults in front of any of them.
#![forbid(unsafe_code)]

mod fault;
mod local;
mod memory;
mod path;

pub use fault::{DEAD, FaultBranch, FaultExport, FaultPlan};
pub use local::{ExportRoots, LocalBranch, LocalExport};
pub use memory::{MemoryBranch, MemoryOptions};
