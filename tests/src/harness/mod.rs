//! What cases are made of: mounts, trees, commands, random numbers.

pub(crate) mod disk;
pub(crate) mod layers;
pub(crate) mod mount;
pub(crate) mod outcome;
pub(crate) mod raw;
pub(crate) mod recorder;
pub(crate) mod rng;
pub(crate) mod shell;
pub(crate) mod tree;
pub(crate) mod user;

pub(crate) use layers::Layers;
pub(crate) use mount::{Mount, MountKind, Profile};
pub(crate) use outcome::{Outcome, Stop, fail, skip};
pub(crate) use rng::Rng;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time for anything that is waited for. Only a failure waits so long, so a busy machine is given what it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a case is given.
pub(crate) struct Cx {
    /// A directory of its own, on a local filesystem with extended attributes.
    pub(crate) dir: PathBuf,
    /// The mount profile to test; None for a case that has nothing to do with profiles.
    pub(crate) profile: Option<Profile>,
}

impl Cx {
    /// A fresh set of layers in a subdirectory.
    pub(crate) fn layers(&self, name: &str, lowers: usize) -> Result<Layers, Stop> {
        Layers::new(&self.dir.join(name), lowers)
    }

    /// The mount under test over `layers`, writable.
    pub(crate) fn mount(&self, layers: &Layers) -> Result<Mount, Stop> {
        Mount::new(MountKind::under_test(), self.profile, layers, &[])
    }

    /// The mount under test over `layers`, writable, with further options.
    pub(crate) fn mount_with(&self, layers: &Layers, options: &[&str]) -> Result<Mount, Stop> {
        Mount::new(MountKind::under_test(), self.profile, layers, options)
    }
}

/// The directory of the sources.
pub(crate) fn source_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
