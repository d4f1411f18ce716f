//! A file of a lower layer that is open to be read is changed for the first time, loses its name, and another file gets that. Killed at any
//! step of it: whoever has the first file open has that one, and not the other.

#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "restart/world.rs"]
mod world;

use std::ffi::CStr;
use vellum_vfs::{Entry, Errno, Filesystem, Name, NodeId, RenameFlags, Result, SetAttr, WriteFlags};
use world::{NO_HANDLE, O_EXCL, O_RDONLY, O_RDWR, ROOT, Storage, World};

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
fn opened(world: &mut World, is_cut: &mut bool, dir: NodeId, name: &CStr, flags: u32) -> NodeId {
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
fn what_is_open_stays_open() {
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
