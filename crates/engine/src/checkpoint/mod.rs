//! Checkpoints of containers: the memory of their processes, and the tree that they had then.
//!
//! `take` takes one of a `subject`, a container and whoever runs it: `pause` has the container stand still, by its `freezer`, without the `library`,
//! `polite` towards others on the processors, `criu` is the program that reads its memory, `memory` a first pass over that, if `ahead` wants one, `delta` and `data`
//! copy its upper layer, `identity` says which layers it stands on, `needed` which library, `tmpfs` what of files in memory is lost, `record` is what is known of it. `place` is where they are: in a
//! `directory`, or in the store of a `zoned` device; `making` is what both do. `object` is a checkpoint that is packed, as one sequence of bytes; `chain` are those that need
//! others, and `stream` is one that goes elsewhere. Restoring is `container::restore`; `loopback` is a part of it.

mod ahead;
mod apart;
mod chain;
mod compress;
mod criu;
mod data;
mod delta;
mod directory;
mod fingerprint;
mod freezer;
mod identity;
pub mod library;
pub mod loopback;
mod making;
mod manner;
mod memory;
mod needed;
mod object;
mod pace;
mod pacing;
pub mod pause;
mod place;
mod polite;
mod record;
pub mod shown;
mod stream;
mod subject;
mod take;
mod tmpfs;
mod zoned;

pub use ahead::MemoryAhead;
pub use compress::Compress;
pub use criu::criu_version;
pub(crate) use criu::{ALWAYS, Criu, OWN_NETWORK, configuration, explain};
pub(crate) use delta::{directory, names};
pub(crate) use freezer::Freezer;
pub use identity::Lowers;
pub(crate) use library::Library;
pub(crate) use making::{Kept, Making};
pub use manner::Manner;
pub use needed::Needed;
pub use pace::Pace;
pub(crate) use pause::said;
pub use place::Checkpoints;
pub use record::{Listed, Of, Record};
pub(crate) use stream::received;
pub(crate) use subject::Subject;
pub use take::{Take, Taken, take};

/// Reads what may be anything, as restoring does: an object, and a stream. For the fuzz target. True: it is one of them.
pub fn parse_hostile(bytes: &[u8]) -> bool {
    let is_object = object::parse_hostile(bytes);
    stream::parse_hostile(bytes) || is_object
}

/// What is in a checkpoint's directory: CRIU's images, the upper layer, and files that the container has in `/etc`.
const IMAGES: &str = "images";
const UPPER: &str = "upper";
const FILES: &str = "files";
