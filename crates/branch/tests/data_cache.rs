//! What a branch does that reads through a cache, beside what every branch does: which reads reach the other branch, when a change is
//! seen, and that faults there never become data.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

mod support;

use proptest::prelude::*;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use support::fault::{FaultBranch, FaultPlan};
use support::*;
use vellum_branch::{DataCacheBranch, SETTLE, VersionCheck};
use vellum_cache::{BLOCK_BYTES, Config, S3Fifo, Shared, SlabMemory};
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, OpenMode, RenameFlags};

const BLOCK: usize = BLOCK_BYTES as usize;
const SHARED: VersionCheck = VersionCheck::Shared { settle: Duration::ZERO };

/// A branch over memory whose operations are counted, read through a cache.
struct World {
    f: Fixture,
    plan: Arc<FaultPlan>,
    counted: Arc<FaultBranch>,
    cache: Arc<Shared<SlabMemory>>,
}

impl World {
    fn new() -> Self {
        let (f, plan) = (Fixture::memory(), FaultPlan::new());
        let counted = FaultBranch::new(Arc::clone(&f.branch), Arc::clone(&plan));
        Self { f, plan, counted, cache: cache() }
    }

    /// With a cache of so many bytes.
    fn with_cache(capacity: u64) -> Self {
        let config = Config { capacity, files: 100, policy: S3Fifo::queue };
        Self { cache: Shared::new(config, SlabMemory::default()), ..Self::new() }
    }

    fn branch(&self, sharing: VersionCheck) -> Arc<DataCacheBranch> {
        let inner = Arc::clone(&self.counted) as Arc<dyn Branch>;
        DataCacheBranch::new(inner, self.cache.join(100).unwrap(), sharing)
    }

    /// How many operations reach the other branch.
    fn steps(&self, act: impl FnOnce()) -> u64 {
        let before = self.plan.steps();
        act();
        self.plan.steps() - before
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 253) as u8).collect()
}

fn read(file: &dyn BranchFile, offset: usize, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let count = file.read_at(&mut buf, offset as u64).unwrap();
    buf.truncate(count);
    buf
}

fn open(dir: &dyn BranchDir, mode: OpenMode) -> Arc<dyn BranchFile> {
    dir.open_file(n(c"f"), mode).unwrap()
}

#[test]
fn concurrent_readers_share_one_copy() {
    for (sharing, fetch) in [(SHARED, 2), (VersionCheck::Immutable, 1)] {
        let world = World::new();
        let data = bytes(3 * BLOCK + 5);
        put(&*world.f.root(), c"f", &data);
        let (one, other) = (world.branch(sharing), world.branch(sharing));
        let first = open(&*one.root(), OpenMode::READ);
        assert_eq!(world.steps(|| assert_eq!(read(&*first, 0, data.len()), data)), fetch, "{sharing:?}");
        let mut second = None;
        assert_eq!(world.steps(|| second = Some(open(&*other.root(), OpenMode::READ))), 2, "opens, asks");
        let second = second.unwrap();
        assert_eq!(world.steps(|| assert_eq!(read(&*second, 7, data.len()), data[7..])), 0);
        let held = other.root().hold(n(c"f")).unwrap();
        let third = held.reopen(OpenMode::READ).unwrap();
        assert_eq!(world.steps(|| assert_eq!(read(&*third, BLOCK - 1, 2), data[BLOCK - 1..=BLOCK])), 0);
        assert_eq!(world.cache.stats().blocks, 4);
        // Of another inode, though it has the contents and a name.
        world.f.root().remove(n(c"f")).unwrap();
        put(&*world.f.root(), c"f", &data);
        let new = open(&*other.root(), OpenMode::READ);
        assert_eq!(world.steps(|| assert_eq!(read(&*new, 0, 10), data[..10])), fetch);
    }
}

/// Contents of a descriptor that was lent.
fn lent(copy: &OwnedFd, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    File::from(copy.try_clone().unwrap()).read_exact_at(&mut found, 0).unwrap();
    found
}

/// Files that somebody reads on in are fetched as a whole, in few pieces, unless they are large, or others may change them.
#[test]
fn sequentially_read_files_are_fetched_completely() {
    let world = World::with_cache(16 << 20);
    let len = 30 * BLOCK + 5;
    let data = bytes(len);
    drop(put(&*world.f.root(), c"f", &data));
    let branch = world.branch(VersionCheck::Immutable);
    let (file, mut some) = (open(&*branch.root(), OpenMode::READ), [0; 10]);
    file.read_at(&mut some, 0).unwrap();
    // Nothing of the second MiB has been read.
    assert!(world.steps(|| drop(file.read_at(&mut some, 20 * BLOCK as u64))) > 0);
    assert_eq!(some, data[20 * BLOCK..][..10]);
    let mut all = vec![0; len];
    assert_eq!(world.steps(|| assert_eq!(file.read_at(&mut all, 0).unwrap(), len)), 0);
    assert!(all == data);
    assert!(file.lent_descriptor().is_some());
    for (sharing, more) in [(SHARED, 0), (VersionCheck::Immutable, 2 << 20)] {
        let world = World::with_cache(16 << 20);
        drop(put(&*world.f.root(), c"f", &bytes(len + more)));
        let file = open(&*world.branch(sharing).root(), OpenMode::READ);
        for block in [0, 20] {
            file.read_at(&mut some, block * BLOCK as u64).unwrap();
        }
        assert!(world.steps(|| drop(file.read_at(&mut some, 10 * BLOCK as u64))) > 0);
    }
}

#[test]
fn complete_files_are_lent() {
    let world = World::with_cache(4 << 20);
    let data = bytes(3 * BLOCK + 5);
    let writer = put(&*world.f.root(), c"f", &data);
    let (one, other) = (world.branch(VersionCheck::Immutable), world.branch(VersionCheck::Immutable));
    let file = open(&*one.root(), OpenMode::READ);
    assert!(file.descriptor().is_none());
    // Fetched as a whole, for it is small.
    let copy = file.lent_descriptor().unwrap();
    assert_eq!(lent(&copy, data.len()), data);
    let kept = File::from(copy.try_clone().unwrap());
    assert_eq!(kept.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(world.steps(|| assert!(Arc::ptr_eq(&file.lent_descriptor().unwrap(), &copy))), 0);
    let second = open(&*other.root(), OpenMode::READ);
    assert_eq!(world.steps(|| assert_eq!(lent(&second.lent_descriptor().unwrap(), data.len()), data)), 0);
    // Others may write to it: it is not lent.
    assert!(open(&*world.branch(SHARED).root(), OpenMode::READ).lent_descriptor().is_none());
    assert!(open(&*one.root(), RW).lent_descriptor().is_none());
    // A change is seen by the next open; what was lent stays as it was.
    let mut changed = data.clone();
    changed.extend(b"more");
    writer.write_at(&changed, 0).unwrap();
    let third = open(&*one.root(), OpenMode::READ);
    assert_eq!(lent(&third.lent_descriptor().unwrap(), changed.len()), changed);
    assert_eq!(lent(&copy, data.len()), data);
    drop((file, second, third));
    world.cache.audit();
}

#[test]
fn a_large_file_is_lent_once_it_is_complete() {
    let world = World::with_cache(4 << 20);
    let data = bytes(20 * BLOCK);
    put(&*world.f.root(), c"f", &data);
    let branch = world.branch(VersionCheck::Immutable);
    let file = open(&*branch.root(), OpenMode::READ);
    assert_eq!(world.steps(|| assert!(file.lent_descriptor().is_none())), 0);
    assert_eq!(read(&*file, 0, data.len() - 1), data[..data.len() - 1]);
    assert_eq!(lent(&file.lent_descriptor().unwrap(), data.len()), data);
}

#[test]
fn a_foreign_change_is_visible_to_the_next_open() {
    for f in [Fixture::local(), Fixture::memory()] {
        let cache = cache();
        let branch = DataCacheBranch::new(Arc::clone(&f.branch), cache.join(1).unwrap(), SHARED);
        let mut data = bytes(2 * BLOCK);
        let writer = put(&*f.root(), c"f", &data);
        let before = open(&*branch.root(), OpenMode::READ);
        assert_eq!(read(&*before, 0, data.len()), data);
        // Another size too: the clocks of old kernels are coarse.
        data.extend(b"more");
        data[5] = 255;
        writer.write_at(&data, 0).unwrap();
        let after = open(&*branch.root(), OpenMode::READ);
        assert_eq!(read(&*after, 0, data.len()), data);
        assert_eq!(read(&*open(&*branch.root(), RW), 0, data.len()), data);
        // By a rename over it: who has the old file open goes on with that.
        put(&*f.root(), c"g", b"other");
        f.root().rename(n(c"g"), &*f.root(), n(c"f"), RenameFlags::empty()).unwrap();
        assert_eq!(get_at(&*branch.root(), c"f"), b"other");
        assert_eq!(read(&*after, 0, data.len()), data);
        cache.audit();
    }
}

#[test]
fn a_change_through_the_branch_is_seen_at_once() {
    for f in [Fixture::local().cached(), Fixture::memory().cached()] {
        let root = f.root();
        let mut data = bytes(3 * BLOCK);
        let writer = put(&*root, c"f", &data);
        let other = put(&*root, c"other", &[1; 100]);
        let check = |data: &[u8], readers: &mut Vec<Arc<dyn BranchFile>>| {
            readers.push(open(&*root, OpenMode::READ));
            for reader in readers {
                assert_eq!(read(&**reader, 0, 4 * BLOCK), data);
            }
        };
        let mut readers = Vec::new();
        check(&data, &mut readers);
        writer.write_at(b"new", BLOCK as u64).unwrap();
        data[BLOCK..BLOCK + 3].copy_from_slice(b"new");
        check(&data, &mut readers);
        writer.truncate(BLOCK as u64 + 2).unwrap();
        data.truncate(BLOCK + 2);
        check(&data, &mut readers);
        writer.truncate(2 * BLOCK as u64).unwrap();
        data.resize(2 * BLOCK, 0);
        check(&data, &mut readers);
        // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE.
        writer.allocate(3, 10, 100).unwrap();
        data[10..110].fill(0);
        check(&data, &mut readers);
        assert_eq!(writer.copy_range(50, &*other, 0, 100).unwrap(), 100);
        data[50..150].fill(1);
        check(&data, &mut readers);
        if BranchFile::clone_from(&*writer, &*other).is_ok() {
            data = vec![1; 100];
            check(&data, &mut readers);
        }
        open(&*root, RW | OpenMode::TRUNCATE);
        check(&[], &mut readers);
        writer.write_at(b"again", 0).unwrap();
        check(b"again", &mut readers);
        root.hold(n(c"f")).unwrap().reopen(RW | OpenMode::TRUNCATE).unwrap();
        check(&[], &mut readers);
    }
}

#[test]
fn a_recently_changed_file_is_not_cached() {
    let (f, cache) = (Fixture::local(), cache());
    put(&*f.root(), c"f", &bytes(100));
    for (settle, blocks) in [(SETTLE, 0), (Duration::ZERO, 1)] {
        let sharing = VersionCheck::Shared { settle };
        let branch = DataCacheBranch::new(Arc::clone(&f.branch), cache.join(1).unwrap(), sharing);
        assert_eq!(get_at(&*branch.root(), c"f"), bytes(100));
        assert_eq!(cache.stats().blocks, blocks);
    }
}

/// Whichever operation fails, or is the last: an answer is right, or it is the error.
#[test]
fn failed_reads_are_never_cached() {
    let data = bytes(5 * BLOCK + 100);
    let act = |world: &World| -> Vec<Errno> {
        let branch = world.branch(SHARED);
        let mut failed = Vec::new();
        for offset in [0, BLOCK - 10, 4 * BLOCK, 5 * BLOCK + 50, 2 * BLOCK] {
            let mut buf = vec![0; 2 * BLOCK];
            let result = branch
                .root()
                .open_file(n(c"f"), OpenMode::READ)
                .and_then(|file| file.read_at(&mut buf, offset as u64));
            match result {
                Ok(count) => assert!(data[offset..].starts_with(&buf[..count]) && count > 0),
                Err(error) => failed.push(error.errno()),
            }
        }
        failed
    };
    let world = World::new();
    put(&*world.f.root(), c"f", &data);
    assert!(act(&world).is_empty());
    let steps = world.plan.steps();
    assert!(steps > 10, "{steps}");
    for step in 0..steps {
        for dies in [false, true] {
            let world = World::new();
            put(&*world.f.root(), c"f", &data);
            if dies {
                world.plan.kill_at_step(step)
            } else {
                world.plan.fail_step(step, Errno::NOSPC)
            }
            let failed = act(&world);
            assert!(dies || failed.len() <= 1, "{failed:?}");
            assert!(
                failed.iter().all(|errno| *errno == if dies { support::fault::DEAD } else { Errno::NOSPC })
            );
            world.plan.reset();
            assert!(act(&world).is_empty());
            world.cache.audit();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read {
        reader: usize,
        offset: usize,
        len: usize,
    },
    Open(usize),
    Write {
        offset: usize,
        len: usize,
        byte: u8,
    },
    Truncate(usize),
    /// Blocks of another file come in.
    Push(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let offset = || prop_oneof![0..10 * BLOCK, (0..10_usize).prop_map(|block| block * BLOCK)];
    let len = || prop_oneof![0..5000_usize, 0..4 * BLOCK];
    prop_oneof![
        12 => (0..3_usize, offset(), len()).prop_map(|(reader, offset, len)| Step::Read { reader, offset, len }),
        2 => (0..3_usize).prop_map(Step::Open),
        2 => (offset(), len(), any::<u8>()).prop_map(|(offset, len, byte)| Step::Write { offset, len, byte }),
        1 => offset().prop_map(Step::Truncate),
        2 => (0..16_usize).prop_map(Step::Push),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn large_files_read_as_written(steps in prop::collection::vec(step(), 1..60)) {
        let f = Fixture::memory().cached();
        let root = f.root();
        let mut data = bytes(6 * BLOCK + 33);
        let writer = put(&*root, c"f", &data);
        let other = bytes(16 * BLOCK);
        put(&*root, c"other", &other);
        let mut readers: Vec<_> = (0..3).map(|_| open(&*root, OpenMode::READ)).collect();
        for step in steps {
            match step {
                Step::Read { reader, offset, len } => {
                    let end = (offset + len).min(data.len());
                    let expected = data.get(offset..end).unwrap_or_default();
                    prop_assert!(read(&*readers[reader], offset, len) == expected, "{len} at {offset}");
                }
                Step::Open(reader) => readers[reader] = open(&*root, OpenMode::READ),
                Step::Write { offset, len, byte } => {
                    writer.write_at(&vec![byte; len], offset as u64).unwrap();
                    if len > 0 {
                        data.resize(data.len().max(offset + len), 0);
                        data[offset..offset + len].fill(byte);
                    }
                }
                Step::Truncate(len) => {
                    writer.truncate(len as u64).unwrap();
                    data.resize(len, 0);
                }
                Step::Push(block) => {
                    let reader = root.open_file(n(c"other"), OpenMode::READ).unwrap();
                    prop_assert!(read(&*reader, block * BLOCK, BLOCK) == other[block * BLOCK..(block + 1) * BLOCK]);
                }
            }
        }
    }
}
