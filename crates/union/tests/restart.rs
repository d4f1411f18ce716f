//! A process that serves a union ends at any moment, and another goes on: every id that a front holds means the same afterwards.
//!
//! The first union is forgotten, not dropped: its descriptors stay open and it clears nothing up, as when a supervisor shares
//! the table of descriptors of a process that is killed.

#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "restart/world.rs"]
mod world;

use proptest::prelude::*;
use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use vellum_vfs::{
    Entry, Errno, Filesystem, Name, NodeId, OpenFlags, RenameFlags, SetAttr, SetTime, WriteFlags,
};
use world::{NO_HANDLE, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, ROOT, STORAGES, Seen, Storage, World};

#[derive(Clone, Debug)]
enum Step {
    Lookup(usize, usize),
    Create(usize, usize),
    Mkdir(usize, usize),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    Rename(usize, usize, usize, usize, bool),
    Link(usize, usize, usize),
    Write(usize, u64),
    Truncate(usize, u64),
    Chmod(usize),
    Unnamed(usize),
    Forget(usize),
    Open(usize, OpenFlags),
    Restart,
}

const NAMES: [&str; 8] = [
    "a",
    "b",
    "c",
    "f0",
    "f1",
    "twin",
    "large",
    "a name that is longer than what a record holds itself, by far",
];

fn step() -> impl Strategy<Value = Step> {
    let (dir, name) = (0..12_usize, 0..NAMES.len());
    prop_oneof![
        4 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Lookup(d, n)),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Create(d, n)),
        1 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Mkdir(d, n)),
        2 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Unlink(d, n)),
        1 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Rmdir(d, n)),
        3 => (dir.clone(), name.clone(), dir.clone(), name.clone(), any::<bool>())
            .prop_map(|(d, n, e, m, x)| Step::Rename(d, n, e, m, x)),
        1 => (0..16_usize, dir.clone(), name.clone()).prop_map(|(o, d, n)| Step::Link(o, d, n)),
        2 => (0..16_usize, 0..210_000_u64).prop_map(|(o, at)| Step::Write(o, at)),
        1 => (0..16_usize, 0..210_000_u64).prop_map(|(o, at)| Step::Truncate(o, at)),
        1 => (0..16_usize).prop_map(Step::Chmod),
        1 => dir.prop_map(Step::Unnamed),
        1 => (0..16_usize).prop_map(Step::Forget),
        3 => (0..16_usize, prop::sample::select(vec![O_RDONLY, O_RDONLY, O_RDWR, O_RDWR | O_TRUNC]))
            .prop_map(|(o, flags)| Step::Open(o, flags)),
        3 => Just(Step::Restart),
    ]
}

fn carry_out(world: &mut World, step: &Step) {
    let count = world.held.len();
    let node = |at: usize| world.held[at % count].node;
    let name = |at: usize| CString::new(NAMES[at]).unwrap();
    let keep = |world: &mut World, entry: Option<Entry>| {
        if let Some(entry) = entry {
            world.hold(&entry);
        }
    };
    // What is refused is refused before and after; that is for other tests.
    match *step {
        Step::Lookup(dir, at) => {
            let found = world.union.lookup(&ROOT, node(dir), Name::new(&name(at)).unwrap());
            keep(world, found.ok().flatten());
        }
        Step::Create(dir, at) => {
            let made = world.union.create(&ROOT, node(dir), Name::new(&name(at)).unwrap(), 0o640, O_EXCL);
            keep(world, made.ok().map(|(entry, _)| entry));
        }
        Step::Mkdir(dir, at) => {
            let made = world.union.mkdir(&ROOT, node(dir), Name::new(&name(at)).unwrap(), 0o750);
            keep(world, made.ok());
        }
        Step::Unlink(dir, at) => {
            let _ = world.union.unlink(&ROOT, node(dir), Name::new(&name(at)).unwrap());
        }
        Step::Rmdir(dir, at) => {
            let _ = world.union.rmdir(&ROOT, node(dir), Name::new(&name(at)).unwrap());
        }
        Step::Rename(from, at, to, into, exchange) => {
            let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            let (old, new) = (name(at), name(into));
            let (old, new) = (Name::new(&old).unwrap(), Name::new(&new).unwrap());
            let _ = world.union.rename(&ROOT, (node(from), old), (node(to), new), flags);
        }
        Step::Link(object, dir, at) => {
            let made = world.union.link(&ROOT, node(object), node(dir), Name::new(&name(at)).unwrap());
            keep(world, made.ok());
        }
        Step::Write(object, at) => {
            let _ = world.union.write(&ROOT, node(object), NO_HANDLE, at, b"written", WriteFlags::empty());
        }
        Step::Truncate(object, size) => {
            let set = SetAttr { size: Some(size), mtime: Some(SetTime::Now), ..SetAttr::default() };
            let _ = world.union.setattr(&ROOT, node(object), None, &set);
        }
        Step::Chmod(object) => {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            let _ = world.union.setattr(&ROOT, node(object), None, &set);
        }
        Step::Unnamed(dir) => {
            let made = world.union.tmpfile(&ROOT, node(dir), 0o600, O_RDWR);
            keep(world, made.ok().map(|(entry, _)| entry));
        }
        Step::Forget(at) => world.forget(at % count),
        Step::Open(at, flags) if world.storage.is_passthrough() => drop(world.open(at % count, flags)),
        Step::Open(..) => {}
        Step::Restart => world.restart(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn node_ids_are_stable_over_a_restart(steps in prop::collection::vec(step(), 1..60), storage in prop::sample::select(&STORAGES)) {
        let mut world = World::new(storage);
        for step in &steps {
            carry_out(&mut world, step);
            world.check_nodes();
        }
        world.restart();
        world.check_nodes();
        world.restart();
        world.leave();
    }
}

/// A removed file of a lower layer gets no other name, as the kernel has it.
#[test]
fn a_removed_file_cannot_be_linked() {
    let mut world = World::new(Storage::Local);
    let steps =
        [Step::Unnamed(0), Step::Lookup(8, 0), Step::Lookup(2, 4), Step::Unlink(10, 4), Step::Lookup(10, 2)];
    for step in steps.iter().chain(&[Step::Link(3, 7, 0), Step::Lookup(0, 0)]) {
        carry_out(&mut world, step);
    }
    world.restart();
    world.restart();
}

/// How a file loses its name.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Unlink,
    Replace,
}

/// Takes a file's last name away.
fn lose(world: &World, loss: Loss, dir: NodeId, name: Name<'_>) -> Result<(), Errno> {
    match loss {
        Loss::Unlink => world.union.unlink(&ROOT, dir, name),
        Loss::Replace => {
            let from = Name::new(c"other").unwrap();
            world.union.rename(&ROOT, (dir, from), (dir, name), RenameFlags::empty())
        }
    }
    .map_err(|error| error.errno())
}

/// Killed at any step of a removal, which is then asked for again: who has the file open still has it, and it has no name.
#[test]
fn an_interrupted_removal_is_completed_once() {
    let mut all = 0;
    for storage in [Storage::Far, Storage::FarPlain] {
        for loss in [Loss::Unlink, Loss::Replace] {
            // A new file, a copy of a lower one, and one of which only some blocks are a copy.
            for name in [c"new", c"f1", c"large"] {
                for used in [false, true] {
                    let name = Name::new(name).unwrap();
                    let steps = (0..50)
                        .find(|step| !kills_during_removal(storage, loss, name, Death::Change(*step), used));
                    assert!(steps.is_some_and(|steps| steps >= 1), "{storage:?} {loss:?} {name}: {steps:?}");
                    let stores = (0..500)
                        .find(|store| !kills_during_removal(storage, loss, name, Death::Store(*store), used));
                    assert!(
                        stores.is_some_and(|stores| stores >= 3),
                        "{storage:?} {loss:?} {name}: {stores:?}"
                    );
                    all += stores.unwrap_or_default();
                }
            }
        }
    }
    assert!(all > 60, "{all} stores");
}

/// Before what a process is killed.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// A change of a layer.
    Change(u64),
    /// A change of its ledger.
    Store(usize),
}

/// Removes a file, and kills the process at a change; whether it got so far. `used`: somebody
/// looks for the name before the request comes again.
fn kills_during_removal(storage: Storage, loss: Loss, name: Name<'_>, death: Death, used: bool) -> bool {
    let what = format!("{storage:?} {loss:?} {name} {death:?} {used}");
    let mut world = World::new(storage);
    let dir = world.union.lookup(&ROOT, NodeId::ROOT, Name::new(c"a").unwrap()).unwrap().unwrap();
    world.hold(&dir);
    let dir = dir.node;
    let found = world.union.lookup(&ROOT, dir, name).unwrap();
    let file = found.unwrap_or_else(|| world.union.create(&ROOT, dir, name, 0o640, O_EXCL).unwrap().0);
    world.hold(&file);
    let other = world.union.create(&ROOT, dir, Name::new(c"other").unwrap(), 0o640, O_EXCL).unwrap().0;
    world.hold(&other);
    world.union.write(&ROOT, file.node, NO_HANDLE, 3, b"written", WriteFlags::empty()).unwrap();
    let seen = world.see(file.node).unwrap();
    let gone = Seen { nlink: 0, ..seen.clone() };
    let (first, left) = match death {
        Death::Change(step) => {
            world.plan.kill_at_change(step);
            (lose(&world, loss, dir, name), None)
        }
        Death::Store(store) => world.kill_at_store(store, |world| lose(world, loss, dir, name)),
    };
    let cut = world.plan.is_dead() || left.is_some();
    world.plan.reset();
    match left {
        Some(ledger) => world.replace_by(ledger),
        None => world.replace(),
    }
    let now = world.see(file.node).unwrap_or_else(|errno| panic!("{what}: {errno}"));
    assert!(now == gone || cut && now == seen, "{what}: {now:?}");
    if used {
        let there = world.union.lookup(&ROOT, dir, name).unwrap();
        let is_there = there.as_ref().is_some_and(|entry| entry.node == file.node);
        assert_eq!(is_there, now == seen, "{what}");
        there.iter().for_each(|entry| world.hold(entry));
    }
    if cut || first.is_err() {
        let again = lose(&world, loss, dir, name);
        assert!(matches!(again, Ok(()) | Err(Errno::NOENT)), "{what}: {again:?}");
    }
    for _ in 0..2 {
        let there = world.union.lookup(&ROOT, dir, name).unwrap();
        assert!(there.as_ref().is_none_or(|entry| entry.node != file.node), "{what}: it has its name still");
        there.iter().for_each(|entry| world.hold(entry));
        assert_eq!(world.see(file.node), Ok(gone.clone()), "{what}");
        world.restart();
    }
    assert_eq!(world.orphan_names().len(), 1, "{what}");
    world.leave();
    cut
}

/// Killed before any change of the ledger: each id means what it meant before the operation, or what it means after it.
#[test]
fn a_crash_leaves_the_old_or_new_state() {
    // The root, a, b, a/f0, a/f1, a/large, b/f0, a new file, a new directory.
    let begin = [
        Step::Lookup(0, 0),
        Step::Lookup(0, 1),
        Step::Lookup(1, 3),
        Step::Lookup(1, 4),
        Step::Lookup(1, 6),
        Step::Lookup(2, 3),
        Step::Create(0, 2),
        Step::Mkdir(2, 2),
    ];
    let last = NAMES.len() - 1;
    let operations = [
        Step::Lookup(2, 5),
        Step::Create(1, 2),
        Step::Create(8, last),
        Step::Mkdir(8, last),
        Step::Unlink(1, 4),
        Step::Unlink(0, 2),
        Step::Rmdir(2, 2),
        Step::Rename(1, 4, 2, last, false),
        Step::Rename(0, 2, 8, 0, false),
        Step::Rename(0, 2, 1, 4, false),
        Step::Rename(0, 2, 1, 4, true),
        Step::Link(7, 8, last),
        Step::Link(4, 2, last),
        Step::Write(4, 0),
        Step::Write(5, 100_000),
        Step::Truncate(3, 3),
        Step::Chmod(6),
        Step::Open(4, O_RDWR),
    ];
    let mut all = 0;
    for storage in [Storage::Far, Storage::FarPlain, Storage::FarPassthrough] {
        for operation in &operations {
            let see = |world: &World| {
                let gone = Seen { ino: 0, mode: 0, nlink: 0, size: 0, contents: None };
                let seen = world.held.iter().take(begin.len() + 1).map(|held| match world.see(held.node) {
                    // Nothing holds a directory that has no name.
                    Err(Errno::STALE) if held.node == world.held[8].node => gone.clone(),
                    Ok(Seen { nlink: 0, contents: None, .. }) => gone.clone(),
                    // Of a directory a copy has another size.
                    Ok(seen @ Seen { contents: None, .. }) => Seen { ino: 0, nlink: 1, size: 0, ..seen },
                    Ok(seen) => Seen { ino: 0, ..seen },
                    Err(errno) => panic!("{:?}: {errno}", held.node),
                });
                seen.collect::<Vec<_>>()
            };
            let begun = || {
                let mut world = World::new(storage);
                begin.iter().for_each(|step| carry_out(&mut world, step));
                assert_eq!(world.held.len(), begin.len() + 1);
                world
            };
            let mut world = begun();
            let before = see(&world);
            carry_out(&mut world, operation);
            let after = see(&world);
            let stores = (0..500).find(|store| {
                let mut world = begun();
                let (_, left) = world.kill_at_store(*store, |world| carry_out(world, operation));
                world.plan.reset();
                let Some(ledger) = left else { return true };
                world.held.truncate(begin.len() + 1);
                world.replace_by(ledger);
                let what = format!("{storage:?} {operation:?} {store}");
                let now = see(&world);
                assert!(now == before || now == after, "{what}: {now:?}, not {before:?} or {after:?}");
                world.check_nodes();
                // The request comes again.
                if now != after {
                    carry_out(&mut world, operation);
                    assert_eq!(see(&world), after, "{what}, again");
                }
                world.replace();
                assert_eq!(see(&world), after, "{what}, and again");
                false
            });
            assert!(stores.is_some(), "{storage:?} {operation:?}");
            all += stores.unwrap_or_default();
        }
    }
    assert!(all > 300, "{all} stores");
}

/// Each life is too short to list the lower layer, and long enough to list some of its directories.
#[test]
fn a_name_search_resumes_after_a_crash() {
    const STEPS: u64 = 600;
    let mut world = World::new(Storage::Far);
    let lower = world.dir.path().join("lower");
    for number in 0..1000 {
        let dir = lower.join(format!("b/many/{}/{number}", number % 7));
        std::fs::create_dir_all(&dir).unwrap();
        if number % 250 == 50 {
            std::fs::hard_link(lower.join("a/f0"), dir.join("link")).unwrap();
        }
    }
    let dir = world.union.lookup(&ROOT, NodeId::ROOT, Name::new(c"a").unwrap()).unwrap().unwrap();
    world.hold(&dir);
    let file = world.union.lookup(&ROOT, dir.node, Name::new(c"f0").unwrap()).unwrap().unwrap();
    world.hold(&file);
    let lives = (1..30).find(|_| {
        world.plan.kill_at_step(STEPS);
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let done = world.union.setattr(&ROOT, file.node, None, &set).is_ok();
        world.plan.reset();
        world.replace();
        done
    });
    assert!(lives.is_some_and(|lives| lives > 2), "{lives:?} lives");
    assert_eq!(world.see(file.node).unwrap().mode & 0o7777, 0o640);
    let upper = world.dir.path().join("upper");
    let number = |path: &std::path::Path| std::fs::metadata(path).map(|meta| meta.ino()).ok();
    let first = number(&upper.join("a/f0"));
    for number_of in [50, 300, 550, 800] {
        let link = upper.join(format!("b/many/{}/{number_of}/link", number_of % 7));
        assert_eq!(number(&link), first, "{}", link.display());
    }
    assert_eq!(number(&upper.join("b/twin")), first);
    world.leave();
}

/// A file that was removed by one name has another, of which the successor does not know until it is looked up.
#[test]
fn a_removed_file_with_another_name_loses_that_too() {
    for storage in STORAGES {
        let mut world = World::new(storage);
        let (first, second) = (Name::new(c"first").unwrap(), Name::new(c"second").unwrap());
        let file = world.union.create(&ROOT, NodeId::ROOT, first, 0o640, O_EXCL).unwrap().0;
        world.hold(&file);
        let linked = world.union.link(&ROOT, file.node, NodeId::ROOT, second).unwrap();
        world.hold(&linked);
        world.restart();
        world.union.unlink(&ROOT, NodeId::ROOT, first).unwrap();
        world.restart();
        let found = world.union.lookup(&ROOT, NodeId::ROOT, second).unwrap().unwrap();
        world.hold(&found);
        world.union.unlink(&ROOT, NodeId::ROOT, second).unwrap();
        assert!(world.union.lookup(&ROOT, NodeId::ROOT, second).unwrap().is_none(), "{storage:?}");
        world.see(file.node).unwrap_or_else(|errno| panic!("{storage:?}: {errno}"));
        world.see(found.node).unwrap_or_else(|errno| panic!("{storage:?}: {errno}"));
        world.leave();
    }
}

/// A file of a lower layer that is removed while it is held, and written to: its copy never had a name.
#[test]
fn a_copied_orphan_survives_a_restart() {
    for storage in STORAGES {
        let mut world = World::new(storage);
        let steps = [
            Step::Lookup(0, 1),
            Step::Lookup(1, 3),
            Step::Lookup(1, 4),
            Step::Unlink(1, 3),
            Step::Unlink(1, 4),
            Step::Write(2, 0),
            Step::Chmod(3),
            Step::Restart,
            Step::Write(2, 3),
            Step::Restart,
        ];
        steps.iter().for_each(|step| carry_out(&mut world, step));
        let seen = world.see(world.held[2].node).unwrap();
        assert_eq!(
            (seen.nlink, seen.contents.as_deref()),
            (0, Some(b"wriwritten".as_slice())),
            "{storage:?}"
        );
        assert_eq!(world.see(world.held[3].node).unwrap().mode & 0o7777, 0o700, "{storage:?}");
        world.leave();
    }
}
