//! Making an upper whole dies at every step; the next try ends it, and nothing says any more that data are below.

use crate::common::fault::FaultPlan;
use crate::common::tree::{self, Tree};
use crate::common::watchdog::Watched;
use crate::common::{ROOT, name};
use crate::stage::{self, Kind, Stage};
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::{Extent, FlattenRun, Union};
use vellum_vfs::{Branch, FileKind, Filesystem, NodeId, RenameFlags, Result};

fn flatten(union: &Union) -> Result<FlattenRun> {
    union.flatten(Extent::ALL, &mut |_| true)
}

/// Files of every sort that takes data from below, some of which have another name than their origin.
fn disk(stage: &Stage) -> Arc<MemoryBranch> {
    let disk = stage.disk();
    let union = stage.mount(&disk, &FaultPlan::new());
    for (from, to) in [(c"meta2", c"meta-moved"), (c"part2", c"part-moved")] {
        let at = |at| (NodeId::ROOT, name(at));
        union.rename(&ROOT, at(from), at(to), RenameFlags::empty()).unwrap();
    }
    disk
}

fn look(stage: &Stage, disk: &MemoryBranch) -> Tree {
    stage.look(&stage.mount(disk, &FaultPlan::new()))
}

/// What the upper says of data that are below.
fn marks_below(disk: &MemoryBranch) -> Vec<String> {
    let speaks = |path: &str, kind: FileKind, attribute: &str| {
        let on_files = [".vellum.p", ".overlay.metacopy", ".overlay.redirect"];
        let on_root = [".vellum.lowers", ".fuseoverlayfs.override_stat"];
        (kind == FileKind::Regular && on_files.iter().any(|mark| attribute.ends_with(mark)))
            || (path.is_empty() && on_root.iter().any(|mark| attribute.ends_with(mark)))
    };
    let mut found = Vec::new();
    for (path, seen) in tree::of_branch(&*disk.subtree("upper").unwrap().root()) {
        for attribute in seen.xattrs.keys().map(|attribute| String::from_utf8_lossy(attribute)) {
            if speaks(&path, seen.kind, &attribute) {
                found.push(format!("{path}: {attribute}"));
            }
        }
    }
    found
}

fn one_death(stage: &Stage, prepared: &MemoryBranch, before: &Tree, change: u64, torn: bool) {
    let what = format!("{:?}, death at change {change}, torn {torn}", stage.kind);
    let disk = prepared.fork().unwrap();
    let plan = FaultPlan::new();
    let union = stage.mount(&disk, &plan);
    plan.reset();
    plan.set_torn(torn);
    plan.kill_at_change(change);
    let _ = flatten(&union);
    assert!(plan.is_dead(), "{what}: there is no such change");
    let disk = disk.fork().unwrap();
    let text = stage::unlike(before, &look(stage, &disk));
    assert!(text.is_empty(), "{what}: another tree\n{text}");
    let next = stage.mount(&disk, &FaultPlan::new());
    let done = flatten(&next).unwrap();
    assert_eq!((done.files_done, done.files_failed), (done.files, 0), "{what}");
    drop(next);
    assert_eq!(marks_below(&disk), [""; 0], "{what}: the next try has left marks");
    let text = stage::unlike(before, &look(stage, &disk));
    assert!(text.is_empty(), "{what}: another tree after the next try\n{text}");
}

#[test]
fn an_interrupted_flatten_is_completed_by_the_next() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.metacopy && !kind.handout) {
        let _watched = Watched::new(format!("flatten {kind:?}"));
        let stage = Stage::new(kind);
        let prepared = disk(&stage);
        assert!(marks_below(&prepared).len() > 2, "{kind:?}: nothing to do");
        let before = look(&stage, &prepared);
        let plan = FaultPlan::new();
        let whole = prepared.fork().unwrap();
        let union = stage.mount(&whole, &plan);
        plan.reset();
        let done = flatten(&union).unwrap();
        assert_eq!((done.files_done, done.files_failed), (done.files, 0), "{kind:?}");
        let changes = plan.changes();
        drop(union);
        assert_eq!(marks_below(&whole), [""; 0], "{kind:?}");
        for number in 0..changes * 2 {
            one_death(&stage, &prepared, &before, number / 2, number % 2 == 1);
        }
    }
}
