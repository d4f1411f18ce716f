//! Pools: what each tenant of a host may use, and what sees to it; and containers that run in them.
//!
//! `name` and `settings` say what a pool is, `store` keeps pools as files that a person can read and edit, `cgroup` makes them
//! real, and `pool` puts them together. `mount` has a tree served, in a pool or not. `image` says what a container's root is made of, `container` runs it,
//! and `checkpoint` keeps what it was at one moment; `podman` are the containers of that engine.
//! `balance` shares the kernel's page cache among control groups.
#![forbid(unsafe_code)]

pub mod balance;
pub mod bytes;
pub mod cgroup;
pub mod checkpoint;
pub mod container;
pub mod containerd;
pub mod cpus;
pub mod device;
pub mod helper;
pub mod image;
mod locked_dir;
mod members;
pub mod mount;
pub mod name;
pub mod podman;
pub mod pool;
mod privilege;
mod regular_file;
pub mod settings;
pub mod store;
pub mod uids;
pub mod zoned;

pub use mount::Mount;
pub use name::PoolName;
pub use pool::Pool;
pub use settings::Settings;
pub use store::Store;
pub use uids::UidRange;
pub use vellum_service::Failure;
