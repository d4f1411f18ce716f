//! The `vellum` command: its option model, subcommands and messages. The program is a thin `main` over this.
#![forbid(unsafe_code)]

#[cfg(feature = "containers")]
pub mod balance;
pub mod bench;
#[cfg(feature = "containers")]
pub mod checkpoint;
pub mod cli;
pub mod doctor;
pub mod flatten;
pub mod help;
pub mod inspect;
mod json;
pub mod log;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod mount;
pub mod mounts;
pub mod options;
pub mod pool;
mod pool_service;
#[cfg(feature = "containers")]
pub mod ps;
mod query;
#[cfg(feature = "containers")]
pub mod run;
pub mod stats;
pub mod top;
pub mod umount;
pub mod weight;
#[cfg(feature = "containers")]
pub mod zoned;
#[cfg(feature = "containers")]
pub mod zoned_mount;
