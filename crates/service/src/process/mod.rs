//! The process of a service, and what it finds on its machine.

pub(crate) mod boot_id;
pub mod cpu_idle;
pub mod daemon;
pub(crate) mod memory_group;
pub(crate) mod node_memory;
