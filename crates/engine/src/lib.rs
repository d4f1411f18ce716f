//! Pools: what each tenant of a host may use, and what sees to it.
//!
//! `name` and `settings` say what a pool is, `store` keeps pools as files that a person can read and edit, `cgroup` makes them
//! real, and `pool` puts them together.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod cgroup;
pub mod cpus;
pub mod device;
pub mod name;
pub mod pool;
mod privilege;
pub mod settings;
pub mod store;

pub use name::PoolName;
pub use pool::Pool;
pub use settings::Settings;
pub use store::Store;
pub use vellum_service::Failure;
