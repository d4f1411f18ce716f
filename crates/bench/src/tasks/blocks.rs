//! Tasks on a large file of the lower layer that is changed in part: the experiments of TranslayFS (Sato and Kourai), whose
//! upper files are sparse, and to which kernel overlayfs answers by copying the file.

use super::large::{LARGE, flush_dirty_pages};
use super::task::{Env, Task};
use crate::failure::{Result, While};
use crate::interrupt;
use crate::testbed::{self, LARGE_NAME, Lower};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use vellum_zoned::device::emulator::Random;

/// A task on blocks of a large file.
pub(super) const BLOCKS: Task = Task {
    state: "the lower file is not in the page cache of the mount",
    long: true,
    alters: true,
    space: true,
    operations: |_| 1,
    prepare: flush_dirty_pages,
    ..LARGE
};

/// A block, as filesystems allocate and Vellum copies it.
const BLOCK: u64 = 4096;
/// Writes of one byte to the same block, and to other blocks, at scale 1.
pub(super) const SAME: usize = 20_000;
pub(super) const OTHERS: usize = 2_000;

fn open(env: &Env<'_>) -> Result<File> {
    let path = env.root.join(LARGE_NAME);
    OpenOptions::new().read(true).write(true).open(path).doing(|| "opening the large file")
}

fn size(file: &File) -> Result<u64> {
    Ok(file.metadata().doing(|| "the large file")?.len())
}

/// One byte in the middle: open, write, close.
pub(super) fn first(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    let at = size(&file)? / 2 + 17;
    file.write_all_at(b"x", at).doing(|| "writing a byte")
}

/// One byte in the middle, made durable: open, write, fsync, close.
pub(super) fn first_synced(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    let at = size(&file)? / 2 + 17;
    file.write_all_at(b"x", at).doing(|| "writing a byte")?;
    file.sync_all().doing(|| "fsync")
}

/// The first write, before the clock starts.
pub(super) fn copied_up(env: &Env<'_>) -> Result<()> {
    first_synced(env)?;
    rustix::fs::sync();
    Ok(())
}

/// Reads the lower file, so that it is in the page cache of its filesystem.
pub(super) fn warm_lower(env: &Env<'_>) -> Result<()> {
    let path = env.testbed.lower(Lower::Large)?.join(LARGE_NAME);
    let mut file = File::open(path).doing(|| "opening the large file")?;
    std::io::copy(&mut file, &mut std::io::sink()).doing(|| "reading the large file")?;
    rustix::fs::sync();
    Ok(())
}

/// One byte of the block that was written to before, again and again, and an fsync.
pub(super) fn same(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    let at = size(&file)? / 2 + 17;
    for number in 0..env.testbed.scaled(SAME) {
        file.write_all_at(&[number as u8], at).doing(|| "rewriting a byte")?;
    }
    file.sync_all().doing(|| "fsync")
}

/// One byte each of blocks that nobody has written to, and an fsync.
pub(super) fn others(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    let blocks = usize::try_from(size(&file)? / BLOCK).unwrap_or(1);
    let mut random = Random::new(3);
    for _ in 0..env.testbed.scaled(OTHERS) {
        let at = random.below(blocks as u64) * BLOCK + 100;
        file.write_all_at(b"x", at).doing(|| "writing a byte")?;
    }
    file.sync_all().doing(|| "fsync")
}

/// One byte into every block, and an fsync.
pub(super) fn stride(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    for block in 0..size(&file)? / BLOCK {
        if block % 4096 == 0 {
            interrupt::check()?;
        }
        file.write_all_at(b"x", block * BLOCK + 100).doing(|| "writing a byte")?;
    }
    file.sync_all().doing(|| "fsync")
}

/// Writes a byte, before the clock starts, and empties the caches.
pub(super) fn one_and_cold(env: &Env<'_>) -> Result<()> {
    first_synced(env)?;
    testbed::drop_caches()
}

/// Writes the first half, before the clock starts, and empties the caches.
pub(super) fn write_first_half(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    let block = vec![0x5a; 1 << 20];
    for at in (0..size(&file)? / 2).step_by(1 << 20) {
        interrupt::check()?;
        file.write_all_at(&block, at).doing(|| "writing the first half")?;
    }
    file.sync_all().doing(|| "fsync")?;
    drop(file);
    testbed::drop_caches()
}

/// Random writes of `len` bytes, 1 % of the file in all, and an fsync.
fn random<const LEN: usize>(env: &Env<'_>) -> Result<()> {
    let file = open(env)?;
    let size = size(&file)?;
    let places = usize::try_from(size / LEN as u64).unwrap_or(1);
    let data = vec![0xa5; LEN];
    let mut random = Random::new(5);
    for number in 0..(size / 100 / LEN as u64).max(1) {
        if number % 1024 == 0 {
            interrupt::check()?;
        }
        let at = random.below(places as u64) * LEN as u64;
        file.write_all_at(&data, at).doing(|| "writing at random")?;
    }
    file.sync_all().doing(|| "fsync")
}

pub(super) fn random_410(env: &Env<'_>) -> Result<()> {
    random::<410>(env)
}

pub(super) fn random_4k(env: &Env<'_>) -> Result<()> {
    random::<4096>(env)
}

pub(super) fn random_41k(env: &Env<'_>) -> Result<()> {
    random::<40_960>(env)
}

pub(super) fn random_410k(env: &Env<'_>) -> Result<()> {
    random::<409_600>(env)
}
