//! Overwrites of 4 KiB at random places of what is there.

use super::fixture::{BLOCK, Contest, Fixture, of_store};
use crate::failure::{Result, While};
use crate::tree::incompressible;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;
use vellum_zoned::device::emulator::Random;
use vellum_zoned::store::{Class, Store};

/// The object.
const NAME: &[u8] = b"overwritten";

pub(super) struct Overwrites {
    store: Store,
    file: File,
    bytes: u64,
    count: u64,
    is_synced: bool,
    rounds: u64,
}

impl Overwrites {
    pub(super) fn new(bed: &Fixture, bytes: u64, count: u64, is_synced: bool) -> Result<Self> {
        let file = bed.file(bytes, false)?;
        if bed.store.entry(NAME).is_err() {
            let piece = incompressible(1 << 20);
            let mut writer = of_store(bed.store.writer(Class::Normal))?;
            (0..bytes >> 20).try_for_each(|_| of_store(writer.write(piece.as_slice())))?;
            of_store(writer.commit(NAME))?;
            of_store(bed.store.sync())?;
        }
        Ok(Self { store: bed.store.clone(), file, bytes, count, is_synced, rounds: 0 })
    }

    /// Overwrites as the same round of both does them.
    fn each(&self, mut write: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut random = Random::new(self.rounds / 2);
        let data = incompressible(BLOCK as usize);
        (0..self.count).try_for_each(|_| {
            crate::interrupt::check()?;
            write(random.below(self.bytes / BLOCK) * BLOCK, data.as_slice())
        })
    }
}

impl Contest for Overwrites {
    fn name(&self) -> &'static str {
        if self.is_synced { "4 KiB overwrites, each synced" } else { "4 KiB overwrites, synced at the end" }
    }

    fn peer(&self) -> &'static str {
        "a file, fsync"
    }

    fn bar(&self) -> f64 {
        0.8
    }

    fn bytes(&self) -> u64 {
        self.count * BLOCK
    }

    fn peer_seconds(&mut self) -> Result<f64> {
        let begins = Instant::now();
        self.each(|at, data| {
            self.file.write_all_at(data, at).doing(|| "overwriting a file")?;
            if self.is_synced { self.file.sync_all().doing(|| "syncing a file") } else { Ok(()) }
        })?;
        self.file.sync_all().doing(|| "syncing a file")?;
        let seconds = begins.elapsed().as_secs_f64();
        self.rounds += 1;
        Ok(seconds)
    }

    fn store_seconds(&mut self) -> Result<f64> {
        let begins = Instant::now();
        self.each(|at, data| {
            of_store(self.store.write_at(NAME, at, data))?;
            if self.is_synced { of_store(self.store.sync()) } else { Ok(()) }
        })?;
        of_store(self.store.sync())?;
        let seconds = begins.elapsed().as_secs_f64();
        self.rounds += 1;
        Ok(seconds)
    }
}
