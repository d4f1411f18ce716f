//! What workers are told to do, as data, and the words between a worker and its master.

use crate::balance::Load;
use crate::workload::chroot::Chroot;
use crate::workload::{fxmark, names, neighbour, rocksdb};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The subcommand of a worker.
pub const SUBCOMMAND: &str = "worker";

pub(crate) const READY: &str = "ready";
/// It may begin.
pub(crate) const GO: &str = "go";
/// Begins the line that says why it has failed.
pub(crate) const FAILED: &str = "failed: ";
/// Begins the line with what it has measured.
pub(crate) const RESULT: &str = "result: ";
/// What a client is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub task: String,
    /// The place's directory and its scale.
    pub place: (PathBuf, f64),
    /// The roots of all mounts.
    pub roots: Vec<PathBuf>,
    /// Their upper layers.
    pub uppers: Vec<PathBuf>,
    /// The processes behind the mounts that are measured with it. None: nothing is measured, since the calls that measuring takes are
    /// not to be counted.
    pub services: Option<Vec<u32>>,
}

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// Prepares a task and does it.
    Task(Part),
    /// Sees whether Vellum's library is at work on a mount.
    Probe {
        /// The root of the mount.
        root: PathBuf,
    },
    /// Makes, looks at or removes files.
    Names {
        kind: names::Kind,
        dir: PathBuf,
        /// How many files.
        files: usize,
    },
    /// One of FxMark's loops.
    FxMark {
        kind: fxmark::Kind,
        /// Its private file.
        path: PathBuf,
        /// How often.
        operations: usize,
    },
    /// Is a neighbour, until it is killed.
    Neighbour {
        kind: neighbour::Kind,
        /// Where its files are.
        root: PathBuf,
        /// A factor of their number and size.
        scale: f64,
        /// The processors that it runs on; none: all.
        cpus: Vec<usize>,
    },
    /// Does the work of one of `balance`'s groups, and says what came of it.
    Load { load: Load, directory: PathBuf, bytes: u64, seconds: f64 },
    /// Becomes the web server of a clone.
    Serve {
        /// The clone's root directory.
        root: PathBuf,
        /// The TCP port on 127.0.0.1.
        port: u16,
    },
    /// Becomes a program in the tree.
    Inside(Chroot),
    /// Becomes the program that works with the database of a tree.
    RocksDb {
        /// The tree.
        root: PathBuf,
        /// The tenant's.
        number: usize,
        /// What it does.
        work: rocksdb::Work,
        /// The processors that it runs on; none: all.
        cpus: Vec<usize>,
    },
}
