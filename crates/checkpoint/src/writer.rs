//! What a place for checkpoints does: a checkpoint is made there.
//!
//! A directory (`directory`) and the store of a zoned device (`zoned`) are such places. Another one implements [`CheckpointWriter`], and
//! `SavedContainer` for what is restored from there; `location` chooses it.

use super::delta::Amount;
use super::record::Record;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// A checkpoint that is being made. When it is dropped without [`finish`](Self::finish), it was none.
pub(crate) trait CheckpointWriter {
    /// The directory that CRIU writes into.
    fn images(&self) -> &Path;

    /// A path that is to be removed, and nothing else, when this process is killed.
    fn unfinished(&self) -> &Path;

    /// Takes the upper layer while it is being changed.
    fn first_pass(&mut self) -> Result<Amount, Failure>;

    /// Much was taken: waits until the disk has it, so that it has nothing else to do while the container stands still, and takes what had just been
    /// changed then. What the kernel has handed over at the beginning is of that kind.
    fn drain(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Waits until there is room in memory for what comes while the container stands still.
    fn wait_for_space(&mut self) {}

    /// Takes what has changed of it since. Nothing changes it any more.
    fn final_pass(&mut self) -> Result<Amount, Failure>;

    /// Takes a file of this name, if it is there.
    fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure>;

    /// All has been taken, the container may go on: how much that is.
    fn sizes(&mut self) -> Result<Sizes, Failure>;

    /// Has all of it be where it stays, the record too.
    fn sync(&mut self, record: &Record) -> Result<(), Failure>;

    /// Gives it its name, durably, in place of an older one. Where it is.
    fn finish(self: Box<Self>) -> Result<PathBuf, Failure>;

    /// Takes it away.
    fn discard(self: Box<Self>);
}

/// Bytes of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) images: u64,
    /// Of the upper layer, as far as they are its own.
    pub(crate) upper: u64,
    /// Bytes that both take where they are, and the names of checkpoints that have the rest, the nearest first. None: as many as they are.
    pub(crate) stored: Option<(u64, Vec<String>)>,
}
