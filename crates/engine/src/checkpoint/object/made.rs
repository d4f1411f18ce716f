//! A checkpoint that is made as an object, wherever that goes.

use super::gathering::Gathering;
use super::stored::Out;
use crate::checkpoint::delta::Amount;
use crate::checkpoint::making::{Making, Sizes};
use crate::checkpoint::record::Record;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// How it ends, where it goes.
pub(in crate::checkpoint) trait Ends {
    /// What takes the bytes.
    type To: Out;

    /// All of it was written, with this record.
    fn settled(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    /// All is there: has it be found, durably. Where it is.
    fn end(self, whole: Self::To) -> Result<PathBuf, Failure>;

    /// It was given up.
    fn given_up(self);
}

/// A checkpoint that is being made.
pub(in crate::checkpoint) struct Made<E: Ends> {
    gathering: Gathering<E::To>,
    /// What a killed one leaves.
    unfinished: PathBuf,
    ends: E,
}

impl<E: Ends> Made<E> {
    /// One of which nothing is left when this process is killed. What is needed for a moment is made in the directory `beside`.
    pub(in crate::checkpoint) fn new(gathering: Gathering<E::To>, beside: &Path, ends: E) -> Self {
        // There never is such a path.
        Self::growing(gathering, beside.join("unfinished"), ends)
    }

    /// One that grows in a directory.
    pub(in crate::checkpoint) fn growing(gathering: Gathering<E::To>, unfinished: PathBuf, ends: E) -> Self {
        Self { gathering, unfinished, ends }
    }
}

impl<E: Ends> Making for Made<E> {
    fn images(&self) -> &Path {
        self.gathering.images()
    }

    fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    fn ahead(&mut self) -> Result<Amount, Failure> {
        self.gathering.ahead()
    }

    fn room(&mut self) {
        self.gathering.room();
    }

    fn still(&mut self) -> Result<Amount, Failure> {
        self.gathering.still()
    }

    fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        self.gathering.file(name, from)
    }

    fn sizes(&mut self) -> Result<Sizes, Failure> {
        self.gathering.sizes()
    }

    fn settle(&mut self, record: &Record) -> Result<(), Failure> {
        self.gathering.settle(record)?;
        self.ends.settled(record)
    }

    fn finish(self: Box<Self>) -> Result<PathBuf, Failure> {
        let Self { mut gathering, ends, .. } = *self;
        match gathering.whole() {
            Ok(whole) => ends.end(whole),
            Err(why) => {
                ends.given_up();
                Err(why)
            }
        }
    }

    fn discard(self: Box<Self>) {
        let Self { mut gathering, ends, .. } = *self;
        gathering.discard();
        ends.given_up();
    }
}
