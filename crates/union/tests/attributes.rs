//! Attributes that are changed in several steps, or by several at once.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

mod common;

use common::fault::FaultPlan;
use common::{NO_HANDLE, ROOT, faulty, name, walk};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use vellum_branch::MemoryBranch;
use vellum_union::Union;
use vellum_vfs::{Branch, Errno, Filesystem, NodeId, OpenFlags, SetAttr, SetTime, Timestamp, WriteFlags};

fn union(disk: &Arc<MemoryBranch>, plan: &Arc<FaultPlan>) -> Union {
    let mut config = faulty(disk, plan);
    config.partial_from = Some(128 << 10);
    Union::new(config).unwrap()
}

fn node(fs: &Union, path: &str) -> NodeId {
    walk(fs, path).unwrap().unwrap().node
}

/// A directory that gets another group and the set-group-id bit, of which only the first half succeeds: what is made in it
/// afterwards inherits what the directory is by then.
#[test]
fn a_partially_applied_change_is_recovered_partially() {
    let disk = MemoryBranch::new();
    let lower = disk.subtree("lower").unwrap().root();
    lower.make_dir(name(c"dir"), 0o775).unwrap();
    lower.set_owner_at(name(c"dir"), None, Some(55)).unwrap();
    lower.set_mode_at(name(c"dir"), 0o2775).unwrap();
    for change in 0..4 {
        let copy = disk.fork().unwrap();
        let plan = FaultPlan::new();
        let fs = union(&copy, &plan);
        let dir = node(&fs, "dir");
        // So that its owner and mode are known.
        fs.create(&ROOT, dir, name(c"first"), 0o644, OpenFlags::EXCL).unwrap();
        plan.reset();
        plan.fail_change(change, Errno::IO);
        let set = SetAttr { gid: Some(77), mode: Some(0o2770), ..SetAttr::default() };
        let done = fs.setattr(&ROOT, dir, None, &set);
        plan.reset();
        let is = fs.getattr(&ROOT, dir, None).unwrap().attr;
        let made = fs.create(&ROOT, dir, name(c"second"), 0o644, OpenFlags::EXCL).unwrap().0.attr;
        assert_eq!(made.gid, is.gid, "change {change} failed, {:?}", done.err());
    }
}

/// Somebody sets the time of change in the middle of an operation that puts it back as it was: the time that was set stays.
#[test]
fn set_times_are_preserved() {
    const SIZE: u64 = 256 << 10;
    /// Long enough for who does not wait, and no longer for who does.
    const PATIENCE: Duration = Duration::from_millis(50);
    type Act = fn(&Union, NodeId);
    let write: Act = |fs, node| {
        fs.write(&ROOT, node, NO_HANDLE, 0, b"y", WriteFlags::WRITEBACK).map(drop).unwrap();
    };
    let allocate: Act = |fs, node| fs.fallocate(&ROOT, node, NO_HANDLE, SIZE / 2, 4096, 1).unwrap();
    let complete: Act = |fs, _| assert!(fs.background_fill(1) > 0);
    for (what, act) in [("write", write), ("allocate", allocate), ("complete", complete)] {
        let disk = MemoryBranch::new();
        let lower = disk.subtree("lower").unwrap().root();
        lower.create(name(c"file"), 0o644).unwrap().write_at(&vec![7; SIZE as usize], 0).unwrap();
        let plan = FaultPlan::new();
        let fs = Arc::new(union(&disk, &plan));
        let node = node(&fs, "file");
        // It is in the upper layer then, in blocks.
        fs.write(&ROOT, node, NO_HANDLE, 0, b"x", WriteFlags::empty()).unwrap();
        let at = Timestamp { secs: 5, nanos: 5 };
        let (sender, set) = mpsc::channel();
        let tells = Arc::clone(&fs);
        plan.reset();
        // After its data have been written, and before the time is put back.
        plan.before_change(1, move || {
            let (done, waits) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
                tells.setattr(&ROOT, node, None, &set).map(drop).unwrap();
                let _ = done.send(());
            });
            let _ = waits.recv_timeout(PATIENCE);
            sender.send(thread).unwrap();
        });
        act(&fs, node);
        set.recv().unwrap().join().unwrap();
        let is = fs.getattr(&ROOT, node, None).unwrap().attr.mtime;
        assert_eq!(is, at, "{what}");
    }
}
