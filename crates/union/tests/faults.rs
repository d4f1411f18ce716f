//! Every operation is made to fail at every step of its work on the disk, and the service to die there.
//!
//! Whatever happens, the tree must be as before the operation or as after it, for those who have it mounted and for those
//! who mount it then; an operation that says that it succeeded must have; and what is left in the work directory goes with
//! the next mount. What is only atomic in parts is listed in [`scenarios::in_parts`], with the states between.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

mod common;
#[path = "faults/completion.rs"]
mod completion;
#[path = "faults/fdatasync.rs"]
mod fdatasync;
#[path = "faults/flatten.rs"]
mod flatten;
#[path = "faults/growth.rs"]
mod growth;
#[path = "faults/handout.rs"]
mod handout;
#[path = "faults/scenarios.rs"]
mod scenarios;
#[path = "faults/sidecars.rs"]
mod sidecars;
#[path = "faults/stage.rs"]
mod stage;
#[path = "faults/writeback.rs"]
mod writeback;

use common::errno_of;
use common::fault::FaultPlan;
use common::quiet::quietly;
use common::tree::{self, Tree};
use common::watchdog::Watched;
use scenarios::{Scenario, in_parts};
use stage::{Kind, Stage};
use vellum_branch::MemoryBranch;
use vellum_union::Union;
use vellum_vfs::{Errno, Result};

/// What one operation does without faults.
struct Known {
    before: Tree,
    after: Tree,
    changes: u64,
    steps: u64,
}

fn dry_run(stage: &Stage, scenario: &Scenario) -> Known {
    let disk = stage.disk();
    let plan = FaultPlan::new();
    let union = stage.mount(&disk, &plan);
    let before = stage.look(&union);
    // As the faulty runs do it: nothing is known yet.
    drop(union);
    let union = stage.mount(&disk, &plan);
    plan.reset();
    (scenario.act)(&union).unwrap_or_else(|e| panic!("{}: {e}", scenario.name));
    let (changes, steps) = (plan.changes(), plan.steps());
    let after = stage.look(&union);
    stage.check_work(&disk, scenario.name);
    Known { before, after, changes, steps }
}

/// Which of the allowed states a tree is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    After,
    Between,
}

fn state_of(known: &Known, seen: &Tree, scenario: &Scenario, kind: Kind, died: bool, what: &str) -> State {
    let (before, after) = (stage::unlike(&known.before, seen), stage::unlike(&known.after, seen));
    if after.is_empty() {
        return State::After;
    }
    if before.is_empty() {
        return State::Before;
    }
    if in_parts(scenario.name, kind, died, &known.before, &known.after, seen) {
        return State::Between;
    }
    panic!(
        "{} {kind:?}, {what}: neither as before nor as after\n-- before, now\n{before}\n-- after, now\n{after}",
        scenario.name
    )
}

fn fresh(stage: &Stage, disk: &MemoryBranch) -> Union {
    stage.mount(disk, &FaultPlan::new())
}

/// Does the operation again where it has not been done, which must succeed now.
fn again(stage: &Stage, scenario: &Scenario, known: &Known, union: &Union, what: &str) {
    let done: Result<(), Errno> = errno_of((scenario.act)(union));
    let context = format!("{} {:?}, {what}, again", scenario.name, stage.kind);
    assert_eq!(done, Ok(()), "{context}");
    let seen = tree::of_union_with(union, false, &mut |_| false);
    let text = stage::unlike(&known.after, &seen);
    assert!(text.is_empty(), "{context}: not as after\n{text}");
}

fn one_failure(
    stage: &Stage,
    scenario: &Scenario,
    known: &Known,
    errno: Errno,
    set: impl Fn(&FaultPlan),
    what: &str,
) {
    let disk = stage.disk();
    let plan = FaultPlan::new();
    let union = stage.mount(&disk, &plan);
    plan.reset();
    set(&plan);
    let result = errno_of((scenario.act)(&union));
    plan.reset();
    let what = format!("{what} {errno:?}, result {result:?}");
    // A copy that could not be marked with its origin's number has one of its own, which nobody is told at once.
    let seen = tree::of_union_with(&union, false, &mut |_| false);
    let state = state_of(known, &seen, scenario, stage.kind, false, &what);
    // Where a rename leaves no whiteout, it may be too late to go back.
    let late = !(stage.kind.rename_whiteout && stage.kind.exchange)
        && scenario.name.starts_with("rename")
        && state == State::Between;
    if result.is_ok() && !late {
        assert_eq!(state, State::After, "{} {:?}, {what}: success without effect", scenario.name, stage.kind);
    }
    // A client that is refused asks the kernel for the same: it must find everything as it was.
    if stage.kind.handout && result.is_err() {
        assert_eq!(state, State::Before, "{}, {what}: refused, and done", scenario.name);
    }
    // Another mount of the layers must see the same state.
    let copy = disk.fork().unwrap();
    let other = fresh(stage, &copy);
    let text = stage::unlike(&seen, &stage.look(&other));
    assert!(
        text.is_empty(),
        "{} {:?}, {what}: mounted, and mounted again\n{text}",
        scenario.name,
        stage.kind
    );
    if state == State::Before {
        growth::write_last_bytes(stage, known, &disk, &format!("{} {:?}, {what}", scenario.name, stage.kind));
        again(stage, scenario, known, &union, &what);
        again(stage, scenario, known, &other, &format!("{what}, mounted again"));
    }
}

fn one_death(stage: &Stage, scenario: &Scenario, known: &Known, change: u64, torn: bool) {
    let disk = stage.disk();
    let plan = FaultPlan::new();
    let union = stage.mount(&disk, &plan);
    plan.reset();
    plan.set_torn(torn);
    plan.kill_at_change(change);
    let _ = (scenario.act)(&union);
    assert!(plan.is_dead(), "{}: there is no change {change}", scenario.name);
    let copy = disk.fork().unwrap();
    let what = format!("death at change {change}, torn {torn}");
    let other = fresh(stage, &copy);
    stage.check_work(&copy, &format!("{} {:?}, {what}", scenario.name, stage.kind));
    let state = state_of(known, &stage.look(&other), scenario, stage.kind, true, &what);
    if state == State::Before {
        again(stage, scenario, known, &other, &what);
    }
    growth::restore_old_size(
        stage,
        known,
        (&copy, &other),
        &format!("{} {:?}, {what}", scenario.name, stage.kind),
    );
}

/// The machine loses its power during the operation or after it; nothing was synced but what the union syncs by itself.
fn one_loss_of_power(stage: &Stage, scenario: &Scenario, known: &Known, number: u64) {
    let disk = stage.disk();
    let union = fresh(stage, &disk);
    disk.record();
    let begun = disk.moment();
    (scenario.act)(&union).unwrap();
    let mut choices = fastrand::Rng::with_seed(number);
    let copy = disk.after_power_loss(begun, &mut |n| choices.usize(..n)).unwrap();
    let what = format!("power lost, choices {number}");
    let other = fresh(stage, &copy);
    stage.check_work(&copy, &format!("{} {:?}, {what}", scenario.name, stage.kind));
    let seen = stage.look(&other);
    let is_mixed =
        scenarios::writes_data(scenario.name) && scenarios::mixed(&known.before, &known.after, &seen);
    if !is_mixed && state_of(known, &seen, scenario, stage.kind, true, &what) == State::Before {
        again(stage, scenario, known, &other, &what);
    }
    growth::restore_old_size(
        stage,
        known,
        (&copy, &other),
        &format!("{} {:?}, {what}", scenario.name, stage.kind),
    );
}

/// Tries every scenario; `times` says how often, and `each` is given the number of the try. All problems are reported,
/// not only the first.
fn all(kinds: &[Kind], times: impl Fn(&Known) -> u64, each: impl Fn(&Stage, &Scenario, &Known, u64)) {
    let mut problems: Vec<String> = Vec::new();
    for &kind in kinds {
        let stage = Stage::new(kind);
        let scenarios = if kind.handout { handout::past_the_kernel() } else { scenarios::all() };
        for scenario in scenarios {
            if !(scenario.fits)(&kind) {
                continue;
            }
            let _watched = Watched::new(format!("{} {kind:?}", scenario.name));
            let known = dry_run(&stage, &scenario);
            let text = stage::unlike(&known.before, &known.after);
            assert!(!text.is_empty(), "{}: nothing happens", scenario.name);
            for number in 0..times(&known) {
                let one = || each(&stage, &scenario, &known, number);
                let done = quietly(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(one)));
                if let Err(panic) = done {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    problems.push(format!("{} {kind:?} number {number}: {text}", scenario.name));
                }
            }
        }
    }
    for problem in &problems {
        eprintln!("{problem}\n");
    }
    assert!(problems.is_empty(), "{} problems", problems.len());
}

const ERRORS: [Errno; 3] = [Errno::NOSPC, Errno::IO, Errno::ACCESS];

#[test]
fn a_failed_change_leaves_a_consistent_tree() {
    all(
        &Kind::ALL,
        |known| known.changes,
        |stage, scenario, known, change| {
            let errno = ERRORS[change as usize % ERRORS.len()];
            let set = |plan: &FaultPlan| plan.fail_change(change, errno);
            one_failure(stage, scenario, known, errno, set, &format!("change {change} fails:"));
        },
    );
}

#[test]
fn any_failed_step_leaves_a_consistent_tree() {
    all(
        // Reads fail alike whatever the disk can do.
        &[Kind::USUAL, Kind::BLOCKS, Kind::HANDOUT],
        |known| known.steps,
        |stage, scenario, known, step| {
            let set = |plan: &FaultPlan| plan.fail_step(step, Errno::IO);
            one_failure(stage, scenario, known, Errno::IO, set, &format!("step {step} fails:"));
        },
    );
}

#[test]
fn a_crash_leaves_a_consistent_tree() {
    all(
        &Kind::ALL,
        |known| known.changes * 2,
        |stage, scenario, known, number| one_death(stage, scenario, known, number / 2, number % 2 == 1),
    );
}

#[test]
fn a_loss_of_power_leaves_a_consistent_tree() {
    all(&Kind::ALL, |known| (known.changes * 2).min(24), one_loss_of_power);
}
