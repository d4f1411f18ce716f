//! What a task is.

use crate::failure::Result;
use crate::testbed::{Lower, Testbed};
use crate::workload::worker::Workers;
use std::path::{Path, PathBuf};

/// Where a step of a task happens.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// The root of the mounted tree, the first of them.
    pub root: &'a Path,
    /// The upper layer.
    pub upper: &'a Path,
    /// The roots of all mounts: several where a task is on clones.
    pub roots: &'a [PathBuf],
    /// Their upper layers.
    pub uppers: &'a [PathBuf],
    /// Processes that live from the preparation to the end.
    pub workers: &'a Workers,
    /// The place around it.
    pub testbed: &'a Testbed,
}

pub type Step = fn(&Env<'_>) -> Result<()>;

/// What a task is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    Time,
    /// Resident memory of the service after the caches were dropped.
    Resident,
    /// How far mounts' parts of the service's cache are off their ideal ones.
    Shares,
    /// How far mounts' parts of what the service has fetched are off their ideal ones.
    Misses,
}

/// The service's cache of a task, which all its mounts read through in one pool.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// How many bytes it holds.
    pub bytes: fn(&Testbed) -> u64,
    /// What each mount weighs.
    pub weights: &'static [u16],
    /// How much of the cache each should have at the end, in relation to the others.
    pub ideal: &'static [u16],
}

#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, with sizes at scale 1.
    pub title: &'static str,
    /// The state of caches when the clock starts.
    pub state: &'static str,
    /// What the lower layer holds.
    pub lower: Lower,
    /// Whether it changes what was in the lower layer.
    pub alters: bool,
    /// The only directory that it changes, empty at first, where it is not the whole tree. The host has a new one there.
    pub only: Option<&'static str>,
    /// Needs root, to drop caches.
    pub drops_caches: bool,
    /// Left out unless it is asked for by name.
    pub long: bool,
    /// Whether it is of interest how much space the upper layer takes afterwards.
    pub space: bool,
    /// What it is judged by.
    pub metric: Metric,
    /// How many operations one pass is, for values per operation.
    pub operations: fn(&Testbed) -> usize,
    /// How often it is done within one measurement.
    pub passes: u32,
    /// How many mounts over the same lower layer it is on.
    pub clones: fn(&Testbed) -> usize,
    /// Whether each mount is a tenant's, who has processors of his own where there are enough.
    pub tenants: bool,
    /// The cache that its mounts share; None: layers are read as they are.
    pub cache: Option<Cache>,
    /// Whether Vellum's library can be in the processes that do it: it knows one pool, and so one mount of those of a task.
    pub library: bool,
    /// Cores below which it is left out of its group.
    pub cores: usize,
    /// What is missing on this machine to do it at all, if anything.
    pub needs: fn() -> Option<String>,
    /// Before the clock starts, after mounting.
    pub prepare: Step,
    /// What is timed.
    pub run: Step,
}

impl Task {
    /// Does all passes of one measurement.
    pub fn run_passes(&self, env: &Env<'_>) -> Result<()> {
        (0..self.passes).try_for_each(|_| (self.run)(env))
    }

    /// Why it cannot be done here, if so.
    #[must_use]
    pub fn missing_requirement(&self) -> Option<String> {
        if self.drops_caches && !rustix::process::geteuid().is_root() {
            return Some("dropping caches needs root".into());
        }
        (self.needs)()
    }
}

/// States of caches when the clock starts.
pub(super) const WARM: &str = "warm: every file was read through the mount";
pub(super) const WARM_NAMES: &str = "warm: every name was looked up through the mount";
pub(super) const WARM_LOWER: &str =
    "warm: the lower file is in the page cache of its filesystem, not in the mounts'";
pub(super) const COLD: &str = "cold: fresh mount, kernel's caches dropped";
