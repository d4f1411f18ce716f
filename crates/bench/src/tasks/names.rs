//! [`crate::workload::names`] by several processes at once, each in a directory of its own, in the upper layer.

use super::sources::{SOURCE, together};
use super::task::{Env, Task};
use crate::failure::{Result, While};
use crate::testbed;
use crate::workload::job::Job;
use crate::workload::names::{self, Kind};
use std::fs;
use std::path::PathBuf;

/// Files of each process at scale 1.
const FILES: usize = 2000;

const CREATE: Task = Task {
    state: "warm: every process has made and removed a file in its directory",
    run: together,
    ..SOURCE
};

const fn create<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        operations: |testbed| N * testbed.scaled(FILES),
        prepare: |env| {
            let dirs = directories::<N>(env)?;
            start(env, Kind::Create, &dirs)?;
            rustix::fs::sync();
            Ok(())
        },
        ..CREATE
    }
}

/// On files that are there.
const THERE: Task = Task {
    state: "made by another process; names and attributes dropped from the kernel's caches",
    drops_caches: true,
    ..CREATE
};

const fn stat<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        operations: |testbed| N * testbed.scaled(FILES),
        prepare: |env| on_files::<N>(env, Kind::Stat),
        ..THERE
    }
}

const fn unlink<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task { prepare: |env| on_files::<N>(env, Kind::Unlink), ..stat::<N>(name, title) }
}

pub(super) const CREATE_1: Task =
    create::<1>("s1-create-1", "a process makes, writes and closes 2,000 files of 4 KiB");
pub(super) const CREATE_2: Task =
    create::<2>("s1-create-2", "2 processes make, write and close 2,000 files of 4 KiB each");
pub(super) const CREATE_4: Task =
    create::<4>("s1-create-4", "4 processes make, write and close 2,000 files of 4 KiB each");
pub(super) const STAT_1: Task = stat::<1>("s1-stat-1", "a process does lstat of 2,000 files");
pub(super) const STAT_2: Task = stat::<2>("s1-stat-2", "2 processes do lstat of 2,000 files each");
pub(super) const STAT_4: Task = stat::<4>("s1-stat-4", "4 processes do lstat of 2,000 files each");
pub(super) const UNLINK_1: Task = unlink::<1>("s1-unlink-1", "a process removes 2,000 files of 4 KiB");
pub(super) const UNLINK_2: Task = unlink::<2>("s1-unlink-2", "2 processes remove 2,000 files of 4 KiB each");
pub(super) const UNLINK_4: Task = unlink::<4>("s1-unlink-4", "4 processes remove 2,000 files of 4 KiB each");

/// Makes a directory for each process.
fn directories<const N: usize>(env: &Env<'_>) -> Result<Vec<PathBuf>> {
    let dirs: Vec<PathBuf> = (0..N).map(|number| env.root.join(format!("names-{number}"))).collect();
    dirs.iter().try_for_each(|dir| fs::create_dir(dir).doing(|| "making a directory"))?;
    Ok(dirs)
}

/// Starts the processes; they wait.
fn start(env: &Env<'_>, kind: Kind, dirs: &[PathBuf]) -> Result<()> {
    let files = env.testbed.scaled(FILES);
    env.workers.start(dirs.iter().map(|dir| Job::Names { kind, dir: dir.clone(), files }))
}

/// Makes the files, lets the kernel forget them, and has the processes wait.
fn on_files<const N: usize>(env: &Env<'_>, kind: Kind) -> Result<()> {
    let dirs = directories::<N>(env)?;
    dirs.iter().try_for_each(|dir| names::make(dir, env.testbed.scaled(FILES)))?;
    start(env, kind, &dirs)?;
    testbed::drop_names()
}
