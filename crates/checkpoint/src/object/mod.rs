//! A checkpoint as one object, a sequence of bytes that is written from its start to its end: in a store, in
//! a file, or on its way elsewhere.
//!
//! `object_writer` makes one: CRIU writes its images into `image_files`, a mount of their own, `layer` takes
//! the upper layer, and both put bytes into the `sink`, whose threads `pack` them and write them to where
//! they are `storage`. `format` says how an object ends, `map` what its bytes have become. `object_reader`
//! restores from one, and `unpack` reads it; `parse_budget` keeps what is read in bounds. `from_files` makes
//! one of the files of an earlier version.

mod format;
mod from_files;
mod image_files;
mod layer;
mod map;
mod object_reader;
mod object_writer;
mod pack;
mod parse_budget;
mod sink;
mod storage;
mod unpack;

pub(super) use format::ObjectInfo;
#[cfg(test)]
pub(super) use format::tests;
pub(super) use from_files::from_files;
pub(super) use map::{Map, PARENTS_MAX, Parent};
pub(super) use object_reader::ObjectReader;
pub(super) use object_writer::{ObjectWriter, Sizes};
pub(super) use pack::ParentGranules;
pub(super) use sink::WriteOptions;
#[cfg(test)]
pub(super) use sink::WritePipeline;
pub(super) use storage::{ByteSink, ByteSource, FileSource};

/// Reads what may be anything, as restoring does. For the fuzz target. True: it is an object.
pub(super) fn parse_hostile(bytes: &[u8]) -> bool {
    format::parse_hostile(bytes)
}
