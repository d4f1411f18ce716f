//! What a branch does of which nothing is asked twice: which operations reach the branch below, that answers are those of the branch below,
//! and how all is forgotten.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

mod support;

use std::ffi::CStr;
use std::fmt::Write;
use std::sync::Arc;
use support::fault::{FaultBranch, FaultPlan};
use support::*;
use vellum_branch::{DataCacheBranch, MetadataCache, MetadataCacheBranch, VersionCheck};
use vellum_vfs::{Branch, BranchDir, Errno, Object, OpenMode, RenameFlags};

/// A branch over memory whose operations are counted, and what is known of it.
struct World {
    f: Fixture,
    plan: Arc<FaultPlan>,
    knowledge: Arc<MetadataCache>,
    known: Arc<MetadataCacheBranch>,
}

impl World {
    fn with(bytes: usize) -> Self {
        let (f, plan, knowledge) = (Fixture::memory(), FaultPlan::new(), MetadataCache::new(bytes));
        fill(&*f.root());
        let counted = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan));
        let known = MetadataCacheBranch::new(counted, &knowledge);
        Self { f, plan, knowledge, known }
    }

    fn new() -> Self {
        Self::with(1 << 20)
    }

    /// How many operations reach the branch below.
    fn steps(&self, act: impl FnOnce()) -> u64 {
        let before = self.plan.steps();
        act();
        self.plan.steps() - before
    }

    /// The layer as a container reads it: through a cache of all.
    fn container(&self, cache: &Arc<vellum_cache::Shared<vellum_cache::SlabMemory>>) -> Arc<DataCacheBranch> {
        DataCacheBranch::new(
            Arc::clone(&self.known) as Arc<dyn Branch>,
            cache.join(100).unwrap(),
            VersionCheck::Immutable,
        )
    }
}

fn fill(root: &dyn BranchDir) {
    let dir = subdir(root, c"dir");
    let deep = subdir(&*dir, c"deep");
    for number in 0..20 {
        let name = std::ffi::CString::new(format!("file{number}")).unwrap();
        put(&*deep, &name, format!("contents {number}").as_bytes());
    }
    put(root, c"f", b"data").set_xattr(c"user.color", b"blue", 0).unwrap();
    dir.set_xattr(c"user.long", &[7; 3000], 0).unwrap();
    dir.set_xattr(c"user.empty", b"", 0).unwrap();
    root.make_symlink(n(c"link"), c"dir/deep").unwrap();
    root.make_node(n(c"fifo"), 0o010_600, 0).unwrap();
    root.link(n(c"f"), &*dir, n(c"g")).unwrap();
}

/// Everything that an object says, errors too.
fn said(object: &dyn Object) -> String {
    let mut said = format!("{:?}", object.stat().map_err(|e| e.errno()));
    for len in [0, 1, 5, 4096] {
        let mut buf = vec![0; len];
        let list = object.list_xattr(&mut buf).map_err(|e| e.errno());
        write!(said, " {list:?} {:?}", buf.get(..20)).unwrap();
        for name in [c"user.color", c"user.long", c"user.empty", c"user.missing", c"trusted.overlay.opaque"] {
            let mut buf = vec![0; len];
            let value = object.get_xattr(name, &mut buf).map_err(|e| e.errno());
            write!(said, " {value:?} {:?}", buf.get(..20)).unwrap();
        }
        let mut buf = vec![0; len];
        let target = object.read_link(&mut buf).map_err(|e| e.errno());
        write!(said, " {target:?} {:?}", buf.get(..8)).unwrap();
    }
    said
}

/// Everything that a directory and all below it says, by names, by handles and by open files.
fn tree(dir: &dyn BranchDir) -> String {
    let mut said = said(dir);
    let mut names = names(dir);
    names.extend(["missing", ".wh.f"].map(str::to_owned));
    for name in names {
        let name = std::ffi::CString::new(name).unwrap();
        let name = n(&name);
        let mut buf = [0; 64];
        let target = dir.read_link_at(name, &mut buf).map_err(|e| e.errno());
        let color = dir.get_xattr_at(name, c"user.color", &mut [0; 10]).map_err(|e| e.errno());
        let attr = dir.stat_at(name).map_err(|e| e.errno());
        write!(said, "\n{name} {attr:?} {target:?} {buf:?} {color:?}").unwrap();
        match dir.hold(name) {
            Ok(object) => write!(said, " {}", self::said(&*object)).unwrap(),
            Err(error) => write!(said, " {:?}", error.errno()).unwrap(),
        }
        match dir.open_file(name, OpenMode::READ) {
            Ok(file) => write!(said, " {} {:?}", self::said(&*file), get(&*file)).unwrap(),
            Err(error) => write!(said, " {:?}", error.errno()).unwrap(),
        }
        match dir.open_dir(name) {
            Ok(dir) => said.push_str(&tree(&*dir)),
            Err(error) => write!(said, " {:?}", error.errno()).unwrap(),
        }
    }
    said
}

#[test]
fn the_metadata_cache_answers_as_the_branch_below() {
    for bytes in [1 << 20, 20_000, 5000, 100, 0] {
        let world = World::with(bytes);
        let wanted = tree(&*world.f.root());
        for _ in 0..3 {
            assert!(tree(&*world.known.root()) == wanted, "{bytes} bytes");
            assert!(world.knowledge.bytes() <= bytes, "{} of {bytes} bytes", world.knowledge.bytes());
        }
        world.knowledge.recall();
        assert!(tree(&*world.known.root()) == wanted);
        let deep = world.known.open_dir_path(c"dir/deep").unwrap();
        assert!(tree(&*deep) == tree(&*world.f.branch.open_dir_path(c"dir/deep").unwrap()));
    }
}

/// What one container has asked, the next one is told: all but contents that no cache has.
#[test]
fn cached_metadata_is_not_read_again() {
    let world = World::new();
    let cache = cache();
    let quiet = |world: &World| {
        let root = world.container(&cache).root();
        assert_eq!(names(&*root), ["dir", "f", "fifo", "link"]);
        let deep = root.open_dir(n(c"dir")).unwrap().open_dir(n(c"deep")).unwrap();
        for name in names(&*deep) {
            let name = std::ffi::CString::new(name).unwrap();
            assert!(deep.stat_at(n(&name)).unwrap().is_file());
            assert!(get_at(&*deep, &name).starts_with(b"contents"));
            let file = deep.open_file(n(&name), OpenMode::READ).unwrap();
            let size = file.stat().unwrap().size;
            assert_eq!(file.read_at(&mut [0; 10], size - 1).unwrap(), 1);
            assert_eq!(file.read_at(&mut [0; 10], size).unwrap(), 0);
            assert_eq!(errno(deep.get_xattr_at(n(&name), c"user.color", &mut [])), Errno::NODATA);
        }
        assert_eq!(errno(deep.stat_at(n(c"missing"))), Errno::NOENT);
        assert_eq!(errno(deep.open_dir(n(c"never asked for"))), Errno::NOENT);
        let mut target = [0; 20];
        assert_eq!(root.read_link_at(n(c"link"), &mut target).unwrap(), 8);
        assert_eq!(root.hold(n(c"f")).unwrap().get_xattr(c"user.color", &mut target).unwrap(), 4);
        assert_eq!(root.open_file(n(c"f"), OpenMode::READ).unwrap().lent_descriptor().map(drop), Some(()));
    };
    quiet(&world);
    assert_eq!(world.steps(|| quiet(&world)), 0);
    world.knowledge.recall();
    assert!(world.steps(|| quiet(&world)) > 40);
    assert_eq!(world.steps(|| quiet(&world)), 0);
}

#[test]
fn concurrent_lookups_of_a_name_read_it_once() {
    let world = World::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(names(&*world.known.open_dir_path(c"dir/deep").unwrap()).len(), 20);
                    world.knowledge.recall();
                    assert_eq!(get_at(&*world.known.root(), c"f"), b"data");
                }
            });
        }
    });
}

#[test]
fn nothing_can_be_changed() {
    let world = World::new();
    let root = world.known.root();
    let file = root.open_file(n(c"f"), OpenMode::READ).unwrap();
    let changed = [
        root.make_dir(n(c"d"), 0o755),
        root.remove(n(c"f")),
        root.rename(n(c"f"), &*root, n(c"h"), RenameFlags::empty()),
        root.link(n(c"f"), &*root, n(c"h")),
        root.set_mode_at(n(c"f"), 0),
        root.set_xattr(c"user.x", b"", 0),
        root.hold(n(c"f")).unwrap().set_times(None, None),
        file.truncate(0),
        file.write_at(b"x", 0).map(drop),
        root.create(n(c"h"), 0o600).map(drop),
        root.open_file(n(c"f"), RW).map(drop),
        root.open_file(n(c"f"), OpenMode::READ | OpenMode::TRUNCATE).map(drop),
        file.reopen(OpenMode::WRITE).map(drop),
        world.known.find_file(1).map(drop),
    ];
    for change in changed {
        assert_eq!(errno(change), Errno::ROFS);
    }
    assert_eq!(world.plan.changes(), 0);
    assert_eq!(get_at(&*root, c"f"), b"data");
}

/// Somebody has changed it all the same. What is read of a file that no cache has is what it is now, and from then on nothing that was
/// known is believed.
#[test]
fn a_detected_change_invalidates_the_metadata_cache() {
    type Change = (&'static str, fn(&dyn BranchDir));
    let changes: [Change; 4] = [
        ("written", |root| {
            root.open_file(n(c"f"), RW).unwrap().write_at(b"other data", 0).unwrap();
        }),
        ("replaced", |root| {
            put(root, c"new", b"other data");
            root.rename(n(c"new"), root, n(c"f"), RenameFlags::empty()).unwrap();
        }),
        ("removed", |root| root.remove(n(c"f")).unwrap()),
        ("another kind", |root| {
            root.remove(n(c"f")).unwrap();
            root.make_dir(n(c"f"), 0o755).unwrap();
        }),
    ];
    for (what, change) in changes {
        for cached in [false, true] {
            let world = World::new();
            let cache = cache();
            let branch: Arc<dyn Branch> = if cached {
                world.container(&cache)
            } else {
                Arc::<MetadataCacheBranch>::clone(&world.known)
            };
            let root = branch.root();
            assert_eq!(errno(root.stat_at(n(c"new"))), Errno::NOENT);
            let before = root.open_file(n(c"f"), OpenMode::READ).unwrap();
            assert_eq!(root.stat_at(n(c"f")).unwrap().size, 4);
            change(&*world.f.root());
            put(&*world.f.root(), c"beside", b"beside");
            assert_eq!(root.stat_at(n(c"f")).unwrap().size, 4, "known");
            let file = root.open_file(n(c"f"), OpenMode::READ).unwrap();
            let (mut buf, gone) = ([0; 20], ["removed", "another kind"].contains(&what));
            match file.read_at(&mut buf, 0) {
                Ok(len) => assert!(!gone && buf[..len] == *b"other data", "{what}: {buf:?}"),
                Err(error) => assert!(gone && error.errno() == Errno::STALE, "{what}: {error}"),
            }
            drop(before);
            assert_eq!(get_at(&*root, c"beside"), b"beside", "{what}");
            match root.stat_at(n(c"f")) {
                Ok(attr) => assert!(attr.is_dir() || attr.size == 10, "{what}"),
                Err(error) => assert!(what == "removed" && error.errno() == Errno::NOENT, "{what}: {error}"),
            }
            if !gone {
                assert_eq!(get_at(&*root, c"f"), b"other data", "{what}");
            }
            cache.audit();
        }
    }
}

/// What has failed is asked again, and never known.
#[test]
fn failures_are_not_cached() {
    let steps = {
        let world = World::new();
        world.steps(|| drop(tree(&*world.known.root())))
    };
    for step in (0..steps).step_by(7) {
        let world = World::new();
        world.plan.fail_step(step, Errno::IO);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tree(&*world.known.root())));
        world.plan.reset();
        assert!(tree(&*world.known.root()) == tree(&*world.f.root()), "step {step}");
    }
}

/// A tree that is deeper than a stack.
#[test]
fn a_deep_tree_is_forgotten() {
    let (f, knowledge) = (Fixture::memory(), MetadataCache::new(1 << 30));
    let known = MetadataCacheBranch::new(Arc::clone(&f.branch), &knowledge);
    let mut below = f.root();
    let mut dir = known.root();
    for _ in 0..100_000 {
        below = subdir(&*below, c"d");
        dir = dir.open_dir(n(c"d")).unwrap();
    }
    let name: &CStr = c"d";
    assert_eq!(errno(dir.open_dir(n(name))), Errno::NOENT);
    drop(dir);
    knowledge.recall();
    assert!(known.root().open_dir(n(name)).is_ok());
    // The memory below is none that a test has to give back.
    std::mem::forget((f, below));
}
