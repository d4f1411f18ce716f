//! The filesystem service: a process that serves mounted trees.
//!
//! `config` says what an instance is made of, `source` where its layers come from (`ceph`: a cluster, `zoned`: a store on a zoned device), `layers` opens and checks them, `lock` keeps an upper to one writer,
//! `instance` answers questions about the tree through the tree itself, `daemon` makes the process, `sandbox` takes its
//! privileges away, and `pool` puts them together, for one mount or for many.
#![forbid(unsafe_code)]

mod access_times;
mod background_fill;
mod boot;
mod cache;
pub mod ceph;
mod client;
pub mod config;
pub mod daemon;
pub mod durable;
mod ending;
pub mod explain;
pub mod failure;
pub mod flatten;
pub mod instance;
pub mod keep_awake;
pub mod layers;
pub mod lock;
#[cfg(feature = "memory-layers")]
mod memory;
mod memory_group;
pub mod mountpoint;
mod plain;
pub mod pool;
pub mod sandbox;
pub mod session_setup;
pub mod source;
pub mod stats;
pub mod store;
pub mod tree;
pub mod unmount;
pub mod zoned;

pub use failure::Failure;
pub use source::LayerSource;
