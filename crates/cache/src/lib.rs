//! One cached copy for a tenant: blocks of remote or slow layers, in memory of bounded size, shared by weight among the containers
//! that use them.
//!
//! [`Shared`] is for many threads: a hit takes no lock, and several who miss the same block wait for one fetch. Inside it is [`Store`],
//! which has no threads, no clock and no I/O of its own, so that every run of it can be repeated: who reads a layer asks it first
//! ([`Store::read`]), fetches what is missing and brings it ([`Store::begin`], [`Store::insert`]), and says once a second that time goes on
//! ([`Store::tick`]).
//!
//! Where to find what: `key` says what a block is called, `policy` which block of a queue goes first, `shares` which container has
//! to give, `users` who pays for a block, `fills` which fetches are under way, `fair_queue` which fetch goes first, `lane` by which way,
//! `memory` and `slab` where the bytes lie, `store` puts them together; `file_blocks` is what readers see of it without its lock, `shared`
//! and `open_file` what they call.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod checksum;
mod counter;
mod error;
mod fair_queue;
mod file_blocks;
mod fills;
mod key;
mod lane;
mod memory;
mod open_file;
mod policy;
mod shared;
mod shares;
mod slab;
mod stats;
mod store;
mod sync;
mod users;

pub use error::{Error, Result};
pub use fair_queue::{DEPTH, Fair, Flow, OPERATION_BYTES, Permit};
pub use fills::{FILLS_MAX, Fill};
pub use key::{BLOCK_BYTES, BLOCKS_MAX, BlockIndex, Key, Object, PAGE_BYTES, Version};
pub use memory::{MemFd, Memory};
pub use open_file::{AHEAD_MAX, FileReader, Loan, Source};
pub use policy::{Handle, Policy, S3Fifo};
pub use shared::{Member, Room, Shared};
pub use shares::{CONTAINERS_MAX, Container, IDLE_TICKS, LENT_SHIFT_MAX, Shares, WEIGHT_MAX};
pub use slab::{Limits, PredecessorFds, RecoveredFile, SlabFile, SlabMemory};
pub use stats::{ContainerStats, Stats};
pub use store::{Config, FileLoan, LENT_MAX, Store};
pub use users::PAYERS_MAX;
