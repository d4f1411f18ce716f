//! The `vellum` command: its option model, subcommands and messages. The program is a thin `main` over this.
#![forbid(unsafe_code)]

pub mod balance;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod doctor;
pub mod flatten;
pub mod help;
pub mod inspect;
mod json;
pub mod log;
pub mod metrics;
pub mod mount;
pub mod mounts;
pub mod options;
pub mod pool;
mod pool_service;
pub mod ps;
mod query;
pub mod run;
pub mod stats;
pub mod top;
pub mod umount;
pub mod weight;
pub mod zoned;
pub mod zoned_mount;
