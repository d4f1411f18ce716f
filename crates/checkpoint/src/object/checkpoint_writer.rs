//! A checkpoint that is made as an object, wherever that goes.

use super::object_writer::ObjectWriter;
use super::storage::ByteSink;
use crate::delta::Amount;
use crate::record::Record;
use crate::writer::{CheckpointWriter, Sizes};
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// How it ends, where it goes.
pub(crate) trait Destination {
    /// What takes the bytes.
    type To: ByteSink;

    /// All of it was written, with this record.
    fn synced(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    /// All is there: has it be found, durably. Where it is.
    fn end(self, whole: Self::To) -> Result<PathBuf, Failure>;

    /// It was given up.
    fn abandon(self);
}

/// A checkpoint that is being made.
pub(crate) struct ObjectCheckpointWriter<E: Destination> {
    object_writer: ObjectWriter<E::To>,
    /// What a killed one leaves.
    unfinished: PathBuf,
    destination: E,
}

impl<E: Destination> ObjectCheckpointWriter<E> {
    /// One of which nothing is left when this process is killed. What is needed for a moment is made in the directory `scratch`.
    pub(crate) fn new(object_writer: ObjectWriter<E::To>, scratch: &Path, destination: E) -> Self {
        // There never is such a path.
        Self::growing(object_writer, scratch.join("unfinished"), destination)
    }

    /// One that grows in a directory.
    pub(crate) fn growing(object_writer: ObjectWriter<E::To>, unfinished: PathBuf, destination: E) -> Self {
        Self { object_writer, unfinished, destination }
    }
}

impl<E: Destination> CheckpointWriter for ObjectCheckpointWriter<E> {
    fn images(&self) -> &Path {
        self.object_writer.images()
    }

    fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    fn first_pass(&mut self) -> Result<Amount, Failure> {
        self.object_writer.first_pass()
    }

    fn wait_for_space(&mut self) {
        self.object_writer.wait_for_space();
    }

    fn final_pass(&mut self) -> Result<Amount, Failure> {
        self.object_writer.final_pass()
    }

    fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        self.object_writer.file(name, from)
    }

    fn sizes(&mut self) -> Result<Sizes, Failure> {
        self.object_writer.sizes()
    }

    fn sync(&mut self, record: &Record) -> Result<(), Failure> {
        self.object_writer.sync(record)?;
        self.destination.synced(record)
    }

    fn finish(self: Box<Self>) -> Result<PathBuf, Failure> {
        let Self { mut object_writer, destination, .. } = *self;
        match object_writer.take_sink() {
            Ok(whole) => destination.end(whole),
            Err(why) => {
                destination.abandon();
                Err(why)
            }
        }
    }

    fn discard(self: Box<Self>) {
        let Self { mut object_writer, destination, .. } = *self;
        object_writer.discard();
        destination.abandon();
    }
}
