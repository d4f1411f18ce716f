//! Somebody who reads or writes a file at a given rate, past the page cache, and how long that takes.

use super::OtherLoad;
use crate::failure::{Result, While};
use fastrand::Rng;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vellum_zoned::device::AlignedBuf;

/// Calls that are under way at once, at the most.
const DEPTH: usize = 8;
/// Longest time of a load.
const MOST: Duration = Duration::from_secs(120);
/// Bytes of the file.
const FILE: u64 = 512 << 20;
/// Written at once when the file is made.
const PIECE: usize = 1 << 20;

/// The file of a load.
pub(super) struct Load {
    file: File,
}

/// A call: when it began, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) began: Instant,
    pub(super) took: Duration,
}

impl Load {
    /// Makes the file, all of it written.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let what = || format!("making a file for direct I/O in {}", directory.display());
        let file = File::from(open(directory, flags, Mode::RUSR | Mode::WUSR).doing(what)?);
        let piece = AlignedBuf::zeroed(PIECE);
        for at in (0..FILE).step_by(PIECE) {
            file.write_all_at(piece.as_slice(), at).doing(what)?;
        }
        file.sync_all().doing(what)?;
        Ok(Self { file })
    }

    /// Calls at random times until `stop`; all of them.
    pub(super) fn run(&self, others: OtherLoad, stop: &AtomicBool) -> Vec<Call> {
        let arrivals = arrivals(others);
        let next = AtomicUsize::new(0);
        let begins = Instant::now();
        std::thread::scope(|scope| {
            let worker = |_| scope.spawn(|| self.work(others, &arrivals, &next, begins, stop));
            let workers: Vec<_> = (0..DEPTH).map(worker).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
        })
    }

    fn work(
        &self,
        others: OtherLoad,
        arrivals: &[Duration],
        next: &AtomicUsize,
        begins: Instant,
        stop: &AtomicBool,
    ) -> Vec<Call> {
        let mut buffer = AlignedBuf::zeroed(others.bytes as usize);
        let mut calls = Vec::new();
        let places = FILE / others.bytes;
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(arrival) = arrivals.get(number).map(|arrival| begins + *arrival) else { break };
            let mut began = arrival;
            let early = arrival.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
                // That a clock rings late is not the disk's fault. A call that waited for one of DEPTH is late by the disk.
                began = Instant::now();
            }
            let mut random = Rng::with_seed(number as u64);
            let place = if others.is_random { random.u64(..places) } else { number as u64 % places };
            let at = place * others.bytes;
            let done = if others.is_write {
                self.file.write_all_at(buffer.as_slice(), at)
            } else {
                self.file.read_exact_at(buffer.as_mut_slice(), at)
            };
            if done.is_ok() {
                calls.push(Call { began, took: began.elapsed() });
            }
        }
        calls
    }
}

/// Times of calls: as many in a second as the rate is, at random (a Poisson process).
fn arrivals(others: OtherLoad) -> Vec<Duration> {
    let mean = others.bytes as f64 / others.rate as f64;
    let mut random = Rng::with_seed(5);
    let mut at = 0.0;
    std::iter::from_fn(|| {
        let drawn = (random.u64(..1 << 53) as f64 + 1.0) / (1_u64 << 53) as f64;
        at -= drawn.ln() * mean;
        (at < MOST.as_secs_f64()).then(|| Duration::from_secs_f64(at))
    })
    .collect()
}
