//! Where checkpoints are: a directory, or the store of a zoned device. Each checkpoint is whole, or is not there.

use super::delta::Upper;
use super::directory::Directory;
use super::options::CheckpointOptions;
use super::record::{CheckpointEntry, Record};
use super::writer::CheckpointWriter;
use super::zoned::Zoned;
use std::path::Path;
use vellum_container::SavedContainer;
use vellum_service::Failure;

/// A place for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints(Location);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Location {
    Directory(Directory),
    Zoned(Zoned),
}

impl Checkpoints {
    /// The ones in a place that is there: a directory, or `zoned:` and a device. `option`: what named it.
    pub fn open(option: &str, at: &Path) -> Result<Self, Failure> {
        Ok(Self(match Zoned::named(option, at)? {
            Some(zoned) => Location::Zoned(zoned),
            None => Location::Directory(Directory::open(option, at)?),
        }))
    }

    /// As [`Self::open`]; a directory is made if it is not there.
    pub(crate) fn make(option: &str, at: &Path) -> Result<Self, Failure> {
        Ok(Self(match Zoned::named(option, at)? {
            Some(zoned) => Location::Zoned(zoned),
            None => Location::Directory(Directory::make(option, at)?),
        }))
    }

    /// The one that a path names.
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
    ) -> Result<Box<dyn CheckpointWriter>, Failure> {
        Ok(match &self.0 {
            Location::Directory(directory) => {
                directory.sweep();
                directory.making(name, (upper, scratch), manner)?
            }
            Location::Zoned(zoned) => Box::new(zoned.making(name, (upper, scratch), manner)?),
        })
    }

    /// All that are whole, by name.
    pub fn list(&self) -> Result<Vec<CheckpointEntry>, Failure> {
        match &self.0 {
            Location::Directory(directory) => directory.list(),
            Location::Zoned(zoned) => zoned.list(),
        }
    }

    /// What one says of itself.
    pub fn record(&self, name: &str) -> Result<Record, Failure> {
        match &self.0 {
            Location::Directory(directory) => directory.record(name),
            Location::Zoned(zoned) => zoned.record(name),
        }
    }

    /// One, to be restored, and what it says of itself.
    pub(crate) fn find(&self, name: &str) -> Result<(Box<dyn SavedContainer>, Record), Failure> {
        Ok(match &self.0 {
            Location::Directory(directory) => (directory.find(name)?, directory.record(name)?),
            Location::Zoned(zoned) => {
                let (kept, record) = zoned.find(name)?;
                (Box::new(kept), record)
            }
        })
    }

    /// Removes some, if no other ones need them.
    pub fn delete(&self, names: &[String]) -> Result<(), Failure> {
        match &self.0 {
            Location::Directory(directory) => directory.delete(names),
            Location::Zoned(zoned) => zoned.delete(names),
        }
    }
}
