//! Random operations, each on the union under test and on kernel overlayfs: every result must be the same, and
//! at intervals the whole trees.
//!
//! Where the two may differ, and how that is kept out:
//! - Kernel overlayfs shows the old data to a descriptor opened before copy-up: there, opening copies up. So does
//!   the passthrough profile, whose reads are the kernel's.
//! - It refuses to make a device 0:0 and attributes `trusted.overlay.*`, which are its own marks: not tried.
//! - Sizes, link counts and times of access and change (ctime) of directories mean nothing: not compared.
//! - In passthrough the set-id bits go when somebody without privilege opens a file for writing, and not when he
//!   writes: not compared there on regular files. A chown(2) that changes neither owner nor group takes them away
//!   below, and here not, since the kernel does not say so: not tried.
//! - In passthrough, a file that was just copied up has another node. The kernel looks the target of a rename up anew,
//!   so a rename of a file over itself, by the same name or another one of its names, compares old and new node there,
//!   and asks for permission first: not tried by a user.
//! - Without its index, it does not know hard links across copy-up: files with several names are not compared
//!   where it reads our upper. Nor does it hide the attributes in which Vellum records things.

mod executor;
mod library;
mod lower;
mod ops;
mod side;

pub(crate) use library::serve_hands;

use super::Case;
use crate::harness::outcome::{DuringContext, Outcome, ensure, fail};
use crate::harness::tree::{self, Ignore};
use crate::harness::{Cx, Layers, Mount, Profile, Stop, rng};
use library::Pool;
use ops::{Kind, Op, Step};
use side::Side;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::mounted("differential/random", 300, random),
    Case::mounted("differential/crashes", 300, crashes),
    Case::of(Profile::Passthrough, "differential/library", 300, with_library),
];

/// How long new runs are begun.
const TIME: Duration = Duration::from_secs(30);

/// Longest time that is spent on making a failing run shorter.
const SHRINK: Duration = Duration::from_secs(90);

/// Steps of one run: VELLUM_TEST_OPS, or this.
const STEPS: usize = 400;

/// Of one by a program with the library, so that enough calls go by rings.
const STEPS_WITH_LIBRARY: usize = 800;

/// Attributes in which Vellum records things; its own mounts hide them.
const OUR_MARKS: [&[u8]; 3] = [b"trusted.vellum.", b"user.vellum.", b"security.fuseoverlayfs.override_stat"];

fn random(cx: &Cx) -> Outcome {
    Test { cx, kind: Kind::Random, pool: None }.runs()
}

fn crashes(cx: &Cx) -> Outcome {
    Test { cx, kind: Kind::Crashes, pool: None }.runs()
}

/// Operations by a program with the preload library.
fn with_library(cx: &Cx) -> Outcome {
    Test { cx, kind: Kind::Library, pool: Some(Pool::new(cx)?) }.runs()
}

/// One of the cases.
struct Test<'a> {
    cx: &'a Cx,
    kind: Kind,
    /// For programs with the library.
    pool: Option<Pool<'a>>,
}

/// What a run is made of: steps, with their numbers in the whole plan.
type Plan = Vec<(usize, Step)>;

impl Test<'_> {
    fn runs(&self) -> Outcome {
        let first = rng::seed();
        let given = std::env::var_os("VELLUM_TEST_SEED").is_some();
        let usual = if self.pool.is_some() { STEPS_WITH_LIBRARY } else { STEPS };
        let steps = std::env::var("VELLUM_TEST_OPS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
        let begin = Instant::now();
        let mut seed = first;
        let mut by_ring = 0;
        while begin.elapsed() < TIME {
            let plan = ops::run(&mut rng::Rng::new(seed), steps, self.kind);
            let plan: Plan = plan.into_iter().enumerate().collect();
            match self.run(seed, steps, &plan) {
                Err(Stop::Fail(why)) => {
                    println!("seed {seed}: {why}");
                    let (plan, why) = self.shrink(seed, steps, plan, why);
                    println!("seed {seed}, shortest run found ({} steps):", plan.len());
                    plan.iter().for_each(|(_, step)| println!("    {step:?}"));
                    return fail(format!("VELLUM_TEST_SEED={seed}: {why}"));
                }
                Err(skip) => return Err(skip),
                Ok(calls) => {
                    let few = self.pool.is_some() && calls < library::FEWEST;
                    ensure!(!few, "VELLUM_TEST_SEED={seed}: only {calls} calls went by a ring");
                    by_ring += calls;
                }
            }
            seed += 1;
            if given {
                break;
            }
        }
        println!("seeds {first} to {} passed, calls by rings: {by_ring}", seed - 1);
        Ok(())
    }

    /// Leaves out of a failing run what it fails without, first in large pieces.
    fn shrink(&self, seed: u64, steps: usize, mut plan: Plan, mut why: String) -> (Plan, String) {
        let begin = Instant::now();
        let mut piece = plan.len() / 2;
        while piece > 0 {
            let mut at = 0;
            while at < plan.len() {
                if begin.elapsed() > SHRINK {
                    return (plan, why);
                }
                let mut shorter = plan.clone();
                shorter.drain(at..(at + piece).min(plan.len()));
                match self.run(seed, steps, &shorter) {
                    // A failure of another kind is another one's.
                    Err(Stop::Fail(still)) if still.split(' ').next() == why.split(' ').next() => {
                        (plan, why) = (shorter, still)
                    }
                    _ => at += piece,
                }
            }
            piece /= 2;
        }
        (plan, why)
    }

    /// One run over fresh layers; how many calls went by a ring.
    fn run(&self, seed: u64, steps: usize, plan: &Plan) -> Outcome<u64> {
        let base = self.cx.dir.join("run");
        let _ = fs::remove_dir_all(&base);
        let result = self.run_in(&base, seed, steps, plan);
        if std::env::var_os("VELLUM_TEST_KEEP").is_none_or(|keep| keep.is_empty()) {
            let _ = fs::remove_dir_all(&base);
        }
        result
    }

    fn run_in(&self, base: &Path, seed: u64, steps: usize, plan: &Plan) -> Outcome<u64> {
        // Every time that the clock gives during the test is later, every other time earlier.
        let since = clock() - 3600;
        let count = 1 + (seed % 4) as usize;
        let make = |name: &str| -> Outcome<Layers> {
            let layers = Layers::new(&base.join(name), count)?;
            lower::fill(&layers, &mut rng::Rng::new(seed))?;
            Ok(layers)
        };
        let (ours, theirs) = (make("ours")?, make("theirs")?);
        let early = self.cx.profile == Some(Profile::Passthrough);
        // In a third of the runs every file is copied block by block.
        let blocks = seed / 4 % 3 == 1;
        let options: &[&str] = if blocks { &["block_copy=1"] } else { &[] };
        let mut a = match &self.pool {
            None => Side::new(self.cx.mount_with(&ours, options)?, since, early, early),
            Some(pool) => {
                let mount = pool.mount(&ours, options)?;
                let program = pool.program(&mount, seed, steps, since)?;
                Side::of_program(mount, program)
            }
        };
        let mut b = Side::new(Mount::kernel(&theirs)?, since, true, early);
        compare("at first", &a, &b, since, early)?;
        for (at, step) in plan {
            self.step(*at, step, &mut a, &mut b, since)?;
        }
        a.close_all()?;
        let seen = tree::take(a.mount.root(), since).doing("ours, at the end")?;
        tree::inodes_are_unique(&seen)?;
        let (mut mount, by_ring) = a.end()?;
        mount.unmount()?;
        drop(b);
        others_agree(self.cx, &ours, &seen, since, blocks)?;
        Ok(by_ring)
    }

    fn step(&self, at: usize, step: &Step, a: &mut Side, b: &mut Side, since: i64) -> Outcome {
        let early = self.cx.profile == Some(Profile::Passthrough);
        match step {
            Step::Do(Op::Rename { from, to, .. }, true) if early && b.are_one_file(from, to) => Ok(()),
            Step::Do(op, as_user) => {
                let (x, y) = (a.act(at, op, *as_user)?, b.act(at, op, *as_user)?);
                let by = if *as_user { " by a user" } else { "" };
                ensure!(x == y, "step {at} {op:?}{by}: {x}, overlayfs {y}");
                Ok(())
            }
            Step::Compare => compare(&format!("at step {at}"), a, b, since, early),
            Step::Close => {
                a.close_all()?;
                b.close_all()
            }
            Step::Remount | Step::Crash => {
                a.close_all()?;
                b.close_all()?;
                a.sync()?;
                if *step == Step::Crash {
                    a.mount.crash()?
                } else {
                    a.mount.remount()?
                }
                b.mount.remount()?;
                compare(&format!("after {step:?} at step {at}"), a, b, since, early)
            }
        }
    }
}

/// The upper is now a layer like any other: kernel overlayfs and a read-only mount show the same. Only files that were
/// copied block by block are nobody else's.
fn others_agree(cx: &Cx, ours: &Layers, seen: &tree::Tree, since: i64, blocks: bool) -> Outcome {
    let ignore = Ignore { nlink: true, ..Ignore::default() };
    let layers = ours.as_lowers("again")?;
    let mut again = cx.mount(&layers)?;
    tree::same(
        "left: the mount, right: its upper as a lower",
        seen,
        &tree::take(again.root(), since).doing("our upper as a lower of ours")?,
        ignore,
    )?;
    again.unmount()?;
    if blocks {
        return Ok(());
    }
    let mut kernel = Mount::kernel(&layers)?;
    let mut other = tree::take_overlayfs(kernel.root(), since).doing("overlayfs over our upper")?;
    for node in other.values_mut() {
        node.xattrs.retain(|name, _| !OUR_MARKS.iter().any(|mark| name.starts_with(mark)));
    }
    let mut seen = seen.clone();
    // What has several names, some of them below, shows its old self under those.
    let linked: Vec<String> =
        seen.iter().filter(|(_, node)| node.nlink > 1).map(|(path, _)| path.clone()).collect();
    for path in linked {
        seen.remove(&path);
        other.remove(&path);
    }
    tree::same("left: the mount, right: overlayfs over its upper", &seen, &other, ignore)?;
    kernel.unmount()
}

fn compare(when: &str, a: &Side, b: &Side, since: i64, without_setid: bool) -> Outcome {
    let mut x = tree::take(a.mount.root(), since).doing(format!("{when}, ours"))?;
    let mut y = tree::take_overlayfs(b.mount.root(), since).doing(format!("{when}, overlayfs"))?;
    if without_setid {
        for node in x.values_mut().chain(y.values_mut()) {
            node.mode = executor::without_setid(node.mode);
        }
    }
    tree::same(&format!("{when}: left ours, right overlayfs"), &x, &y, Ignore::default())
}

fn clock() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64)
}
