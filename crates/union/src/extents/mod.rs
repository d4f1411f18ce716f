//! Block-level copy-on-write: a file in the upper layer that holds only the blocks that have changed.

mod alone;
mod busy;
mod complete;
mod index;
mod map;
#[cfg(test)]
mod model_test;
mod origin;
mod own_blocks;
mod partial;
mod probe;
mod recent;
mod record;

pub(crate) use alone::OpenSidecars;
pub(crate) use index::{BlockIndex, Holes, Sidecar};
pub(crate) use origin::Origin;
pub use own_blocks::OwnBlocks;
pub(crate) use partial::PartialFile;
pub(crate) use probe::hole_shift;
pub(crate) use recent::Recent;
pub(crate) use record::Record;
