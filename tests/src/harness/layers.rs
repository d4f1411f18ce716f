//! The directories of one union: lowers, upper, work, and the place where it is mounted.

use super::outcome::Outcome;
use std::fs;
use std::path::{Path, PathBuf};

/// The directories.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    /// Lowers, the topmost first.
    pub(crate) lowers: Vec<PathBuf>,
    /// Upper; None: read-only.
    pub(crate) upper: Option<PathBuf>,
    /// Work directory.
    pub(crate) work: PathBuf,
    /// Where it is mounted.
    pub(crate) merged: PathBuf,
}

impl Layers {
    /// Makes empty ones in `base`: `count` lowers, an upper, a work directory and a mount point.
    pub(crate) fn new(base: &Path, count: usize) -> Outcome<Self> {
        let lowers: Vec<PathBuf> = (1..=count).map(|n| base.join(format!("lower{n}"))).collect();
        let made = Self {
            lowers,
            upper: Some(base.join("upper")),
            work: base.join("work"),
            merged: base.join("merged"),
        };
        for dir in made.lowers.iter().chain(&made.upper).chain([&made.work, &made.merged]) {
            fs::create_dir_all(dir)?;
        }
        Ok(made)
    }

    /// These layers without an upper: the former upper is the topmost lower, at another mount point.
    pub(crate) fn as_lowers(&self, merged: &str) -> Outcome<Self> {
        let lowers = self.upper.iter().chain(&self.lowers).cloned().collect();
        let merged = self.merged.with_file_name(merged);
        fs::create_dir_all(&merged)?;
        Ok(Self { lowers, upper: None, work: self.work.clone(), merged })
    }

    /// The upper, which these layers have.
    pub(crate) fn upper(&self) -> &Path {
        self.upper.as_deref().unwrap_or(&self.work)
    }

    /// The topmost lower.
    pub(crate) fn lower(&self) -> &Path {
        self.lowers.first().map_or(&self.work, PathBuf::as_path)
    }

    /// The option value `lowerdir=`.
    pub(crate) fn lowerdir(&self) -> String {
        self.lowers.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":")
    }
}
