//! The filesystem service: a process that serves mounted trees.
//!
//! `config` says what an instance is made of; `layers` opens and checks the layers, wherever they come from;
//! `instance` answers questions about the tree through the tree itself; `mounts` is where it is mounted;
//! `process` makes the process, `sandbox` takes its privileges away, and `pool` puts all of it together, for
//! one mount or for many. `store_server` lets commands use a store that a mount has open.
#![forbid(unsafe_code)]

pub mod config;
pub mod failure;
pub mod instance;
pub mod layers;
pub mod mounts;
mod path_text;
pub mod pool;
pub mod process;
pub mod raw_view;
pub mod sandbox;
pub mod store_server;

pub use failure::Failure;
pub use layers::source::LayerSource;

#[cfg(test)]
#[path = "../../branch/tests/support/fault/mod.rs"]
mod fault;
