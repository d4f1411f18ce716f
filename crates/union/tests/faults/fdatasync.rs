//! What fdatasync has acknowledged is there after a loss of power, whatever the union has done to the file before.

use crate::common::fault::FaultPlan;
use crate::common::quiet::quietly;
use crate::common::watchdog::Watched;
use crate::common::{NO_HANDLE, ROOT, name, walk};
use crate::stage::{Kind, Stage};
use std::ffi::CString;
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::Union;
use vellum_vfs::{Filesystem, NodeId, RenameFlags, SetAttr, WriteFlags};

/// Files of each sort: below, without data above, in blocks, with several names, in directories that are below, above.
const PATHS: [&str; 9] =
    ["file", "holey", "meta", "part", "linked", "dir/inner", "dir/sub/deep/leaf", "merged/low", "upper"];

/// What changes a file's data.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write(u64),
    Size(u64),
    Punch,
}

const CHANGES: [Change; 6] = [
    Change::Write(0),
    Change::Write(5100),
    Change::Size(40),
    Change::Size(0),
    Change::Size(20_000),
    Change::Punch,
];

/// What goes before.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// Only attributes are copied.
    Chmod,
    Rename,
    /// A write that nobody syncs, after which everything is forgotten.
    Remount,
    /// A write that is synced.
    Sync,
}

const BEFORE: [Before; 5] = [Before::Nothing, Before::Chmod, Before::Rename, Before::Remount, Before::Sync];

const RENAMED: &str = "renamed";

fn node(fs: &Union, path: &str) -> Option<NodeId> {
    walk(fs, path).unwrap().map(|entry| entry.node)
}

fn write(fs: &Union, path: &str, offset: u64, byte: u8) {
    let node = node(fs, path).unwrap();
    let n = fs.write(&ROOT, node, NO_HANDLE, offset, &[byte; 600], WriteFlags::empty()).unwrap();
    assert_eq!(n, 600);
}

fn change(fs: &Union, path: &str, change: Change) {
    let node = node(fs, path).unwrap();
    match change {
        Change::Write(offset) => write(fs, path, offset, 9),
        Change::Size(size) => {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            fs.setattr(&ROOT, node, None, &set).map(drop).unwrap();
        }
        Change::Punch => fs.fallocate(&ROOT, node, NO_HANDLE, 100, 9000, 3).unwrap(),
    }
}

fn datasync(fs: &Union, path: &str) {
    fs.fsync(&ROOT, node(fs, path).unwrap(), NO_HANDLE, true).unwrap();
}

fn contents(fs: &Union, path: &str) -> Option<Vec<u8>> {
    let node = node(fs, path)?;
    let size = fs.getattr(&ROOT, node, None).unwrap().attr.size;
    let mut bytes = vec![0xee; size as usize];
    assert_eq!(fs.read(&ROOT, node, NO_HANDLE, 0, &mut bytes).unwrap(), bytes.len());
    Some(bytes)
}

fn rename(fs: &Union, path: &str) {
    let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = if dir.is_empty() { NodeId::ROOT } else { node(fs, dir).unwrap() };
    let (last, to) = (CString::new(last).unwrap(), CString::new(RENAMED).unwrap());
    fs.rename(&ROOT, (dir, name(&last)), (NodeId::ROOT, name(&to)), RenameFlags::empty()).unwrap();
}

fn one(stage: &Stage, path: &'static str, before: Before, what: Change) {
    let disk = stage.disk();
    let mount = |disk: &Arc<MemoryBranch>| stage.mount(disk, &FaultPlan::new());
    let mut fs = mount(&disk);
    disk.record();
    let mut at = path;
    match before {
        Before::Nothing => {}
        Before::Chmod => {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(&ROOT, node(&fs, path).unwrap(), None, &set).map(drop).unwrap();
        }
        Before::Rename => {
            rename(&fs, path);
            at = RENAMED;
        }
        Before::Remount => {
            write(&fs, path, 0, 7);
            drop(fs);
            fs = mount(&disk);
        }
        Before::Sync => {
            write(&fs, path, 0, 7);
            datasync(&fs, path);
        }
    }
    change(&fs, at, what);
    datasync(&fs, at);
    let expected = contents(&fs, at).unwrap();
    let acknowledged = disk.moment();
    for seed in 0..4 {
        let mut choices = fastrand::Rng::with_seed(seed);
        let left = disk.after_power_loss(acknowledged, &mut |n| choices.usize(..n)).unwrap();
        let fs = mount(&left);
        // A rename is durable when it is synced as such; until then the file may have its old name.
        let found = contents(&fs, at).or_else(|| contents(&fs, path));
        assert!(
            found.as_ref() == Some(&expected),
            "{path} {:?}, {before:?}, {what:?}, choices {seed}: {:?} bytes instead of {}, first {:?}",
            stage.kind,
            found.as_ref().map(Vec::len),
            expected.len(),
            found.and_then(|bytes| bytes.first().copied()),
        );
    }
}

#[test]
fn a_sync_of_data_survives_a_loss_of_power() {
    let mut problems: Vec<String> = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.handout) {
        let stage = Stage::new(kind);
        for path in PATHS {
            let _watched = Watched::new(format!("{path} {kind:?}"));
            for before in BEFORE {
                for what in CHANGES {
                    let one = || one(&stage, path, before, what);
                    let done = quietly(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(one)));
                    if let Err(panic) = done {
                        problems.push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
                    }
                }
            }
        }
    }
    for problem in &problems {
        eprintln!("{problem}\n");
    }
    assert!(problems.is_empty(), "{} problems", problems.len());
}
