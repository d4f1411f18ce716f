//! A checkpoint as one object, a sequence of bytes that is written from its start to its end: in a store, in a file, or on its way elsewhere.
//!
//! `object_writer` makes one: CRIU writes its images into `image_files`, a mount of their own, `layer` takes the upper layer, and both put bytes into the
//! `sink`, whose threads `pack` them and write them to where they are `storage`. `checkpoint_writer` is that as a checkpoint. `write_from_directories` makes one of what lies in directories. `format` says how an object ends, `map` what its bytes have become.
//! `checkpoint_reader` restores from one, and `unpack` reads it; `parse_budget` keeps what is read in bounds.

mod checkpoint_reader;
mod checkpoint_writer;
mod format;
mod from_directory;
mod image_files;
mod layer;
mod map;
mod object_writer;
mod pack;
mod parse_budget;
mod sink;
mod storage;
mod unpack;

pub(super) use checkpoint_reader::ObjectReader;
pub(super) use checkpoint_writer::{Destination, ObjectCheckpointWriter};
pub(super) use format::ObjectInfo;
#[cfg(test)]
pub(super) use format::tests;
pub(super) use from_directory::{UnsealedObject, write_from_directories};
pub(super) use map::{Map, PARENTS_MAX, Parent};
pub(super) use object_writer::ObjectWriter;
pub(super) use pack::{ParentGranules, tried};
pub(super) use sink::WriteOptions;
#[cfg(test)]
pub(super) use sink::WritePipeline;
pub(super) use storage::{ByteSink, ByteSource, FileSource, Refusal};

/// Reads what may be anything, as restoring does. For the fuzz target. True: it is an object.
pub(super) fn parse_hostile(bytes: &[u8]) -> bool {
    format::parse_hostile(bytes)
}
