//! Readers, a writer, evictions, invalidations and loans in many orders. The cache is the real one; its locks and the words by which
//! readers and the store agree are the checker's.
//!
//! A file's bytes all are the number of their version. Nobody may read an older version than the one that was asked when the file
//! was opened, nor a mixture; what is lent does not change. That this would be noticed is tried, too: with a storage that says
//! the version it was opened with after a fetch, whatever it has by then.
//!
//! Built with `--cfg shuttle`. `VELLUM_TEST_SEED` repeats a run, `ORDERS_RUNS` says how many orders are tried of each kind.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on should stop")]

#[path = "support/private_memory.rs"]
mod private_memory;

use private_memory::PrivateMemory;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::AtomicU64;
use shuttle::{Config as RunConfig, Runner};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use vellum_cache::*;

const FILES: usize = 3;
/// A page each, of which the cache holds one less than there are.
const SIZE: u64 = 100;
const STEPS: usize = 4;
/// How many threads are the less urgent one at some moment, in the orders that change seldom.
const CHANGES: usize = 3;

struct World {
    cache: Arc<Shared<PrivateMemory>>,
    versions: [Mutex<u8>; FILES],
    /// The storage does not say that it has changed.
    lies: bool,
}

struct File<'a> {
    world: &'a World,
    file: usize,
    opened: Version,
}

impl World {
    fn version(&self, file: usize) -> Version {
        let object = Object { filesystem: 1, inode: file as u64 };
        let version = u64::from(*self.versions[file].lock().unwrap());
        Version { key: Key { object, version }, size: SIZE }
    }

    /// Opens a file and reads it some times.
    fn read(&self, member: &Arc<Member<PrivateMemory>>, file: usize, times: usize) {
        let opened = self.version(file);
        let source = File { world: self, file, opened };
        let contents = member.open(opened).unwrap();
        for _ in 0..times {
            let mut buf = [0; SIZE as usize];
            assert_eq!(contents.read(&source, &mut buf, 0), Ok(buf.len()));
            assert!(buf.iter().all(|byte| *byte == buf[0]), "a mixture: {buf:?}");
            assert!(u64::from(buf[0]) >= opened.key.version, "{} of {opened:?}", buf[0]);
        }
    }

    fn lend(&self, member: &Arc<Member<PrivateMemory>>, file: usize) {
        let opened = self.version(file);
        let contents = member.open(opened).unwrap();
        contents.read(&File { world: self, file, opened }, &mut [0; SIZE as usize], 0).unwrap();
        if let Some(loan) = contents.lend().unwrap() {
            let lent = vec![opened.key.version as u8; SIZE as usize];
            assert_eq!(loan.memory().bytes(), lent);
            shuttle::thread::yield_now();
            assert_eq!(loan.memory().bytes(), lent);
        }
    }

    fn write(&self, file: usize) {
        *self.versions[file].lock().unwrap() += 1;
        if thread_rng().gen_range(0..2) == 0 {
            self.cache.invalidate(self.version(file).key.object);
        }
    }
}

impl Source for File<'_> {
    type Error = Infallible;

    fn version(&self) -> std::result::Result<Version, Infallible> {
        Ok(if self.world.lies { self.opened } else { self.world.version(self.file) })
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> std::result::Result<usize, Infallible> {
        let left = buf.len().min((SIZE - offset) as usize);
        buf[..left].fill(*self.world.versions[self.file].lock().unwrap());
        shuttle::thread::yield_now();
        Ok(left)
    }
}

fn scenario(lies: bool) {
    let config = Config { capacity: 2 * PAGE_BYTES, files: FILES, policy: S3Fifo::queue };
    let world =
        Arc::new(World { cache: Shared::new(config, PrivateMemory), versions: Default::default(), lies });
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let world = Arc::clone(&world);
            shuttle::thread::spawn(move || {
                let member = world.cache.join(1).unwrap();
                for _ in 0..STEPS {
                    let file = thread_rng().gen_range(0..FILES);
                    match thread {
                        0 => world.write(file),
                        1 if thread_rng().gen_range(0..3) == 0 => world.lend(&member, file),
                        _ => world.read(&member, file, 2),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    world.cache.audit();
    // Nothing of an older version has come in under what is there now.
    let member = world.cache.join(1).unwrap();
    for file in 0..FILES {
        let opened = world.version(file);
        let mut buf = [0; SIZE as usize];
        member.open(opened).unwrap().read(&File { world: &world, file, opened }, &mut buf, 0).unwrap();
        assert_eq!(buf, [opened.key.version as u8; SIZE as usize]);
    }
    drop(member);
    assert_eq!(world.cache.stats().lent, 0);
}

fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("VELLUM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()))
}

fn runs() -> usize {
    std::env::var("ORDERS_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2000)
}

fn explore(lies: bool, seed: u64) {
    let mut config = RunConfig::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(seed, runs()), config.clone()).run(move || scenario(lies));
    Runner::new(PctScheduler::new_from_seed(seed, CHANGES, runs()), config).run(move || scenario(lies));
}

#[test]
fn reads_never_return_older_versions() {
    let seed = seed();
    println!("seed {seed}");
    explore(false, seed);
}

/// Several fetch from a storage that takes two at a time; some change their minds.
fn turns() {
    const DEPTH: u32 = 2;
    let fair = Arc::new(Fair::new(DEPTH));
    let under_way = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (1..5)
        .map(|weight| {
            let (fair, under_way) = (Arc::clone(&fair), Arc::clone(&under_way));
            shuttle::thread::spawn(move || {
                let flow = Flow::new(weight);
                for bytes in 0..STEPS as u64 {
                    let turn = fair.ask(&flow, bytes * BLOCK_BYTES);
                    if thread_rng().gen_range(0..4) == 0 {
                        continue;
                    }
                    turn.wait();
                    assert!(under_way.fetch_add(1, SeqCst) < u64::from(DEPTH), "too many are under way");
                    shuttle::thread::yield_now();
                    under_way.fetch_sub(1, SeqCst);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(fair.counts(), (0, 0));
}

#[test]
fn fetches_terminate_and_stay_within_the_limit() {
    let seed = seed();
    println!("seed {seed}");
    let mut config = RunConfig::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(seed, runs()), config.clone()).run(turns);
    Runner::new(PctScheduler::new_from_seed(seed, CHANGES, runs()), config).run(turns);
}

#[test]
fn a_skipped_version_check_after_a_fetch_is_detected() {
    let seed = seed();
    println!("seed {seed}");
    let found = catch_unwind(AssertUnwindSafe(|| explore(true, seed)));
    assert!(found.is_err(), "what came in under a wrong version was not noticed");
}
