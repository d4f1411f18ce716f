//! A file of a lower layer that is open to be read is changed for the first time. Killed at any step of it: an open says ESTALE once at most,
//! and whoever has the file open has that one, also when it has lost its name to another.

#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "restart/world.rs"]
mod world;

use std::ffi::CStr;
use std::path::Path;
use std::sync::{Arc, mpsc};
use vellum_union::Union;
use vellum_vfs::{
    Entry, Errno, Filesystem, Name, NodeId, OpenFlags, RenameFlags, Result, SetAttr, WriteFlags,
};
use world::{Kernel, NO_HANDLE, O_EXCL, O_RDONLY, O_RDWR, ROOT, Storage, World};

/// How the first file loses its name.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Unlink,
    Rename,
    Replace,
}

/// What is left in the end.
struct Left {
    /// The node by which the file was open first, and the one by which it was changed.
    first: NodeId,
    changed: NodeId,
    /// The file that has the name now.
    other: NodeId,
    is_cut: bool,
}

fn named(name: &CStr) -> Name<'_> {
    Name::new(name).unwrap()
}

/// Does something as the kernel does: what a process did not answer that was killed, its successor is asked again.
fn asked<T>(world: &mut World, is_cut: &mut bool, act: impl Fn(&World) -> Result<T>) -> Result<T, Errno> {
    let done = act(world);
    if !world.plan.is_dead() {
        return done.map_err(|error| error.errno());
    }
    *is_cut = true;
    world.plan.reset();
    world.replace();
    act(world).map_err(|error| error.errno())
}

fn looked_up(world: &mut World, is_cut: &mut bool, dir: NodeId, name: &CStr) -> Entry {
    let entry = asked(world, is_cut, |world| world.union.lookup(&ROOT, dir, named(name))).unwrap().unwrap();
    world.hold(&entry);
    entry
}

/// Opens a file by its name: where its node is stale, the name is looked up once more.
fn opened(world: &mut World, is_cut: &mut bool, dir: NodeId, name: &CStr, flags: OpenFlags) -> NodeId {
    for _ in 0..2 {
        let node = looked_up(world, is_cut, dir, name).node;
        match asked(world, is_cut, |world| world.union.open(&ROOT, node, flags).map(drop)) {
            Ok(()) => return node,
            Err(errno) => assert_eq!(errno, Errno::STALE),
        }
    }
    panic!("{name:?}: stale a second time");
}

fn changed(name: &CStr, loss: Loss, step: u64) -> Left {
    let (mut world, mut cut) = (World::new(Storage::FarPassthrough), false);
    let cut = &mut cut;
    let dir = looked_up(&mut world, cut, NodeId::ROOT, c"a").node;
    let other = world.union.create(&ROOT, dir, named(c"other"), 0o640, O_EXCL).unwrap().0;
    world.hold(&other);
    let first = opened(&mut world, cut, dir, name, O_RDONLY);
    let before = world.see(first).unwrap();
    world.plan.kill_at_change(step);
    let node = opened(&mut world, cut, dir, name, O_RDWR);
    let write = |world: &World| world.union.write(&ROOT, node, NO_HANDLE, 1, b"written", WriteFlags::empty());
    assert_eq!(asked(&mut world, cut, write), Ok(7));
    let lost = asked(&mut world, cut, |world| match loss {
        Loss::Unlink => world.union.unlink(&ROOT, dir, named(name)),
        Loss::Rename => {
            let to = (NodeId::ROOT, named(c"moved"));
            world.union.rename(&ROOT, (dir, named(name)), to, RenameFlags::empty())
        }
        Loss::Replace => {
            world.union.rename(&ROOT, (dir, named(c"other")), (dir, named(name)), RenameFlags::empty())
        }
    });
    // Carried out, and killed before the answer.
    assert!(matches!(lost, Ok(()) | Err(Errno::NOENT)), "{lost:?}");
    if !matches!(loss, Loss::Replace) {
        let back = |world: &World| {
            world.union.rename(&ROOT, (dir, named(c"other")), (dir, named(name)), RenameFlags::empty())
        };
        let back = asked(&mut world, cut, back);
        assert!(matches!(back, Ok(()) | Err(Errno::NOENT)), "{back:?}");
    }
    let found = looked_up(&mut world, cut, dir, name);
    assert_eq!(found.node, other.node);
    let is_cut = world.plan.is_dead() || *cut;
    world.plan.reset();
    for _ in 0..2 {
        let set = SetAttr { mode: Some(0o604), ..SetAttr::default() };
        world.union.setattr(&ROOT, first, None, &set).unwrap();
        let (seen, other) = (world.see(node).unwrap(), world.see(other.node).unwrap());
        assert_eq!(world.see(first), Ok(seen.clone()), "both nodes show one file");
        assert_eq!(seen.ino, before.ino);
        let mut expected = before.contents.clone().unwrap();
        expected.resize(expected.len().max(8), 0);
        expected.splice(1..8, *b"written");
        assert!(seen.contents == Some(expected), "{:?}", seen.contents.map(|all| all.len()));
        assert_eq!((seen.mode & 0o7777, other.mode & 0o7777), (0o604, 0o640));
        assert_eq!((other.size, other.nlink), (0, 1));
        world.restart();
        world.check_nodes();
    }
    world.leave();
    Left { first, changed: node, other: other.node, is_cut }
}

#[test]
fn open_files_survive_a_crash_of_the_copy_up() {
    for loss in [Loss::Unlink, Loss::Rename, Loss::Replace] {
        // A file of its own, one with another name, one that is copied by block.
        for name in [c"f1", c"f0", c"large"] {
            let steps = (0..200).find(|step| {
                let left = std::panic::catch_unwind(|| changed(name, loss, *step));
                let left = left.unwrap_or_else(|_| panic!("{name:?} {loss:?}, killed at change {step}"));
                assert!(left.first != left.changed && left.other != left.changed);
                !left.is_cut
            });
            assert!(steps.is_some_and(|steps| steps > 5), "{name:?} {loss:?}: {steps:?}");
        }
    }
}

/// When a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    Never,
    /// At a change of a layer.
    Change(u64),
    /// Before it tells the kernel anything.
    Word,
}

/// A program has a file open to read, has looked up both of its names, and one is removed. The service knows the other no more when it has been
/// killed, and the kernel does not ask again for what it knows: so the file is opened by a node that seems to have no name.
fn opens_by_other_name(storage: Storage, is_linked: bool, is_looked_up: bool, kill: Kill) -> bool {
    let mut world = World::new(storage);
    let lookup = |world: &mut World, dir, name| {
        let entry = world.union.lookup(&ROOT, dir, named(name)).unwrap().unwrap();
        world.hold(&entry);
        entry.node
    };
    let [a, b] = [c"a", c"b"].map(|name| lookup(&mut world, NodeId::ROOT, name));
    let (first, other) = if is_linked { (c"f1", c"linked") } else { (c"f0", c"twin") };
    let node = lookup(&mut world, a, first);
    let again = if is_linked {
        let entry = world.union.link(&ROOT, node, b, named(other)).unwrap();
        world.hold(&entry);
        entry.node
    } else {
        lookup(&mut world, b, other)
    };
    assert_eq!(node, again);
    world.union.open(&ROOT, node, O_RDONLY).unwrap();
    world.replace();
    world.union.unlink(&ROOT, a, named(first)).unwrap();
    world.replace();
    if is_looked_up {
        assert_eq!(lookup(&mut world, b, other), node);
        world.replace();
    }
    let seen = world.see(node).unwrap();
    assert_eq!(seen.nlink, 1);
    let kernel = Arc::<Kernel>::default();
    world.serve(Arc::clone(&kernel));
    assert!(!kernel.is_told(node));
    let (mut open, mut refused, mut deaths) = (node, 0, 0);
    loop {
        let now = if deaths == 0 { kill } else { Kill::Never };
        match killed_at(&world, now, move |union| union.open(&ROOT, open, O_RDWR).map(drop)) {
            Some(Ok(())) => break,
            Some(Err(error)) => {
                assert_eq!((error.errno(), refused), (Errno::STALE, 0), "{storage:?}, killed at {kill:?}");
                refused += 1;
                open = lookup(&mut world, b, other);
            }
            // The kernel asks again.
            None => {
                deaths += 1;
                world.replace();
            }
        }
    }
    world.union.write(&ROOT, open, NO_HANDLE, 0, b"written", WriteFlags::empty()).unwrap();
    assert!(kernel.is_told(node), "what the kernel believes of the node is recalled, {kill:?}");
    for _ in 0..2 {
        let [by_first, by_other] = [node, open].map(|node| world.see(node).unwrap());
        assert_eq!(by_first, by_other);
        assert_eq!(
            (by_first.ino, by_first.nlink, &*by_first.contents.unwrap()),
            (seen.ino, 1, &b"written"[..])
        );
        assert_eq!(lookup(&mut world, b, other), open);
        world.restart();
        world.check_nodes();
    }
    world.leave();
    deaths > 0
}

/// Does something in a thread that stands still for ever at some moment, as one of a process that is killed. None: it does.
fn killed_at<T: Send + 'static>(
    world: &World,
    kill: Kill,
    act: impl FnOnce(&Union) -> T + Send + 'static,
) -> Option<T> {
    let (done, seen) = mpsc::channel();
    let (killed, union) = (done.clone(), Arc::clone(&world.union));
    let die = move || {
        killed.send(None).unwrap();
        loop {
            std::thread::park();
        }
    };
    match (kill, &world.kernel) {
        (Kill::Change(step), _) => world.plan.before_change(step, die),
        (Kill::Word, Some(kernel)) => kernel.before_next_notification(die),
        _ => {}
    }
    let thread = std::thread::spawn(move || {
        let result = act(&union);
        drop(union);
        done.send(Some(result)).unwrap();
    });
    let result = seen.recv().unwrap();
    if result.is_some() {
        thread.join().unwrap();
        world.plan.reset();
    }
    result
}

#[test]
fn a_name_that_only_the_kernel_knows_is_opened() {
    for storage in [Storage::Passthrough, Storage::FarPassthrough] {
        for (is_linked, is_looked_up) in [(false, false), (false, true), (true, false), (true, true)] {
            opens_by_other_name(storage, is_linked, is_looked_up, Kill::Never);
            assert!(opens_by_other_name(storage, is_linked, is_looked_up, Kill::Word));
            if storage.is_remote() {
                let steps = (0..100)
                    .find(|step| !opens_by_other_name(storage, is_linked, is_looked_up, Kill::Change(*step)));
                assert!(steps.is_some_and(|steps| steps > 3), "{steps:?}");
            }
        }
    }
}

/// A file with more names than the upper layer gives to one is changed by one of them, and shows another number from then on.
fn renumbered(kill: u64) -> bool {
    const NAMES: usize = 1030;
    let mut world = World::new(Storage::FewLinks);
    let many = |dir: &Path| {
        std::fs::write(dir.join("lower/many"), "data").unwrap();
        (1..NAMES).for_each(|n| {
            std::fs::hard_link(dir.join("lower/many"), dir.join(format!("lower/m{n}"))).unwrap()
        });
    };
    many(world.dir.path());
    world.replace();
    let node = world.union.lookup(&ROOT, NodeId::ROOT, named(c"many")).unwrap().unwrap();
    world.hold(&node);
    let node = node.node;
    let set = SetAttr { mode: Some(0o604), ..SetAttr::default() };
    let change = move |union: &Union| union.setattr(&ROOT, node, None, &set).map(drop);
    let is_cut = killed_at(&world, Kill::Change(kill), change).is_none();
    if is_cut {
        world.replace();
        world.see(node).unwrap();
        change(&world.union).unwrap();
    }
    let seen = world.see(node).unwrap();
    assert_eq!((seen.mode & 0o7777, seen.nlink), (0o604, 1));
    let entry = world.union.lookup(&ROOT, NodeId::ROOT, named(c"many")).unwrap().unwrap();
    assert_eq!((entry.node, entry.attr.ino), (node, seen.ino));
    world.hold(&entry);
    world.restart();
    world.leave();
    is_cut
}

#[test]
fn a_renumbered_file_is_found_by_both_numbers() {
    let steps = (0..100).find(|step| !renumbered(*step));
    assert!(steps.is_some_and(|steps| steps > 3), "{steps:?}");
}
