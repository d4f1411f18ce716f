//! Pools: what each tenant of a host may use, and what enforces it.
//!
//! `name` and `settings` say what a pool is, `store` keeps pools as files that a person can read and edit, `cgroup` makes them
//! real, and `pool` puts them together. `mount` serves a tree, in a pool or by a process of its own.
//! `locked_dir`, `members`, `privilege`, `regular_file` and `bytes` are for containers and checkpoints as well.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod cgroup;
mod cpus;
mod device;
pub mod helper;
pub mod locked_dir;
pub mod members;
pub mod mount;
mod name;
pub mod pool;
pub mod privilege;
pub mod regular_file;
mod settings;
mod store;
mod uids;

pub use mount::Mount;
pub use name::PoolName;
pub use pool::Pool;
pub use settings::Settings;
pub use store::Store;
pub use uids::UidRange;
