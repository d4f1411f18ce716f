//! The process of a service, and what it finds on its machine.

pub(crate) mod boot;
pub mod daemon;
pub mod keep_awake;
pub(crate) mod memory_group;
pub(crate) mod node_memory;
