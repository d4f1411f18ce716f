//! The cases: every one has a name, what it needs, and how long it may take.

mod balance;
mod behaviour;
mod bench;
mod blocks;
mod book;
mod cache;
mod ceph;
mod checkpoint;
mod comparison;
mod conformance;
mod crash;
pub(crate) mod differential;
pub(crate) mod direct;
mod durability;
mod engines;
mod handover;
mod library;
mod monitoring;
mod pool;
mod ring;
mod run;
mod sandbox;
pub(crate) mod stress;
mod supervisor;
mod surface;
mod zoned;

use crate::harness::mount::Profile;
use crate::harness::{Cx, Outcome};
use std::time::Duration;

/// What a case runs.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// cargo with these words.
    Cargo(&'static str),
    /// A program of the source tree with these words; it names results as unit tests do.
    Tool(&'static str),
    /// A function, in namespaces of its own.
    Test(fn(&Cx) -> Outcome),
}

/// When a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// With nothing beside it.
    Alone,
    /// Side by side with others.
    Together,
    /// One after the other beside those, with what they leave of the processors: it has much to compute, and they mostly wait.
    Aside,
}

pub(crate) struct Case {
    /// Its name, `group/what`.
    pub(crate) name: &'static str,
    /// What it runs.
    pub(crate) kind: Kind,
    /// Whether it runs once for each profile;
    pub(crate) profiles: bool,
    /// and if it is about one of them alone, which.
    pub(crate) only: Option<Profile>,
    /// When it runs.
    pub(crate) turn: Turn,
    /// Whether it needs root.
    pub(crate) root: bool,
    /// How long it may take.
    pub(crate) limit: Duration,
}

impl Case {
    /// A case that runs once for each profile, as root, for at most `seconds`.
    const fn mounted(name: &'static str, seconds: u64, test: fn(&Cx) -> Outcome) -> Self {
        let limit = Duration::from_secs(seconds);
        Self {
            name,
            kind: Kind::Test(test),
            profiles: true,
            only: None,
            turn: Turn::Together,
            root: true,
            limit,
        }
    }

    /// A case about something that one profile alone has.
    const fn of(profile: Profile, name: &'static str, seconds: u64, test: fn(&Cx) -> Outcome) -> Self {
        Self { only: Some(profile), ..Self::mounted(name, seconds, test) }
    }

    /// A case that runs once, as root, for at most `seconds`.
    const fn once(name: &'static str, seconds: u64, test: fn(&Cx) -> Outcome) -> Self {
        Self { profiles: false, ..Self::mounted(name, seconds, test) }
    }

    const fn cargo(name: &'static str, line: &'static str) -> Self {
        // A machine that was never used compiles all that others have long compiled.
        let limit = Duration::from_secs(1200);
        Self {
            name,
            kind: Kind::Cargo(line),
            profiles: false,
            only: None,
            turn: Turn::Alone,
            root: false,
            limit,
        }
    }

    /// Others may run at the same time: most of its tests use one processor.
    const fn beside(self) -> Self {
        Self { turn: Turn::Together, limit: Duration::from_secs(1200), ..self }
    }

    /// Whether it belongs to the part of a run that comes first: rules of the source, unit tests, models, comparisons with the
    /// kernel's overlayfs.
    pub(crate) fn is_quick(&self) -> bool {
        const QUICK: [&str; 5] = ["source/format", "source/tidy", "unit", "differential/", "surface/"];
        QUICK.iter().any(|name| self.name.starts_with(name))
    }

    const fn aside(self) -> Self {
        Self { turn: Turn::Aside, limit: Duration::from_secs(1500), ..self }
    }
}

/// The source tree's own checks.
const CARGO: &[Case] = &[
    Case::cargo("source/format", "fmt --all --check"),
    Case::cargo("source/clippy", "clippy --workspace --all-targets -- -D warnings").aside(),
    Case { kind: Kind::Tool("target/debug/xtask tidy"), ..Case::cargo("source/tidy", "") },
    // `make test` has built them, with a source of layers that programs for users do not have.
    Case::cargo("unit", "test --workspace --no-fail-fast --features vellum/memory-layers").beside(),
    // Optimised, for it tries some hundred thousand executions.
    Case::cargo(
        "ring/loom",
        "test --release --config=build.rustflags=[\"--cfg=loom\"] --package vellum-ring --test loom",
    )
    .aside(),
    Case::cargo(
        "union/coherence",
        "test --config=build.rustflags=[\"--cfg=shuttle\"] --target-dir target/shuttle --package vellum-union --test coherence",
    )
    .aside(),
    Case::cargo(
        "cache/orders",
        "test --config=build.rustflags=[\"--cfg=shuttle\"] --target-dir target/shuttle --package vellum-cache --test interleavings",
    )
    .aside(),
    Case { kind: Kind::Tool("scripts/fuzz --jobs 2 --seconds 7"), ..Case::cargo("fuzz", "") }.aside(),
];

/// What operations cost, in counts that do not depend on how busy the machine is. Not in namespaces of its own: the kernel's
/// events name processes by the numbers that they have here.
const COUNTS: &[Case] = &[Case {
    kind: Kind::Tool(
        "target/debug/vellum-bench guard --baseline crates/bench/guard.json --program vellum=PROGRAM",
    ),
    ..Case::cargo("counts", "")
}];

/// All cases, in the order in which they start.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    [
        CARGO,
        COUNTS,
        engines::CASES,
        differential::CASES,
        behaviour::CASES,
        surface::CASES,
        blocks::CASES,
        cache::CASES,
        ceph::CASES,
        zoned::CASES,
        durability::CASES,
        handover::CASES,
        supervisor::CASES,
        crash::CASES,
        library::CASES,
        pool::CASES,
        direct::CASES,
        ring::CASES,
        sandbox::CASES,
        run::CASES,
        checkpoint::CASES,
        monitoring::CASES,
        balance::CASES,
        book::CASES,
        comparison::CASES,
        stress::CASES,
        conformance::CASES,
    ]
    .into_iter()
    .flatten()
}
