//! Where checkpoints are: a directory, or the store of a zoned device. Each checkpoint is whole, or is not there.

use super::directory::Directory;
use super::layer_walk::Upper;
use super::object::{ObjectReader, ObjectWriter};
use super::options::CheckpointOptions;
use super::record::{CheckpointEntry, Record};
use super::zoned::Zoned;
use std::path::Path;
use vellum_service::Failure;

/// A place for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoints {
    Directory(Directory),
    Zoned(Zoned),
}

impl Checkpoints {
    /// The ones in a place that is there: a directory, or `zoned:` and a device. `option`: what named it.
    pub fn open(option: &str, at: &Path) -> Result<Self, Failure> {
        Ok(match Zoned::named(option, at)? {
            Some(zoned) => Self::Zoned(zoned),
            None => Self::Directory(Directory::open(option, at)?),
        })
    }

    /// As [`Self::open`]; a directory is made if it is not there.
    pub(crate) fn make(option: &str, at: &Path) -> Result<Self, Failure> {
        Ok(match Zoned::named(option, at)? {
            Some(zoned) => Self::Zoned(zoned),
            None => Self::Directory(Directory::make(option, at)?),
        })
    }

    pub(crate) fn from_path(path: &Path) -> Result<(Self, String), Failure> {
        let bad = || {
            Failure::input(format!(
                "{}: no checkpoint; give DIR/NAME as vellum checkpoints list DIR shows, or zoned:DEVICE/NAME",
                path.display()
            ))
        };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(bad)?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((Self::open("", above)?, name.to_owned()))
    }

    /// Begins one of the upper layer in a directory, new, or to take an older one's place. `scratch`: a directory where something may be made for
    /// a moment.
    pub(crate) fn begin(
        &self,
        name: &str,
        upper: Upper<'_>,
        scratch: &Path,
        manner: &CheckpointOptions,
    ) -> Result<ObjectWriter, Failure> {
        let (sink, how) = match self {
            Self::Directory(directory) => {
                directory.sweep();
                directory.begin_upper(name, manner)?
            }
            Self::Zoned(zoned) => zoned.begin_upper(name, manner)?,
        };
        ObjectWriter::begin(sink, how, upper, scratch)
    }

    /// All that are whole, by name.
    pub fn list(&self) -> Result<Vec<CheckpointEntry>, Failure> {
        match self {
            Self::Directory(directory) => directory.list(),
            Self::Zoned(zoned) => zoned.list(),
        }
    }

    /// What one says of itself.
    pub fn record(&self, name: &str) -> Result<Record, Failure> {
        match self {
            Self::Directory(directory) => directory.record(name),
            Self::Zoned(zoned) => zoned.record(name),
        }
    }

    /// One, to be restored, and what it says of itself. `scratch`: a directory where something may be made for a moment.
    pub(crate) fn find(&self, name: &str, scratch: &Path) -> Result<(ObjectReader, Record), Failure> {
        match self {
            Self::Directory(directory) => directory.find(name, scratch),
            Self::Zoned(zoned) => zoned.find(name),
        }
    }

    /// Removes some, if no other ones need them.
    pub fn delete(&self, names: &[String]) -> Result<(), Failure> {
        match self {
            Self::Directory(directory) => directory.delete(names),
            Self::Zoned(zoned) => zoned.delete(names),
        }
    }
}
