//! Branches, the storage under a union: local directories, and memory for tests and models
#![forbid(unsafe_code)]

mod local;
mod memory;

pub use local::LocalBranch;
pub use memory::{MemoryBranch, MemoryOptions};
