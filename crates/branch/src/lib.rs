//! Branches, the storage under a union: local directories, and memory for tests and models.
//!
//! [`FaultBranch`] puts faults in front of any of them.
#![forbid(unsafe_code)]

mod fault;
mod local;
mod memory;
mod path;

pub use fault::{DEAD, FaultBranch, FaultPlan};
pub use local::LocalBranch;
pub use memory::{MemoryBranch, MemoryOptions};
