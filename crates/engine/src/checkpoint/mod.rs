//! Checkpoints of containers: the memory of their processes, and the tree that they had then.
//!
//! `take` takes one: `pause` has the container stand still, `criu` is the program that reads its memory into `images`, `delta` and `data`
//! copy its upper layer, `identity` says which layers it stands on, `record` is what is known of it. `store` is a directory of them.
//! Restoring is `container::restore`; `loopback` is a part of it.

mod criu;
mod data;
mod delta;
mod identity;
mod images;
pub mod loopback;
pub mod pause;
mod record;
mod store;
mod take;

pub(crate) use criu::{ALWAYS, Criu, OWN_NETWORK, configuration, explain};
pub(crate) use delta::Delta;
pub use identity::Lowers;
pub use record::Record;
pub use store::{Checkpoints, Listed};
pub use take::{Take, Taken, take};

/// What is in a checkpoint's directory: CRIU's images, the upper layer, and files that the container has in `/etc`.
pub(crate) const IMAGES: &str = "images";
pub(crate) const UPPER: &str = "upper";
pub(crate) const FILES: &str = "files";
