//! Two threads, each with a file and a directory of its own, whose every operation is a request: whatever the service's own
//! threads still share while they serve them is the service's doing.
//!
//! They are there to be counted by [`crate::cacheline`]; so are the requests that the kernel answers by itself, as none.

use super::sources::{SOURCE, in_all_clones};
use super::task::{Env, Step, Task};
use crate::failure::{Result, While};
use crate::interrupt;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vellum_sys::uncached_size;

/// What the names of tasks begin with whose threads have nothing in common but the service.
pub(crate) const PRIVATE: &str = "private-";

/// Threads: enough that two of the service are at work at once.
const THREADS: usize = 2;
/// Operations of each thread at scale 1: few, for each is some thousand instructions, which are counted one by one.
const OPERATIONS: usize = 300;
/// Operations of each thread at scale 1 where each is many requests.
const CREATIONS: usize = 60;
/// What is read and written at once.
const BLOCK: usize = 4096;
/// The file of each thread, in blocks.
const BLOCKS: usize = 16;

/// A block as O_DIRECT wants it.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

const fn private(name: &'static str, title: &'static str, prepare: Step, run: Step) -> Task {
    Task {
        name,
        title,
        state: "warm: each thread has made its file, synced it, and done some of the same",
        operations: |testbed| THREADS * testbed.scaled(OPERATIONS),
        prepare,
        run,
        ..SOURCE
    }
}

pub(super) const OPEN: Task = private(
    "private-open",
    "2 threads open and close a file of their own 300 times each",
    |env| prepare(env, open),
    |env| each(env, env.testbed.scaled(OPERATIONS), open),
);
pub(super) const STAT: Task = private(
    "private-stat",
    "2 threads ask for the attributes of a file of their own 300 times each, which the kernel may not answer",
    |env| prepare(env, stat),
    |env| each(env, env.testbed.scaled(OPERATIONS), stat),
);
pub(super) const READ: Task = private(
    "private-read",
    "2 threads read 4 KiB of a file of their own 300 times each, O_DIRECT",
    |env| prepare(env, read),
    |env| each(env, env.testbed.scaled(OPERATIONS), read),
);
pub(super) const WRITE: Task = private(
    "private-write",
    "2 threads overwrite 4 KiB of a file of their own 300 times each, O_DIRECT",
    |env| prepare(env, write),
    |env| each(env, env.testbed.scaled(OPERATIONS), write),
);
pub(super) const CREATE: Task = Task {
    operations: |testbed| THREADS * testbed.scaled(CREATIONS),
    ..private(
        "private-create",
        "2 threads make, write, close and remove a file of 4 KiB in a directory of their own 60 times each",
        |env| prepare(env, create),
        |env| each(env, env.testbed.scaled(CREATIONS), create),
    )
};

fn directories(env: &Env<'_>) -> Vec<PathBuf> {
    (0..THREADS).map(|number| env.root.join(number.to_string())).collect()
}

fn file(directory: &Path) -> PathBuf {
    directory.join("file")
}

/// Makes directories and files, and does some operations, so that what happens once has happened.
fn prepare(env: &Env<'_>, work: fn(&Path, usize) -> Result<()>) -> Result<()> {
    for directory in directories(env) {
        fs::create_dir(&directory).doing(|| "making a directory")?;
        fs::write(file(&directory), vec![0x5a; BLOCKS * BLOCK]).doing(|| "making a file")?;
    }
    rustix::fs::sync();
    each(env, BLOCKS, work)
}

/// Does `work` so often in each directory, all at once.
fn each(env: &Env<'_>, operations: usize, work: fn(&Path, usize) -> Result<()>) -> Result<()> {
    in_all_clones(&directories(env), |directory| work(directory, operations))
}

fn open(directory: &Path, operations: usize) -> Result<()> {
    let path = file(directory);
    for _ in 0..operations {
        interrupt::check()?;
        File::open(&path).doing(|| "opening a private file")?;
    }
    Ok(())
}

fn stat(directory: &Path, operations: usize) -> Result<()> {
    let path = file(directory);
    for _ in 0..operations {
        interrupt::check()?;
        uncached_size(&path).doing(|| "asking for a private file's attributes")?;
    }
    Ok(())
}

fn direct(directory: &Path) -> Result<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(file(directory));
    file.doing(|| "opening a private file with O_DIRECT")
}

/// The offset of the block that is next.
fn offset(operation: usize) -> u64 {
    (operation % BLOCKS * BLOCK) as u64
}

fn read(directory: &Path, operations: usize) -> Result<()> {
    let (file, mut block) = (direct(directory)?, Block([0; BLOCK]));
    for operation in 0..operations {
        interrupt::check()?;
        file.read_exact_at(&mut block.0, offset(operation)).doing(|| "reading a private file")?;
    }
    Ok(())
}

fn write(directory: &Path, operations: usize) -> Result<()> {
    let (file, block) = (direct(directory)?, Block([0xa5; BLOCK]));
    for operation in 0..operations {
        interrupt::check()?;
        file.write_all_at(&block.0, offset(operation)).doing(|| "overwriting a private file")?;
    }
    Ok(())
}

fn create(directory: &Path, operations: usize) -> Result<()> {
    let path = directory.join("new");
    for _ in 0..operations {
        interrupt::check()?;
        fs::write(&path, [0x5a; BLOCK]).doing(|| "making a private file")?;
        fs::remove_file(&path).doing(|| "removing a private file")?;
    }
    Ok(())
}
