//! A process that serves a union ends at any moment, and another goes on: every id that a front holds means the same afterwards.
//!
//! The first union is forgotten, not dropped: its descriptors stay open and it clears nothing up, as when a supervisor shares
//! the table of descriptors of a process that is killed.

#![allow(clippy::unwrap_used, reason = "a test")]

use proptest::prelude::*;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use vellum_branch::{FaultBranch, FaultPlan, LocalBranch};
use vellum_union::{Budget, Ledger, Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    Branch, Context, Entry, Errno, Filesystem, Handle, Name, NodeId, RenameFlags, SetAttr, SetTime,
    WriteFlags,
};

const ROOT: Context<'static> =
    Context { uid: 0, gid: 0, pid: 1, umask: 0, groups: &[], who: None, progress: &() };
const NO_HANDLE: Handle = Handle(0);
const O_EXCL: u32 = 0o200;

/// What a front holds: an id, how often it has looked it up, and what it has seen of the object.
struct Held {
    node: NodeId,
    lookups: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    ino: u64,
    mode: u32,
    nlink: u32,
    size: u64,
    contents: Option<Vec<u8>>,
}

/// What the upper layer lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    Local,
    /// Objects have no descriptors.
    Far,
    /// Nor can two names change places, as on CephFS.
    FarPlain,
}

const STORAGES: [Storage; 3] = [Storage::Local, Storage::Far, Storage::FarPlain];

struct World {
    storage: Storage,
    /// What goes wrong on a far storage.
    plan: Arc<FaultPlan>,
    dir: tempfile::TempDir,
    union: Union,
    ledger: Arc<Ledger>,
    held: Vec<Held>,
}

fn make_layers(dir: &Path) {
    for layer in ["lower", "upper", "work"] {
        std::fs::create_dir(dir.join(layer)).unwrap();
    }
    let lower = dir.join("lower");
    for sub in ["a", "b", "a/c"] {
        std::fs::create_dir(lower.join(sub)).unwrap();
        for number in 0..3 {
            std::fs::write(lower.join(sub).join(format!("f{number}")), format!("{sub} {number}")).unwrap();
        }
    }
    std::fs::hard_link(lower.join("a/f0"), lower.join("b/twin")).unwrap();
    std::fs::write(lower.join("a/large"), vec![b'l'; 200 << 10]).unwrap();
}

fn open(dir: &Path, ledger: &Arc<Ledger>, storage: Storage, plan: &Arc<FaultPlan>) -> Union {
    let far = storage != Storage::Local;
    let branch = |name: &str| -> Arc<dyn Branch> {
        let local = LocalBranch::open(dir.join(name)).unwrap();
        if far { FaultBranch::new(local, Arc::clone(plan)) } else { local }
    };
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
    config.lowers = vec![branch("lower")];
    config.background = false;
    config.sidecars = far;
    config.run = Some([1; 16]);
    // What was forgotten stays open, so little is kept open for speed.
    config.handles = Arc::new(Budget::new(16, u64::MAX));
    config.ledger = Some(Arc::clone(ledger));
    Union::new(config).unwrap()
}

impl World {
    fn new(storage: Storage) -> Self {
        let dir = tempfile::tempdir().unwrap();
        make_layers(dir.path());
        let ledger = Arc::new(Ledger::create().unwrap());
        let plan = FaultPlan::new();
        if storage == Storage::FarPlain {
            plan.set_plain_renames();
        }
        let union = open(dir.path(), &ledger, storage, &plan);
        let held = vec![Held { node: NodeId::ROOT, lookups: 0 }];
        Self { storage, plan, dir, union, ledger, held }
    }

    fn hold(&mut self, entry: &Entry) {
        match self.held.iter_mut().find(|held| held.node == entry.node) {
            Some(held) => held.lookups += 1,
            None => self.held.push(Held { node: entry.node, lookups: 1 }),
        }
    }

    fn see(&self, node: NodeId) -> Result<Seen, vellum_vfs::Errno> {
        let reply = self.union.getattr(&ROOT, node, None).map_err(|e| e.errno())?;
        let attr = reply.attr;
        let mut contents = None;
        if attr.is_file() {
            let mut data = vec![0; attr.size as usize + 1];
            let len = self.union.read(&ROOT, node, NO_HANDLE, 0, &mut data).map_err(|e| e.errno())?;
            data.truncate(len);
            contents = Some(data);
        }
        Ok(Seen { ino: attr.ino, mode: attr.mode, nlink: attr.nlink, size: attr.size, contents })
    }

    /// The process is gone, and another begins: what is held is the same.
    fn restart(&mut self) {
        let ids: Vec<NodeId> = self.held.iter().map(|held| held.node).collect();
        let before: Vec<_> = ids.iter().map(|node| self.see(*node)).collect();
        self.replace();
        for (node, before) in ids.iter().zip(before) {
            let after = self.see(*node);
            // Nothing holds a directory there that has no name.
            let is_removed_dir = before.as_ref().is_ok_and(|seen| seen.nlink == 0 && seen.contents.is_none());
            if !(self.storage != Storage::Local && is_removed_dir && after == Err(Errno::STALE)) {
                assert_eq!(after, before, "{node:?} after a restart");
            }
        }
    }

    /// The process is gone, and another begins.
    fn replace(&mut self) {
        let memory = self.ledger.descriptor().try_clone_to_owned().unwrap();
        let ledger = Arc::new(Ledger::open(memory).unwrap());
        let union = open(self.dir.path(), &ledger, self.storage, &self.plan);
        std::mem::forget(std::mem::replace(&mut self.union, union));
        std::mem::forget(std::mem::replace(&mut self.ledger, Arc::clone(&ledger)));
        // Other descriptors of the same objects: those of the first process are still its own here.
        let again = |fd: RawFd| -> Option<(RawFd, OwnedFd)> {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            let path = format!("/proc/self/fd/{fd}");
            Some((fd, rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?))
        };
        let held: HashMap<RawFd, OwnedFd> = ledger.held().into_iter().filter_map(again).collect();
        assert!(held.values().all(|fd| fd.as_fd().try_clone_to_owned().is_ok()));
        self.union.resume(held);
    }

    /// Names of removed files.
    fn kept(&self) -> Vec<OsString> {
        let names = std::fs::read_dir(self.dir.path().join("work/work")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.as_encoded_bytes().starts_with(b"@")).collect()
    }

    /// All is forgotten, and the union ends: nothing is left of what was removed.
    fn leave(mut self) {
        for held in self.held.drain(..).skip(1) {
            self.union.forget(held.node, held.lookups);
        }
        let left = self.kept();
        assert!(left.is_empty(), "{left:?}");
    }

    fn forget(&mut self, at: usize) {
        if at > 0 && at < self.held.len() {
            // A front holds the parents of what it holds; what is a directory is kept.
            let held = &self.held[at];
            if self.see(held.node).is_ok_and(|seen| seen.contents.is_some()) {
                let held = self.held.swap_remove(at);
                self.union.forget(held.node, held.lookups);
            }
        }
    }
}

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
            let made = world.union.tmpfile(&ROOT, node(dir), 0o600, 0o2);
            keep(world, made.ok().map(|(entry, _)| entry));
        }
        Step::Forget(at) => world.forget(at % count),
        Step::Restart => world.restart(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn ids_mean_the_same_after_a_restart(steps in prop::collection::vec(step(), 1..60), storage in prop::sample::select(&STORAGES)) {
        let mut world = World::new(storage);
        for step in &steps {
            carry_out(&mut world, step);
        }
        world.restart();
        world.restart();
        world.leave();
    }
}

/// A removed file of a lower layer gets no other name, as the kernel has it.
#[test]
fn what_was_removed_is_not_linked() {
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
fn a_removal_that_is_cut_short_is_carried_out_once() {
    for storage in [Storage::Far, Storage::FarPlain] {
        for loss in [Loss::Unlink, Loss::Replace] {
            // A new file, a copy of a lower one, and one of which only some blocks are a copy.
            for name in [c"new", c"f1", c"large"] {
                for used in [false, true] {
                    let name = Name::new(name).unwrap();
                    let steps = (0..50).find(|step| !is_cut_short(storage, loss, name, *step, used));
                    assert!(steps.is_some_and(|steps| steps >= 1), "{storage:?} {loss:?} {name}: {steps:?}");
                }
            }
        }
    }
}

/// Removes a file, and kills the process at a change; whether it got so far. `used`: somebody
/// looks for the name before the request comes again.
fn is_cut_short(storage: Storage, loss: Loss, name: Name<'_>, step: u64, used: bool) -> bool {
    let what = format!("{storage:?} {loss:?} {name} {step} {used}");
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
    world.plan.kill_at_change(step);
    let first = lose(&world, loss, dir, name);
    let cut = world.plan.is_dead();
    world.plan.reset();
    world.replace();
    let now = world.see(file.node).unwrap_or_else(|errno| panic!("{what}: {errno}"));
    assert!(now == gone || cut && now == seen, "{what}: {now:?}");
    if used {
        let there = world.union.lookup(&ROOT, dir, name).unwrap();
        let is_there = there.as_ref().is_some_and(|entry| entry.node == file.node);
        assert_eq!(is_there, now == seen, "{what}");
        there.iter().for_each(|entry| world.hold(entry));
    }
    if first.is_err() {
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
    assert_eq!(world.kept().len(), 1, "{what}");
    world.leave();
    cut
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
fn what_was_copied_without_a_name_outlives_a_process() {
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
