//! What several parties believe of one directory, tried in many orders: a kernel that keeps what it is told until that is recalled, and
//! makes, moves and removes names and has a file of the lower layer copied; a program that makes and opens names past it, and is given
//! files that it has open; and one that reads a file from a mapping.
//! The union is the real one, over a disk in memory; its locks and the atomics by which parties agree are the checker's (`sync`).
//! In half of it the service dies at any moment, between two stores to the ledger for one, and another goes on with what it leaves.
//!
//! After a change was answered nobody may believe what it made wrong. That this would be noticed is tried, too: parties that do not
//! hear, or do not look, must be caught.
//!
//! Built with `--cfg shuttle`. `VELLUM_TEST_SEED` repeats a run, `COHERENCE_RUNS` says how many orders are tried of each kind (80;
//! `make explore` tries more).
#![cfg(shuttle)]
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

#[path = "coherence/export.rs"]
mod export;
#[path = "coherence/kernel.rs"]
mod kernel;
#[path = "coherence/parties.rs"]
mod parties;
#[path = "coherence/service.rs"]
mod service;
#[path = "coherence/world.rs"]
mod world;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Deaf, NAMES, World};

/// Steps of each party.
const STEPS: usize = 3;
/// Turns of others before the service dies, at most: with all parties, and with two of them.
const LIFE: usize = 250;
const SHORT_LIFE: usize = 80;
/// Orders that are tried of each kind, in turn, until what is wrong is found; and how many times, at most.
const TURN: usize = 250;
const TURNS: u64 = 40;
/// How many threads are the less urgent one at some moment, in the orders that change seldom.
const CHANGES: usize = 3;

fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("VELLUM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()))
}

fn runs() -> usize {
    std::env::var("COHERENCE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(80)
}

/// What is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scenario {
    /// All parties, in one service.
    Alive,
    /// All parties, and the service dies.
    Takeover,
    /// The kernel and a program make, move and remove one name, and the service dies.
    OneName,
    /// The kernel lists the directory while a program makes names in it.
    Lists,
}

fn lists(deaf: Option<Deaf>) {
    let world = World::new(deaf);
    let threads = [
        spawn(&world, |world| (0..STEPS).for_each(|_| kernel::list(world, 1))),
        spawn(&world, |world| (0..STEPS).for_each(|_| kernel::list(world, 2))),
        spawn(&world, |world| NAMES.into_iter().for_each(|what| parties::make(world, what))),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    world.check_beliefs();
}

fn one_name(deaf: Option<Deaf>) {
    let world = World::new(deaf);
    let threads = [
        spawn(&world, |world| {
            (0..STEPS).for_each(|_| kernel::create_or_remove(world, 1, NAMES[0], NAMES[1]));
        }),
        spawn(&world, |world| (0..STEPS).for_each(|_| parties::make(world, NAMES[0]))),
        spawn(&world, |world| parties::takeover(world, SHORT_LIFE)),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    world.check_beliefs();
}

fn scenario(deaf: Option<Deaf>, what: Scenario) {
    match what {
        Scenario::OneName => return one_name(deaf),
        Scenario::Lists => return lists(deaf),
        Scenario::Alive | Scenario::Takeover => {}
    }
    let world = World::new(deaf);
    let mut threads = vec![
        spawn(&world, |world| (0..STEPS).for_each(|_| kernel::step(world, 1))),
        spawn(&world, |world| (0..STEPS).for_each(|_| kernel::step(world, 2))),
        spawn(&world, |world| (0..STEPS).for_each(|_| parties::program(world))),
        spawn(&world, |world| (0..STEPS).for_each(|_| parties::reader(world))),
    ];
    if what == Scenario::Takeover {
        threads.push(spawn(&world, |world| parties::takeover(world, LIFE)));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    world.check_beliefs();
}

fn spawn(
    world: &std::sync::Arc<World>,
    what: impl FnOnce(&World) + Send + 'static,
) -> shuttle::thread::JoinHandle<()> {
    let world = std::sync::Arc::clone(world);
    shuttle::thread::spawn(move || what(&world))
}

fn explore(deaf: Option<Deaf>, what: Scenario, seed: u64, runs: usize) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(seed, runs), config.clone()).run(move || scenario(deaf, what));
    Runner::new(PctScheduler::new_from_seed(seed, CHANGES, runs), config).run(move || scenario(deaf, what));
}

#[test]
fn caches_never_serve_stale_data() {
    let seed = seed();
    println!("seed {seed}");
    explore(None, Scenario::Alive, seed, runs());
}

#[test]
fn caches_never_serve_stale_data_over_a_takeover() {
    let seed = seed();
    println!("seed {seed}");
    explore(None, Scenario::Takeover, seed, runs());
}

#[test]
fn a_resent_request_finds_its_name_unchanged() {
    let seed = seed();
    println!("seed {seed}");
    explore(None, Scenario::OneName, seed, 4 * runs());
}

#[test]
fn a_listing_has_all_created_names() {
    let seed = seed();
    println!("seed {seed}");
    explore(None, Scenario::Lists, seed, 4 * runs());
}

/// Each is found, or the exploration finds too little. How many orders that takes differs much from seed to seed.
#[test]
fn skipped_notifications_are_detected() {
    let seed = seed();
    println!("seed {seed}");
    for deaf in Deaf::ALL {
        let what = match deaf {
            Deaf::Begun => Scenario::OneName,
            Deaf::Data => Scenario::Lists,
            Deaf::Attributes | Deaf::Answers | Deaf::Cuts => Scenario::Alive,
        };
        let is_found = |turn: &u64| {
            catch_unwind(AssertUnwindSafe(|| explore(Some(deaf), what, seed.wrapping_add(*turn), TURN)))
                .is_err()
        };
        let found = (0..TURNS).find(is_found);
        assert!(found.is_some(), "{deaf:?} was not noticed");
        println!("{deaf:?} was noticed in turn {}", found.unwrap_or(TURNS));
    }
}
