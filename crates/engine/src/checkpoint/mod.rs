//! Checkpoints of containers: the memory of their processes, and the tree that they had then.
//!
//! `save` takes one of a `subject`, a container and whoever runs it: `pause` has the container stand still, by its `freezer`, without the `library`,
//! `cpu_priority` towards others on the processors, `criu` is the program that reads its memory, `memory` a first pass over that, if `first_pass` wants one, `delta` and `data`
//! copy its upper layer, `identity` says which layers it stands on, `external_library` which library, `tmpfs` what of files in memory is lost, `record` is what is known of it. `location` is where they are: in a
//! `directory`, or in the store of a `zoned` device; `writer` is what both do. `object` is a checkpoint that is packed, as one sequence of bytes; `chain` are those that need
//! others, and `stream` is one that goes elsewhere. Restoring is `container::restore`; `loopback` is a part of it.

mod chain;
mod compression;
mod cpu_priority;
mod criu;
mod data;
mod delta;
mod detached_mount;
mod directory;
mod external_library;
mod fingerprint;
mod freezer;
mod identity;
pub mod library;
mod location;
pub mod loopback;
mod memory;
mod object;
mod options;
mod pace;
mod pacer;
pub mod pause;
mod precopy;
mod record;
mod save;
mod stream;
mod subject;
mod tmpfs;
pub mod upper_view;
mod writer;
mod zoned;

pub use compression::Compress;
pub use criu::criu_version;
pub(crate) use criu::{ALWAYS, Criu, OWN_NETWORK, configuration, explain};
pub(crate) use delta::{directory, names};
pub use external_library::ExternalLibrary;
pub(crate) use freezer::Freezer;
pub use identity::Lowers;
pub(crate) use library::Library;
pub use location::Checkpoints;
pub use options::CheckpointOptions;
pub use pace::Pace;
pub(crate) use pause::last_line;
pub use precopy::Precopy;
pub use record::{CheckpointEntry, ContainerEngine, Record};
pub use save::{Take, TakeOutcome, take};
pub(crate) use stream::received;
pub(crate) use subject::Subject;
pub(crate) use writer::{CheckpointReader, CheckpointWriter};

/// Reads what may be anything, as restoring does: an object, and a stream. For the fuzz target. True: it is one of them.
pub fn parse_hostile(bytes: &[u8]) -> bool {
    let is_object = object::parse_hostile(bytes);
    stream::parse_hostile(bytes) || is_object
}

/// What is in a checkpoint's directory: CRIU's images, the upper layer, and files that the container has in `/etc`.
const IMAGES: &str = "images";
const UPPER: &str = "upper";
const FILES: &str = "files";
