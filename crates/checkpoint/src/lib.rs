//! Checkpoints of containers: the memory of their processes, and the tree that they had then.
//!
//! `save` takes one of a `subject`, a container and whoever runs it: `pause` has the container stand still, by its `freezer`, without the `library`,
//! `cpu_priority` towards others on the processors, `memory` is a first pass over its memory, if `precopy` wants one, `delta` and `data`
//! copy its upper layer, `external_library` says which library it has, `tmpfs` what of files in memory is lost, `record` is what is known of it.
//! `location` is where they are: in a `directory`, or in the store of a `zoned` device; `writer` is what both do. `object` is a checkpoint that is
//! packed, as one sequence of bytes; `chain` are those that need others, and `stream` is one that goes elsewhere. `restore` has a container go on.
//! `podman` and `containerd` are the containers of those engines.
#![forbid(unsafe_code)]

mod chain;
mod compression;
mod containerd;
mod cpu_priority;
mod data;
mod delta;
mod detached_mount;
mod directory;
mod external_library;
mod freezer;
pub mod library;
mod location;
mod memory;
mod object;
mod options;
mod pace;
mod pacer;
pub mod pause;
pub mod podman;
mod precopy;
mod record;
mod restore;
mod save;
mod stream;
mod subject;
mod tmpfs;
pub mod upper_view;
mod writer;
mod zoned;
pub mod zoned_device;

pub use compression::Compress;
pub use location::Checkpoints;
pub use options::CheckpointOptions;
pub use pace::Pace;
pub use precopy::Precopy;
pub use record::{CheckpointEntry, ContainerEngine, Record};
pub use restore::restore;
pub use save::{Take, take};

/// Reads what may be anything, as restoring does: an object, and a stream. For the fuzz target. True: it is one of them.
pub fn parse_hostile(bytes: &[u8]) -> bool {
    let is_object = object::parse_hostile(bytes);
    stream::parse_hostile(bytes) || is_object
}

/// What is in a checkpoint's directory: CRIU's images, the upper layer, and files that the container has in `/etc`.
const IMAGES: &str = "images";
const UPPER: &str = "upper";
const FILES: &str = "files";
