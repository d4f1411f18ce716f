//! One service for all mounts of a pool.
//!
//! Three processes take part. Who mounts (`join`) opens the layers and makes the mount, in its own mount namespace and with its own
//! rights, and hands the descriptors over a socket to the *service* (`host`), which serves all mounts of the pool. The *supervisor*
//! (`supervisor`) is the service's parent and shares its table of descriptors: when the service dies, whatever it dies of, every
//! descriptor stays open in the supervisor, so no mount ends; the next service finds in them what the last one was serving
//! (`card`), takes the nodes from the ledger, and has the kernel send again what had not been answered.

mod calls;
mod card;
mod direct;
mod host;
mod join;
mod program;
mod session;
mod supervisor;
mod underway;
mod view;
mod wire;
mod wish;

pub use join::{Asked, Joined, Pool, look, restart, stop};
pub use session::{
    directory as session_directory, make_directory as make_session_directory, path as session_path,
};
pub use supervisor::{Manner, Supervised, listen, supervise};
pub use wire::Status;

pub(crate) use direct::mount_flags;

use crate::config::Config;
use crate::failure::Failure;
use std::ffi::OsString;

/// Version of everything that one service leaves to the next: cards, ledgers, generations, requests in flight.
pub const FORMAT: u32 = 5;

/// Exit status of a service that is to be replaced.
const REPLACE: i32 = 64;

/// Turns a command line back into what it asks for.
pub type Parse = fn(Vec<OsString>) -> Result<Config, Failure>;
