//! The union against a plain tree: the same random operations go to a union of random layers and to one plain tree in
//! memory, and everything that a user could see must be the same, errors included.
//!
//! Uppers become lowers as a sequence goes on, so that the layers hold whatever the union itself records.
//!
//! `VELLUM_TEST_CASES` (sequences per test) and `VELLUM_TEST_SEED` (printed by each run) can be set.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

#[path = "model/apply.rs"]
mod apply;
#[path = "model/base.rs"]
mod base;
#[path = "../../branch/tests/support/cluster.rs"]
mod cluster;
mod common;
#[path = "model/handout.rs"]
mod handout;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/sequences.rs"]
mod sequences;
#[path = "model/world.rs"]
mod world;

use common::quiet::quietly;
use common::watchdog::{self, Watched};
use ops::Op;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use vellum_branch::{CephAccess, CephClient};
use world::{Abilities, Elsewhere, Setup, World};

/// Sequences per test when nothing else is asked for; all tests together take less than a minute.
const CASES: u32 = 3_000;
/// Operations in one sequence.
const OPS_MAX: usize = 120;

fn run(setup: &Setup, ops: &[Op]) {
    run_above(setup, ops, None);
}

fn run_above(setup: &Setup, ops: &[Op], elsewhere: Option<Elsewhere<'_>>) {
    let _watched = Watched::new(format!("{setup:?}\n{ops:?}"));
    let mut world = World::new(setup.clone(), elsewhere);
    world.compare(true);
    for (step, op) in ops.iter().enumerate() {
        watchdog::moved();
        STEP.set(step);
        world.apply(op);
        world.check_held();
    }
    STEP.set(ops.len());
    world.finish_sessions();
    world.compare(false);
    world.remount();
    world.compare(true);
}

thread_local! {
    static STEP: Cell<usize> = const { Cell::new(0) };
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn setup(privileged: bool, passthrough: bool, handout: bool) -> impl Strategy<Value = Setup> {
    let layers = proptest::collection::vec(proptest::collection::vec(base::placed(), 0..14), 0..4);
    let even = any::<bool>;
    let flags = (even(), even(), even(), even(), proptest::bool::weighted(0.3), even());
    let likely = || proptest::bool::weighted(0.8);
    let disk = (likely(), likely(), likely(), proptest::bool::weighted(0.2));
    (layers, flags, disk).prop_map(
        move |(base, (far, metacopy, exports, few_handles, writeback, one_file), disk)| Setup {
            base,
            far,
            metacopy,
            passthrough,
            one_file,
            exports: exports || handout,
            few_handles,
            writeback: writeback && !handout,
            handout,
            disk: Abilities {
                privileged,
                unnamed: disk.0,
                rename_whiteout: disk.1,
                exchange: disk.2,
                reflink: disk.3,
            },
        },
    )
}

/// How many sequences were tried.
fn check(privileged: bool, passthrough: bool, handout: bool) -> u32 {
    let cases = number("VELLUM_TEST_CASES").and_then(|n| u32::try_from(n).ok()).unwrap_or(CASES);
    check_some(cases, setup(privileged, passthrough, handout), handout, None);
    cases
}

fn check_some(
    cases: u32,
    setup: impl Strategy<Value = Setup>,
    handout: bool,
    elsewhere: Option<Elsewhere<'_>>,
) {
    let random = || std::hash::RandomState::new().build_hasher().finish();
    let seed = number("VELLUM_TEST_SEED").unwrap_or_else(random);
    println!("VELLUM_TEST_SEED={seed} VELLUM_TEST_CASES={cases}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: if elsewhere.is_some() { 300 } else { 20_000 },
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let op = move || {
        if handout { prop_oneof![1 => ops::op(), 1 => ops::handout()].boxed() } else { ops::op().boxed() }
    };
    let sequences = (setup, proptest::collection::vec(op(), 1..OPS_MAX));
    // Shrinking makes a thousand panics; only the last one is of interest.
    let result = quietly(|| {
        runner.run(&sequences, |(setup, ops)| {
            let done =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_above(&setup, &ops, elsewhere)));
            done.map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                TestCaseError::fail(format!("step {}: {}", STEP.get(), text.unwrap_or_default()))
            })
        })
    });
    if let Err(error) = result {
        match error {
            TestError::Fail(why, (setup, ops)) => {
                panic!("VELLUM_TEST_SEED={seed}\n{why}\nsmallest sequence: {setup:?}\n{ops:?}")
            }
            TestError::Abort(why) => panic!("VELLUM_TEST_SEED={seed}: {why}"),
        }
    }
}

#[test]
fn cached() {
    check(true, false, false);
}

#[test]
fn passthrough() {
    check(true, true, false);
}

#[test]
fn without_privilege() {
    check(false, false, false);
}

/// Clients with files of their own past the kernel, beside all that it does.
#[test]
fn past_the_kernel() {
    let sequences = check(true, true, true) as usize;
    // The rarest of them is done in one of 25 sequences.
    handout::all_done(sequences / 100);
}

/// Lower layers on CephFS.
#[test]
fn above_cephfs() {
    /// A layer takes some tens of milliseconds to make.
    const CASES: u32 = 150;
    cluster::beside_a_cluster("above_cephfs", || {
        let client = CephClient::connect(CephAccess::default()).unwrap();
        check_some(CASES, setup(true, false, false), false, Some(&|| cluster::directory(&client)));
    });
}
