//! Tasks on one file.

use super::small::SMALL;
use super::task::{Env, Task};
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::testbed::{LARGE_NAME, Lower};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use vellum_sys::ReadMap;
use vellum_zoned::device::emulator::Random;

/// A task on a large file.
pub(super) const LARGE: Task = Task {
    lower: Lower::Large,
    operations: |testbed| usize::try_from(testbed.large_bytes() >> 20).unwrap_or(usize::MAX),
    ..SMALL
};

/// Reads of the random-read task.
pub(super) const RANDOM_READS: usize = 131_072;
/// Writes of the rewrite-byte task at scale 1.
pub(super) const REWRITES: usize = 20_000;
/// Writes of the append task at scale 1.
pub(super) const APPENDS: usize = 30_000;
/// Writes of the append-fsync task at scale 1.
pub(super) const SYNCED_APPENDS: usize = 300;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// How many small operations go by between looks at the stop flag.
const CHECK_EVERY: usize = 1024;

fn large(env: &Env<'_>) -> Result<File> {
    File::open(env.root.join(LARGE_NAME)).doing(|| "opening the large file")
}

/// Lets nothing dirty from before be written back on this task's time.
pub(super) fn flush_dirty_pages(_: &Env<'_>) -> Result<()> {
    rustix::fs::sync();
    Ok(())
}

/// Reads the large file in 1 MiB.
pub(super) fn read(env: &Env<'_>) -> Result<()> {
    let mut file = large(env)?;
    let mut buffer = vec![0; MIB];
    let mut left = env.testbed.large_bytes();
    while left > 0 {
        interrupt::check()?;
        file.read_exact(&mut buffer).doing(|| "reading the large file")?;
        left -= MIB as u64;
    }
    Ok(())
}

pub(super) fn random_read(env: &Env<'_>) -> Result<()> {
    let file = large(env)?;
    let pages = env.testbed.large_bytes() / PAGE as u64;
    let mut random = Random::new(1);
    let mut buffer = [0; PAGE];
    for number in 0..RANDOM_READS {
        let offset = random.below(pages) * PAGE as u64;
        file.read_exact_at(&mut buffer, offset).doing(|| "reading at random")?;
        if number % CHECK_EVERY == 0 {
            interrupt::check()?;
        }
    }
    Ok(())
}

fn create(env: &Env<'_>, append: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    if append {
        options.append(true);
    } else {
        options.write(true).truncate(true);
    }
    options.create(true).open(env.root.join("written")).doing(|| "creating a file")
}

pub(super) fn write_fsync(env: &Env<'_>) -> Result<()> {
    let mut file = create(env, false)?;
    let block = vec![0x5a; MIB];
    for _ in 0..env.testbed.large_bytes() / MIB as u64 {
        interrupt::check()?;
        file.write_all(&block).doing(|| "writing")?;
    }
    file.sync_all().doing(|| "fsync")
}

pub(super) fn make_small_file(env: &Env<'_>) -> Result<()> {
    let mut file = create(env, false)?;
    file.write_all(&[1; PAGE]).doing(|| "writing")?;
    file.sync_all().doing(|| "fsync")?;
    rustix::fs::sync();
    Ok(())
}

pub(super) fn rewrite_byte(env: &Env<'_>) -> Result<()> {
    let path = env.root.join("written");
    let file = OpenOptions::new().write(true).open(path).doing(|| "opening a file")?;
    for number in 0..env.testbed.scaled(REWRITES) {
        file.write_all_at(&[number as u8], 0).doing(|| "rewriting a byte")?;
        if number % CHECK_EVERY == 0 {
            interrupt::check()?;
        }
    }
    Ok(())
}

pub(super) fn append(env: &Env<'_>) -> Result<()> {
    let mut file = create(env, true)?;
    for number in 0..env.testbed.scaled(APPENDS) {
        file.write_all(&[number as u8; PAGE]).doing(|| "appending")?;
        if number % CHECK_EVERY == 0 {
            interrupt::check()?;
        }
    }
    file.sync_all().doing(|| "fsync")
}

pub(super) fn append_fsync(env: &Env<'_>) -> Result<()> {
    let mut file = create(env, true)?;
    for number in 0..env.testbed.scaled(SYNCED_APPENDS) {
        interrupt::check()?;
        file.write_all(&[number as u8; PAGE]).doing(|| "appending")?;
        file.sync_all().doing(|| "fsync")?;
    }
    Ok(())
}

/// Maps the large file and reads all of it.
pub(super) fn map_read(env: &Env<'_>) -> Result<()> {
    let len = usize::try_from(env.testbed.large_bytes()).unwrap_or(usize::MAX);
    let map = ReadMap::new(large(env)?, len).doing(|| "mapping the large file")?;
    let sum = map.sum();
    interrupt::check()?;
    // The file is random: all zeros would mean that something else was read.
    if sum == 0 { Err(Failure::new("the mapping shows zeros")) } else { Ok(()) }
}
