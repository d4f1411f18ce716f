//! Block-level copy-on-write: a file in the upper layer that holds only the blocks that have changed.

mod block_locks;
mod completion;
mod index;
mod map;
#[cfg(test)]
mod model_test;
mod origin;
mod own_blocks;
mod partial;
mod probe;
mod record;
mod sidecar_journal;
mod sidecar_owner;

pub(crate) use index::{BlockIndex, Holes, Sidecar};
pub(crate) use origin::Origin;
pub use own_blocks::OwnBlocks;
pub(crate) use partial::PartialFile;
pub(crate) use probe::hole_shift;
pub(crate) use record::Record;
pub(crate) use sidecar_journal::SidecarJournal;
pub(crate) use sidecar_owner::OpenSidecars;
