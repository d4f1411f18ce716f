//! The core of one cached copy for a tenant: blocks of remote or slow layers, in memory of bounded size, shared by weight among
//! the containers that use them.
//!
//! It has no threads, no clock and no I/O of its own: who reads a layer asks it first ([`Store::read`]), fetches what is missing
//! and brings it ([`Store::begin`], [`Store::insert`]), and says once a second that time goes on ([`Store::tick`]). So every run can
//! be repeated. Nothing uses it yet.
//!
//! Where to find what: `key` says what a block is called, `policy` which block of a queue goes first, `shares` which container has
//! to give, `users` who pays for a block, `fills` which fetches are under way, `memory` where the bytes lie, `store` puts them
//! together.
#![forbid(unsafe_code)]

mod checksum;
mod error;
mod fills;
mod key;
mod memory;
mod policy;
mod shares;
mod stats;
mod store;
mod users;

pub use error::{Error, Result};
pub use fills::{FILLS_MAX, Fill};
pub use key::{BLOCK_BYTES, BlockIndex, Key, Object, PAGE_BYTES, Version};
pub use memory::{MemFd, Memory, Plain};
pub use policy::{Handle, Kind, Lru, Policy, S3Fifo, Sieve};
pub use shares::{CONTAINERS_MAX, Container, IDLE_TICKS, LENT_SHIFT_MAX, Shares, WEIGHT_MAX};
pub use stats::{ContainerStats, Stats};
pub use store::{Config, LENT_MAX, Lent, Store};
