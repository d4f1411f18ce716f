//! The two places where faults are injected: below a local branch (system calls) and above any branch (operations).
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

#[path = "../../sys/tests/support/faulty.rs"]
mod faulty;
mod support;

use faulty::{Fault, Faulty, Occurrence};
use std::sync::Arc;
use support::fault::{DEAD, FaultBranch, FaultPlan};
use support::*;
use vellum_branch::{LocalBranch, MemoryBranch};
use vellum_sys::Call;
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, OpenMode, RenameFlags, Result};

/// A small file made safely: written aside, named at last.
fn publish(root: &dyn BranchDir, data: &[u8]) -> Result<()> {
    let work = match root.open_dir(n(c"work")) {
        Ok(dir) => dir,
        Err(_) => {
            root.make_dir(n(c"work"), 0o700)?;
            root.open_dir(n(c"work"))?
        }
    };
    let file = work.create(n(c"new"), 0o644)?;
    let mut done = 0;
    while done < data.len() {
        done += file.write_at(&data[done..], done as u64)?;
    }
    file.set_xattr(c"user.mark", b"1", 0)?;
    file.sync(true)?;
    work.rename(n(c"new"), root, n(c"file"), RenameFlags::empty())?;
    root.sync_dir()
}

/// Either there is no file, or it is whole.
fn whole_or_absent(root: &dyn BranchDir, data: &[u8]) -> bool {
    match root.open_file(n(c"file"), OpenMode::READ) {
        Ok(file) => {
            assert_eq!(get(&*file), data);
            assert_eq!(file.get_xattr(c"user.mark", &mut []).unwrap(), 1);
            true
        }
        Err(error) => {
            assert_eq!(error.errno(), Errno::NOENT);
            false
        }
    }
}

const DATA: &[u8] = &[42; 10_000];

#[test]
fn every_system_call_can_fail_and_be_the_last() {
    let f = Fixture::local();
    let sys = Faulty::new();
    let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
    let before = sys.total();
    publish(&*branch.root(), DATA).unwrap();
    let steps = sys.total() - before;
    assert!(steps >= 9, "{steps}");
    assert_eq!((sys.count(Call::Write), sys.count(Call::Rename)), (1, 1));
    for errno_now in [Errno::NOSPC, Errno::IO, Errno::ACCESS] {
        for step in 0..steps {
            let f = Fixture::local();
            let sys = Faulty::new();
            let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
            sys.fail_nth(None, step, errno_now);
            // Looking for the directory is the one call whose failure does not matter.
            match publish(&*branch.root(), DATA) {
                Ok(()) => assert_eq!(step, 0),
                Err(error) => assert_eq!(error.errno(), errno_now),
            }
            assert!(!sys.is_dead());
            whole_or_absent(&*f.root(), DATA);
        }
    }
    let mut whole = 0;
    for step in 0..=steps {
        let f = Fixture::local();
        let sys = Faulty::new();
        let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
        sys.kill_at(step);
        let result = publish(&*branch.root(), DATA);
        assert_eq!((result.is_ok(), sys.is_dead()), (step == steps, step < steps), "step {step}");
        if sys.is_dead() {
            assert_eq!(errno(branch.statfs()), faulty::DEAD);
            assert_eq!(errno(branch.root().make_dir(n(c"x"), 0o700)), faulty::DEAD);
        }
        whole += usize::from(whole_or_absent(&*f.root(), DATA));
    }
    assert!(whole >= 2, "the last calls come after the file is in place");
}

#[test]
fn rules_choose_calls() {
    let f = Fixture::local();
    let sys = Faulty::new();
    let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
    let root = branch.root();
    sys.fail_nth(Some(Call::MakeDir), 1, Errno::NOSPC);
    root.make_dir(n(c"a"), 0o700).unwrap();
    assert_eq!(errno(root.make_dir(n(c"b"), 0o700)), Errno::NOSPC);
    root.make_dir(n(c"b"), 0o700).unwrap();
    sys.fail_all(Call::SetXattr, Errno::OPNOTSUPP);
    for _ in 0..3 {
        assert_eq!(errno(root.set_xattr(c"user.a", b"", 0)), Errno::OPNOTSUPP);
    }
    sys.add(Some(Call::StatAt), Occurrence::From(2), Fault::Fail(Errno::IO));
    let stats: Vec<bool> = (0..4).map(|_| root.stat_at(n(c"a")).is_ok()).collect();
    assert_eq!(stats, [true, true, false, false]);
    sys.reset();
    assert!(root.stat_at(n(c"a")).is_ok());
    assert_eq!(sys.total(), 1);
}

#[test]
fn short_transfers_are_continued() {
    let f = Fixture::local();
    let sys = Faulty::new();
    let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
    sys.short(Call::Write, 7);
    sys.short(Call::Read, 11);
    let file = put(&*branch.root(), c"f", DATA);
    assert_eq!(get(&*file), DATA);
    assert_eq!(sys.count(Call::Write), DATA.len().div_ceil(7) as u64);
    assert!(sys.count(Call::Read) >= DATA.len().div_ceil(11) as u64);
    // An error after some bytes: first the bytes are reported, then the error.
    sys.fail_nth(Some(Call::Write), 2, Errno::NOSPC);
    assert_eq!(file.write_at(DATA, 0).unwrap(), 14);
    sys.fail_nth(Some(Call::Write), 0, Errno::NOSPC);
    assert_eq!(errno(file.write_at(DATA, 0)), Errno::NOSPC);
    sys.fail_nth(Some(Call::Read), 1, Errno::IO);
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 11);
}

#[test]
fn listing_can_fail_between_batches() {
    let f = Fixture::local();
    for number in 0..3000 {
        std::fs::write(f.path().join(format!("a name that takes some room {number}")), "").unwrap();
    }
    let sys = Faulty::new();
    let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
    sys.fail_nth(Some(Call::ListDir), 1, Errno::IO);
    let mut seen = 0;
    let result = branch.root().list(&mut |_| {
        seen += 1;
        Ok(())
    });
    assert_eq!(errno(result), Errno::IO);
    assert!(seen > 100 && seen < 3000, "{seen}");
}

#[test]
fn every_change_of_a_branch_can_fail_and_be_the_last() {
    let plan = FaultPlan::new();
    let f = Fixture::memory();
    publish(&*FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan)).root(), DATA).unwrap();
    let (changes, steps) = (plan.changes(), plan.steps());
    assert_eq!((changes, steps), (7, 9), "mkdir, create, write, xattr, sync, rename, sync; two opens");
    for change in 0..changes {
        for f in Fixture::all() {
            let plan = FaultPlan::new();
            let branch = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan));
            plan.fail_change(change, Errno::NOSPC);
            assert_eq!(errno(publish(&*branch.root(), DATA)), Errno::NOSPC);
            assert!(!plan.is_dead());
            whole_or_absent(&*f.root(), DATA);
        }
        for torn in [false, true] {
            for f in Fixture::all() {
                let plan = FaultPlan::new();
                let branch = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan));
                plan.set_torn(torn);
                plan.kill_at_change(change);
                assert_eq!(errno(publish(&*branch.root(), DATA)), DEAD);
                assert!(plan.is_dead());
                assert_eq!(errno(branch.statfs()), DEAD);
                assert_eq!(errno(branch.root().stat_at(n(c"file"))), DEAD);
                // The rename is change 5.
                assert_eq!(whole_or_absent(&*f.root(), DATA), change > 5);
                if change == 2 {
                    let size = f.root().open_dir(n(c"work")).unwrap().stat_at(n(c"new")).unwrap().size;
                    assert_eq!(size, if torn { 4096 } else { 0 });
                }
            }
        }
    }
    for step in 0..steps {
        let f = Fixture::memory();
        let plan = FaultPlan::new();
        let branch = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan));
        plan.kill_at_step(step);
        assert_eq!(errno(publish(&*branch.root(), DATA)), DEAD);
        assert_eq!(plan.steps(), if step == 0 { 2 } else { step + 1 });
        plan.reset();
        branch.root().stat().unwrap();
        assert_eq!((plan.steps(), plan.changes()), (1, 0));
    }
}

#[test]
fn an_injected_failure_affects_one_step() {
    let f = Fixture::memory();
    let plan = FaultPlan::new();
    let root = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan)).root();
    plan.fail_step(1, Errno::IO);
    root.stat().unwrap();
    assert_eq!(errno(root.stat()), Errno::IO);
    root.stat().unwrap();
    put(&*root, c"f", b"data");
    plan.fail_change(0, Errno::ROFS);
    let file = root.open_file(n(c"f"), RW).unwrap();
    assert_eq!(errno(root.open_file(n(c"f"), RW | OpenMode::TRUNCATE)), Errno::ROFS);
    assert_eq!(get(&*file), b"data");
}

/// Operations on two objects reach the branch inside with its own objects, in every combination.
#[test]
fn wrapped_objects_work_together() {
    for f in Fixture::all() {
        let plan = FaultPlan::new();
        let branch = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan));
        let root = branch.root();
        let dir = subdir(&*root, c"d");
        let file = put(&*root, c"f", b"0123456789");
        root.rename(n(c"f"), &*dir, n(c"g"), RenameFlags::empty()).unwrap();
        dir.link(n(c"g"), &*root, n(c"h")).unwrap();
        let held = root.hold(n(c"h")).unwrap();
        root.link_object(&*held, n(c"i")).unwrap();
        root.link_object(&*file, n(c"j")).unwrap();
        let unnamed = root.create_unnamed(0o600).unwrap();
        assert_eq!(unnamed.copy_range(0, &*file, 2, 5).unwrap(), 5);
        root.link_object(&*unnamed, n(c"k")).unwrap();
        assert_eq!(get_at(&*root, c"k"), b"23456");
        assert_eq!(errno(root.link_object(&*dir, n(c"l"))), Errno::PERM);
        let cloned = BranchFile::clone_from(&*unnamed, &*file);
        assert!(cloned.is_ok() || errno(cloned) == Errno::OPNOTSUPP);
        assert_eq!(file.stat().unwrap().nlink, 4);
        let again = held.reopen(OpenMode::READ).unwrap();
        assert_eq!(get(&*again), b"0123456789");
        assert_eq!(branch.open_dir_path(c"d").unwrap().stat().unwrap(), dir.stat().unwrap());
        assert_eq!(names(&*root), ["d", "h", "i", "j", "k"]);
        // Half wrapped: an object that never was in a wrapper.
        let bare = f.root();
        assert_eq!(bare.stat().unwrap().ino, root.stat().unwrap().ino);
        root.rename(n(c"k"), &*bare, n(c"m"), RenameFlags::empty()).unwrap();
        assert_eq!(file.descriptor().is_some(), f.dir.is_some());
    }
}

#[test]
fn a_fork_is_the_disk_after_a_crash() {
    let disk = MemoryBranch::new();
    let upper = disk.subtree("layers/upper").unwrap();
    let work = disk.subtree("layers/work").unwrap();
    let file = put(&*work.root(), c"f", b"old");
    work.root().rename(n(c"f"), &*upper.root(), n(c"g"), RenameFlags::empty()).unwrap();
    let unnamed = work.root().create_unnamed(0o600).unwrap();
    let orphan = put(&*work.root(), c"orphan", b"x");
    work.root().remove(n(c"orphan")).unwrap();

    let after = disk.fork().unwrap();
    file.write_at(b"new", 0).unwrap();
    upper.root().remove(n(c"g")).unwrap();
    let found = after.subtree("layers/upper").unwrap();
    assert_eq!(get_at(&*found.root(), c"g"), b"old");
    let attr = found.root().stat_at(n(c"g")).unwrap();
    assert_eq!((attr.ino, attr.nlink), (file.stat().unwrap().ino, 1));
    assert_eq!(found.root().stat().unwrap().dev, upper.root().stat().unwrap().dev);
    assert_eq!(names(&*after.subtree("layers/work").unwrap().root()), Vec::<String>::new());
    // The two go on apart, and what was without a name lives on where it is held.
    put(&*found.root(), c"later", b"");
    assert!(names(&*upper.root()).is_empty());
    assert_eq!(get(&*orphan), b"x");
    unnamed.write_at(b"y", 0).unwrap();
    assert_eq!(
        errno(found.root().rename(n(c"g"), &*upper.root(), n(c"g"), RenameFlags::empty())),
        Errno::XDEV
    );
}

#[test]
fn memory_disks_can_do_less_and_more() {
    use vellum_branch::MemoryOptions;
    let poor = MemoryBranch::with_options(MemoryOptions {
        unnamed: false,
        rename_whiteout: false,
        devices: false,
        trusted: false,
        name_max: 10,
        owner: (7, 8),
        ..MemoryOptions::default()
    });
    let root = poor.root();
    assert_eq!(errno(root.create_unnamed(0o600)), Errno::OPNOTSUPP);
    let file = put(&*root, c"f", b"");
    assert_eq!((file.stat().unwrap().uid, file.stat().unwrap().gid), (7, 8));
    assert_eq!(errno(root.rename(n(c"f"), &*root, n(c"g"), RenameFlags::WHITEOUT)), Errno::INVAL);
    assert_eq!(errno(root.make_node(n(c"g"), 0o020_600, 0)), Errno::PERM);
    assert_eq!(errno(root.set_xattr(c"trusted.x", b"1", 0)), Errno::PERM);
    assert_eq!(errno(root.create(n(&long_name(11)), 0o600)), Errno::NAMETOOLONG);
    assert_eq!(errno(root.stat_at(n(&long_name(11)))), Errno::NAMETOOLONG);
    assert_eq!(poor.statfs().unwrap().namelen, 10);
    let rich = MemoryBranch::with_options(MemoryOptions { reflink: true, ..MemoryOptions::default() });
    let root = rich.root();
    let from = put(&*root, c"from", &[1; 9000]);
    let to = put(&*root, c"to", b"xyz");
    BranchFile::clone_from(&*to, &*from).unwrap();
    assert_eq!(get(&*to), [1; 9000]);
    to.write_at(b"2", 0).unwrap();
    assert_eq!(get(&*from), [1; 9000], "shared blocks are copied before they are written");
    assert_ne!(rich.root().stat().unwrap().dev, poor.root().stat().unwrap().dev);
}
