//! A checkpoint as one object, a sequence of bytes that is written from its start to its end: in a store, in a file, or on its way elsewhere.
//!
//! `gathering` makes one: CRIU writes its images into `files`, a mount of their own, `layer` takes the upper layer, and both put bytes into the
//! `sink`, whose threads `pack` them and write them to where they are `stored`. `made` is that as a checkpoint. `lay` makes one of what lies in directories. `format` says how an object ends, `map` what its bytes have become.
//! `kept` restores from one, and `unpack` reads it; `bounded` keeps what is read in bounds.

mod bounded;
mod files;
mod format;
mod gathering;
mod kept;
mod lay;
mod layer;
mod made;
mod map;
mod pack;
mod sink;
mod stored;
mod unpack;

pub(super) use format::Looked;
#[cfg(test)]
pub(super) use format::tests;
pub(super) use gathering::Gathering;
pub(super) use kept::KeptObject;
pub(super) use lay::{Laid, lay};
pub(super) use made::{Ends, Made};
pub(super) use map::{Map, PARENTS_MAX, Parent};
pub(super) use pack::{Known, tried};
pub(super) use sink::How;
#[cfg(test)]
pub(super) use sink::Writing;
pub(super) use stored::{InFile, Out, Refusal, Stored};

/// Reads what may be anything, as restoring does. For the fuzz target. True: it is an object.
pub(super) fn parse_hostile(bytes: &[u8]) -> bool {
    format::parse_hostile(bytes)
}
