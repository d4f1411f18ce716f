//! A checkpoint in a directory that is written at a pace: CRIU's images come by a mount of the command, as for a store, and one object is made of them and
//! of the layer on their way. So nothing gets into the page cache, which would be written back all at once.

use super::file::ToFile;
use super::repack::OBJECT;
use super::{Directory, PartialCheckpoint};
use crate::delta::Upper;
use crate::object::{Destination, ObjectCheckpointWriter, ObjectWriter, Parent, Refusal, WriteOptions};
use crate::options::CheckpointOptions;
use crate::record::Record;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// A place in a directory for a checkpoint that is being made.
pub(super) struct InDirectory {
    directory: Directory,
    name: String,
    unfinished: PartialCheckpoint,
    /// Others that it needs.
    needs: Vec<Parent>,
}

impl InDirectory {
    /// Begins one; what is needed for a moment is made beside.
    pub(super) fn begin(
        (directory, name): (&Directory, &str),
        unfinished: PartialCheckpoint,
        (upper, scratch): (Upper<'_>, &Path),
        how: WriteOptions,
        manner: &CheckpointOptions,
    ) -> Result<ObjectCheckpointWriter<Self>, Failure> {
        let path = unfinished.dir().join(OBJECT);
        let display = unfinished.place.clone();
        let needs = how.parents().to_vec();
        let begun = ToFile::create(&path, manner.pace).map_err(|e| Failure::at(&path, e)).and_then(|to| {
            let explain =
                move |refusal: &Refusal| Failure::system(path.display().to_string()).because(refusal);
            ObjectWriter::begin(to, how, (upper, scratch), &display, Box::new(explain))
        });
        match begun {
            Ok(object_writer) => {
                let growing = unfinished.dir().to_owned();
                let there = Self { directory: directory.clone(), name: name.to_owned(), unfinished, needs };
                Ok(ObjectCheckpointWriter::growing(object_writer, growing, there))
            }
            Err(why) => {
                unfinished.discard();
                Err(why)
            }
        }
    }
}

impl Destination for InDirectory {
    type To = ToFile;

    fn synced(&mut self, record: &Record) -> Result<(), Failure> {
        record.write(self.unfinished.dir())
    }

    fn end(self, _: ToFile) -> Result<PathBuf, Failure> {
        self.directory.name(&self.name, &self.needs, self.unfinished)
    }

    fn abandon(self) {
        self.unfinished.discard();
    }
}
