//! The memory branch is only worth something as a model if it answers as a disk does. So the same random
//! operations are run on a directory of ext4 and on memory, and every result, every errno and both trees at the
//! end must be the same.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "modules of one test program")]

#[path = "support/mod.rs"]
mod support;

#[path = "model/operation.rs"]
mod operation;
#[path = "model/tree.rs"]
mod tree;
#[path = "model/world.rs"]
mod world;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use support::Fixture;
use vellum_vfs::{Errno, Name, SetTime, Timestamp};
use world::World;

fn suitable() -> bool {
    if !support::is_root() {
        eprintln!("SKIPPED: needs root, to make devices and change owners");
        return false;
    }
    if !support::is_ext4(&Fixture::local()) {
        eprintln!("SKIPPED: the build directory is not on ext4, which the memory branch imitates");
        return false;
    }
    true
}

/// `VELLUM_TEST_SEED`, which repeats a run, or else a new one.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("VELLUM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()))
}

#[test]
fn memory_answers_as_ext4_does() {
    answers_as_ext4_does(Fixture::memory);
}

/// What is read through a cache is what was written, whatever else happens to the file.
#[test]
fn a_cached_branch_answers_as_ext4_does() {
    answers_as_ext4_does(|| Fixture::memory().cached());
}

/// So does one that is written behind.
#[test]
fn a_writeback_branch_answers_as_ext4_does() {
    answers_as_ext4_does(|| Fixture::memory().writeback());
}

fn answers_as_ext4_does(model: impl Fn() -> Fixture) {
    if !suitable() {
        return;
    }
    let seed = seed();
    println!("seed {seed}");
    let config = ProptestConfig {
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 4000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/model.seeds"))),
        ..ProptestConfig::default()
    };
    proptest!(config, |(operations in operation::sequence())| {
        let (disk, model) = (Fixture::local(), model());
        let mut real = World::new(&disk);
        let mut memory = World::new(&model);
        for (number, operation) in operations.iter().enumerate() {
            let expected = real.apply(operation);
            let found = memory.apply(operation);
            prop_assert_eq!(&found, &expected, "memory (left) and disk differ at {}: {:?}", number, operation);
        }
        let (found, expected) = (tree::read(&*model.root()), tree::read(&*disk.root()));
        prop_assert!(found.keys().eq(expected.keys()), "{:?} or {:?}", found.keys(), expected.keys());
        for (path, node) in &found {
            prop_assert_eq!(node, &expected[path], "memory (left) and disk differ at {}", path);
        }
    });
}

/// What is refused by how large the file would become counts as a change of it; what no file could have does not.
#[test]
fn a_refused_allocation_changes_the_time_as_on_ext4() {
    const INSERT_RANGE: u32 = 0x20;
    const LARGEST: u64 = (1 << 44) - 4096;
    if !suitable() {
        return;
    }
    let epoch = Timestamp { secs: 0, nanos: 0 };
    for fixture in [Fixture::local(), Fixture::memory()] {
        let file = fixture.root().create(Name::new(c"file").unwrap(), 0o644).unwrap();
        file.truncate(8192).unwrap();
        for (mode, len, counts) in [(INSERT_RANGE, LARGEST, true), (0, LARGEST + 8192, false)] {
            file.set_times(None, Some(SetTime::At(epoch))).unwrap();
            let refused = file.allocate(mode, 0, len).map_err(|error| error.errno());
            assert_eq!(refused, Err(Errno::FBIG), "{mode:#x}");
            assert_eq!(file.stat().unwrap().mtime != epoch, counts, "{mode:#x}");
        }
    }
}
