//! Checkpoints of containers: the memory of their processes, and the tree that they had then.
//!
//! `save` takes one of a `subject`, a container and whoever runs it: `pause` has the container stand still,
//! by its `freezer`, without the `library`, `cpu_priority` towards others on the processors, `memory` is a
//! first pass over its memory, if `precopy` wants one, `layer_walk` finds what is in its upper layer,
//! `external_library` says which library it has, `tmpfs` what of files in memory is lost, `record` is what is
//! known of it. A checkpoint is one `object`, a sequence of bytes, written to one of three sinks: in a
//! `directory`, in the store of a `zoned` device, or as a `stream`. `location` is where they are, `pacer`
//! says how fast, `chain` are those that need others. `restore` has a container go on. `podman` and
//! `containerd` are the containers of those engines.
#![forbid(unsafe_code)]

mod chain;
mod compression;
mod containerd;
mod cpu_priority;
mod detached_mount;
mod directory;
mod external_library;
mod freezer;
mod layer_walk;
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
