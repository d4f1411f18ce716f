//! What a store does with files that are lent, invalidated or damaged, and with memory that fails.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "support/policies.rs"]
mod policies;
#[path = "support/private_memory.rs"]
mod private_memory;

use policies::Kind;
use private_memory::{PlainFile, PrivateMemory};
use rustix::io::Errno;
use std::cell::Cell;
use vellum_cache::*;

const BLOCK: usize = BLOCK_BYTES as usize;

fn version(inode: u64, version: u64, size: u64) -> Version {
    Version { key: Key { object: Object { filesystem: 1, inode }, version }, size }
}

fn store<M: Memory>(blocks: u64, memory: M) -> (Store<M>, Container) {
    let config = Config { capacity: blocks * BLOCK_BYTES, files: 100, policy: S3Fifo::queue };
    let mut store = Store::new(config, memory);
    let container = store.join(100).unwrap();
    (store, container)
}

fn fill<M: Memory>(store: &mut Store<M>, container: Container, version: Version, index: u64) -> Result<bool> {
    let index = BlockIndex(index);
    let data = vec![version.key.version as u8; version.block_len(index) as usize];
    let fill = store.begin(version, index).unwrap();
    store.insert(fill, container, &data)
}

#[test]
fn stored_blocks_read_back() {
    let (mut store, container) = store(10, MemFd);
    let file = version(1, 5, BLOCK_BYTES * 2 + 10);
    let data: Vec<u8> = (0..file.size).map(|at| (at % 251) as u8).collect();
    for (index, block) in (0..).map(BlockIndex).zip(data.chunks(BLOCK)) {
        let fill = store.begin(file, index).unwrap();
        assert_eq!((fill.version(), fill.index()), (file, index));
        assert!(store.insert(fill, container, block).unwrap());
    }
    let mut buf = [0; 100];
    let mut read = |index: u64, offset: u64| {
        let len = store.read(file.key, BlockIndex(index), container, offset, &mut buf).unwrap().unwrap();
        let start = (index * BLOCK_BYTES + offset) as usize;
        assert_eq!(&buf[..len], data.get(start..start + len).unwrap_or_default());
        len
    };
    assert_eq!(
        [read(0, 0), read(1, 77), read(0, BLOCK_BYTES - 3), read(2, 3), read(2, 11)],
        [100, 100, 3, 7, 0]
    );
    assert!(store.begin(file, BlockIndex(3)).is_none(), "there is no such block");
    let stats = store.stats();
    assert_eq!((stats.size, stats.blocks, stats.files), (2 * BLOCK_BYTES + PAGE_BYTES, 3, 1));
    assert_eq!((stats.hits, stats.misses, stats.containers[0].hits), (5, 0, 5));
    // What is lent is the memory itself.
    let lent = store.lend(file.key, container).unwrap().unwrap();
    let mut whole = vec![0; data.len()];
    assert_eq!(rustix::io::pread(store.lent_file(&lent).unwrap(), &mut whole, 0).unwrap(), data.len());
    assert_eq!(whole, data);
    store.return_loan(lent);
    store.audit();
}

#[test]
fn lent_files_are_not_evicted() {
    for policy in Kind::ALL {
        let mut store = Store::new(
            Config { capacity: 8 * BLOCK_BYTES, files: 100, policy: policy.policy() },
            PrivateMemory,
        );
        let (one, other) = (store.join(1).unwrap(), store.join(1000).unwrap());
        let file = version(1, 1, 3 * BLOCK_BYTES);
        (0..2).for_each(|index| assert!(fill(&mut store, one, file, index).unwrap()));
        assert!(store.lend(file.key, one).unwrap().is_none(), "not whole");
        assert!(fill(&mut store, one, file, 2).unwrap());
        assert!(store.lend(file.key, one).unwrap().is_none(), "more than its weight gives it");
        let (first, second) =
            (store.lend(file.key, other).unwrap().unwrap(), store.lend(file.key, one).unwrap().unwrap());
        for inode in 10..30 {
            assert!(fill(&mut store, other, version(inode, 1, BLOCK_BYTES), 0).unwrap());
            store.audit();
        }
        assert!((0..3).all(|index| store.contains(file.key, BlockIndex(index))));
        let stats = store.stats();
        let parts: Vec<u64> = stats.containers.iter().map(|container| container.lent).collect();
        assert_eq!((stats.lent, parts), (3 * BLOCK_BYTES, vec![3 * BLOCK_BYTES / 2; 2]));
        // At most half is lent.
        let large = version(2, 1, 2 * BLOCK_BYTES);
        (0..2).for_each(|index| assert!(fill(&mut store, other, large, index).unwrap()));
        assert!(store.lend(large.key, other).unwrap().is_none());
        store.return_loan(first);
        assert_eq!(store.stats().lent, 3 * BLOCK_BYTES);
        store.return_loan(second);
        assert_eq!(store.stats().lent, 0);
        // Now it goes like all else, but as a whole.
        for inode in 30..60 {
            assert!(fill(&mut store, other, version(inode, 1, BLOCK_BYTES), 0).unwrap());
            store.audit();
        }
        assert!((0..3).all(|index| !store.contains(file.key, BlockIndex(index))), "{policy:?}");
    }
}

/// Its memory may be mapped somewhere for ever.
#[test]
fn formerly_lent_files_are_evicted_completely() {
    let (mut store, container) = store(6, PrivateMemory);
    let file = version(1, 1, 3 * BLOCK_BYTES);
    (0..3).for_each(|index| assert!(fill(&mut store, container, file, index).unwrap()));
    let lent = store.lend(file.key, container).unwrap().unwrap();
    store.return_loan(lent);
    for inode in 2.. {
        assert!(fill(&mut store, container, version(inode, 1, BLOCK_BYTES), 0).unwrap());
        store.audit();
        let left = (0..3).filter(|index| store.contains(file.key, BlockIndex(*index))).count();
        assert!(left == 0 || left == 3, "{left} blocks of it are left");
        if left == 0 {
            break;
        }
    }
    assert_eq!(store.stats().evictions, 3);
}

#[test]
fn nothing_stale_is_found() {
    let (mut store, container) = store(8, PrivateMemory);
    let (old, new) = (version(1, 1, BLOCK_BYTES), version(1, 2, BLOCK_BYTES));
    assert!(fill(&mut store, container, old, 0).unwrap());
    assert_eq!(store.read(new.key, BlockIndex(0), container, 0, &mut [0]).unwrap(), None);
    assert!(fill(&mut store, container, new, 0).unwrap());
    store.invalidate_version(old.key);
    assert!(!store.contains(old.key, BlockIndex(0)) && store.contains(new.key, BlockIndex(0)));
    store.invalidate(new.key.object);
    assert!(!store.contains(new.key, BlockIndex(0)));
    assert_eq!(store.stats().size, 0);
    // What was being fetched when it was invalidated does not come in.
    let late = store.begin(new, BlockIndex(0)).unwrap();
    let other = store.begin(old, BlockIndex(0)).unwrap();
    store.invalidate_version(new.key);
    assert!(!store.insert(late, container, &vec![2; BLOCK]).unwrap());
    assert!(store.insert(other, container, &vec![1; BLOCK]).unwrap());
    // What is lent is found no more, and goes when it comes back.
    let lent = store.lend(old.key, container).unwrap().unwrap();
    store.invalidate(old.key.object);
    assert!(!store.contains(old.key, BlockIndex(0)) && store.lent_file(&lent).is_some());
    assert_eq!(store.stats().size, BLOCK_BYTES);
    assert!(fill(&mut store, container, old, 0).unwrap(), "a new copy beside it");
    store.return_loan(lent);
    assert_eq!(store.stats().size, BLOCK_BYTES);
    store.audit();
}

#[test]
fn fetches_are_bounded() {
    let (mut store, container) = store(1, PrivateMemory);
    let file = version(1, 1, BLOCK_BYTES);
    let mut fills: Vec<Fill> = (0..FILLS_MAX).map(|_| store.begin(file, BlockIndex(0)).unwrap()).collect();
    assert!(store.begin(file, BlockIndex(0)).is_none());
    store.abandon(fills.pop().unwrap());
    assert_eq!(store.insert(fills.pop().unwrap(), container, &[1]), Err(Error::Length));
    assert!((0..2).all(|_| store.begin(file, BlockIndex(0)).is_some()));
}

#[test]
fn files_are_bounded() {
    let config = Config { capacity: 1 << 30, files: 3, policy: S3Fifo::queue };
    let mut store = Store::new(config, PrivateMemory);
    let container = store.join(1).unwrap();
    for inode in 0..10 {
        assert!(fill(&mut store, container, version(inode, 1, 10), 0).unwrap());
        store.audit();
    }
    assert_eq!(store.stats().files, 3);
}

#[test]
fn sizes_must_agree() {
    let (mut store, container) = store(4, PrivateMemory);
    assert!(fill(&mut store, container, version(1, 1, 2 * BLOCK_BYTES), 0).unwrap());
    assert_eq!(fill(&mut store, container, version(1, 1, 3 * BLOCK_BYTES), 1), Err(Error::Length));
    store.audit();
}

/// Fails when it is told to, and can spoil what it holds.
#[derive(Default)]
struct Bad {
    writes: Cell<bool>,
    releases: Cell<bool>,
    reads_other: Cell<bool>,
    seals: Cell<bool>,
}

impl Memory for &Bad {
    type File = <PrivateMemory as Memory>::File;

    fn create(&self, version: Version) -> std::result::Result<Self::File, Errno> {
        PrivateMemory.create(version)
    }

    fn write(&self, file: &Self::File, data: &[u8], offset: u64) -> std::result::Result<(), Errno> {
        if self.writes.get() { Err(Errno::NOMEM) } else { PrivateMemory.write(file, data, offset) }
    }

    fn read(&self, file: &Self::File, buf: &mut [u8], offset: u64) -> std::result::Result<(), Errno> {
        PrivateMemory.read(file, buf, offset)?;
        if let Some(byte) = buf.first_mut().filter(|_| self.reads_other.get()) {
            *byte ^= 1;
        }
        Ok(())
    }

    fn release(&self, file: &Self::File, offset: u64, bytes: u64) -> std::result::Result<(), Errno> {
        if self.releases.get() { Err(Errno::NOMEM) } else { PrivateMemory.release(file, offset, bytes) }
    }

    fn seal(&self, file: &Self::File) -> std::result::Result<(), Errno> {
        if self.seals.get() { Err(Errno::BUSY) } else { PrivateMemory.seal(file) }
    }
}

#[test]
fn a_failed_allocation_leaves_the_store_unchanged() {
    let bad = Bad::default();
    let (mut store, container) = store(2, &bad);
    let file = version(1, 1, 3 * BLOCK_BYTES);
    bad.writes.set(true);
    assert_eq!(fill(&mut store, container, file, 0), Err(Error::Memory(Errno::NOMEM)));
    assert_eq!((store.stats().files, store.stats().size), (0, 0));
    bad.writes.set(false);
    (0..2).for_each(|index| assert!(fill(&mut store, container, file, index).unwrap()));
    bad.releases.set(true);
    assert_eq!(fill(&mut store, container, file, 2), Err(Error::Memory(Errno::NOMEM)));
    assert!((0..2).all(|index| store.contains(file.key, BlockIndex(index))));
    store.audit();
    bad.releases.set(false);
    assert!(fill(&mut store, container, file, 2).unwrap());
    store.audit();
    let small = version(2, 1, 10);
    assert!(fill(&mut store, container, small, 0).unwrap());
    bad.seals.set(true);
    assert!(matches!(store.lend(small.key, container), Err(Error::Memory(Errno::BUSY))));
    assert_eq!(store.stats().lent, 0);
    store.audit();
}

#[test]
#[cfg(debug_assertions)]
fn corrupt_blocks_are_detected_and_dropped() {
    let bad = Bad::default();
    let (mut store, container) = store(2, &bad);
    let file = version(1, 1, BLOCK_BYTES);
    assert!(fill(&mut store, container, file, 0).unwrap());
    bad.reads_other.set(true);
    assert_eq!(store.read(file.key, BlockIndex(0), container, 9, &mut [0]), Err(Error::Damaged));
    bad.reads_other.set(false);
    assert_eq!(store.read(file.key, BlockIndex(0), container, 9, &mut [0]), Ok(None));
    store.audit();
}

#[test]
fn shrinking_evicts_by_weight_and_loans_on_return() {
    for policy in Kind::ALL {
        let mut store = Store::new(
            Config { capacity: 40 * BLOCK_BYTES, files: 100, policy: policy.policy() },
            PrivateMemory,
        );
        let (one, other) = (store.join(100).unwrap(), store.join(300).unwrap());
        let lent = version(1, 1, 4 * BLOCK_BYTES);
        (0..4).for_each(|index| assert!(fill(&mut store, one, lent, index).unwrap()));
        let loan = store.lend(lent.key, one).unwrap().unwrap();
        for index in 0..16 {
            assert!(fill(&mut store, one, version(2, 1, 16 * BLOCK_BYTES), index).unwrap());
            assert!(fill(&mut store, other, version(3, 1, 16 * BLOCK_BYTES), index).unwrap());
        }
        let held = |store: &Store<PrivateMemory>| {
            let stats = store.stats();
            stats.containers.iter().map(|one| one.charge / BLOCK_BYTES).collect::<Vec<_>>()
        };
        assert_eq!(held(&store), [20, 16]);
        // In pieces, until there is nothing more to do.
        assert_eq!(store.limit(16 * BLOCK_BYTES, 3), Ok(false));
        assert_eq!(store.limit(16 * BLOCK_BYTES, 100), Ok(true));
        store.audit();
        assert_eq!((held(&store), store.stats().capacity), (vec![4, 12], 16 * BLOCK_BYTES));
        // What is lent stays, and is still the cache's.
        assert_eq!(store.limit(0, 100), Ok(true));
        store.audit();
        assert_eq!(held(&store), [4, 0]);
        assert!(!fill(&mut store, other, version(5, 1, 10), 0).unwrap(), "there is no room");
        store.return_loan(loan);
        store.audit();
        assert_eq!(store.stats().size, 0);
        // And once there is memory again, all is as before.
        assert_eq!(store.limit(u64::MAX, 0), Ok(true));
        assert!(fill(&mut store, other, version(5, 1, 10), 0).unwrap());
        assert_eq!(store.stats().capacity, 40 * BLOCK_BYTES);
    }
}

/// Memory with a file in it, as a predecessor has left it.
fn left(version: Version) -> PlainFile {
    let file = PrivateMemory.create(version).unwrap();
    PrivateMemory.write(&file, &vec![version.key.version as u8; version.size as usize], 0).unwrap();
    file
}

#[test]
fn adopted_blocks_are_ownerless() {
    let (mut store, container) = store(4, PrivateMemory);
    let (old, new) = (version(1, 7, 3 * BLOCK_BYTES), version(2, 8, 3 * BLOCK_BYTES));
    let all: Vec<BlockIndex> = (0..3).map(BlockIndex).collect();
    // Of what was lent all is there.
    assert!(store.adopt(old, left(old), &all, true).unwrap());
    assert!(!store.adopt(old, left(old), &all, true).unwrap(), "it is there already");
    assert!(!store.adopt(new, left(new), &all, false).unwrap(), "there is no room for it");
    assert!(!store.adopt(new, left(new), &[], false).unwrap(), "nothing of it is there");
    assert!(store.adopt(new, left(new), &all[1..2], false).unwrap());
    let stats = store.stats();
    assert_eq!((stats.size, stats.ownerless, stats.blocks), (4 * BLOCK_BYTES, 4 * BLOCK_BYTES, 4));
    store.audit();
    // Whoever uses it pays for it.
    let mut buf = [0; 10];
    assert_eq!(store.read(new.key, BlockIndex(1), container, 5, &mut buf), Ok(Some(10)));
    assert_eq!(buf, [8; 10]);
    assert_eq!(store.stats().ownerless, 3 * BLOCK_BYTES);
    // What comes in takes the place of what is nobody's, and all of that, for it was lent once.
    assert!(fill(&mut store, container, new, 0).unwrap());
    let stats = store.stats();
    assert_eq!((stats.ownerless, stats.blocks, stats.containers[0].charge), (0, 2, 2 * BLOCK_BYTES));
    store.audit();
}

#[test]
fn the_loan_limit_is_shared_by_weight() {
    let mut store =
        Store::new(Config { capacity: 144 * BLOCK_BYTES, files: 1000, policy: S3Fifo::queue }, PrivateMemory);
    // Files of one block, as long as they are lent: how many.
    let mut inodes = 1..;
    let mut borrow = |store: &mut Store<PrivateMemory>, container| {
        let mut loans = Vec::new();
        for inode in inodes.by_ref() {
            let file = version(inode, 1, BLOCK_BYTES);
            assert!(fill(store, container, file, 0).unwrap());
            let Some(loan) = store.lend(file.key, container).unwrap() else { break };
            loans.push(loan);
            store.audit();
        }
        loans
    };
    // Half of the cache is lent to who is alone.
    let one = store.join(100).unwrap();
    let alone = borrow(&mut store, one);
    assert_eq!(alone.len(), 72);
    // Who comes then has nothing of it until it comes back, and then always something.
    let two = store.join(100).unwrap();
    assert_eq!(borrow(&mut store, two).len(), 0);
    alone.into_iter().for_each(|loan| store.return_loan(loan));
    let first = borrow(&mut store, one);
    let second = borrow(&mut store, two);
    let again = borrow(&mut store, one);
    assert_eq!((first.len(), second.len(), again.len()), (36, 18, 0));
    // What a container leaves counts for nobody, and is still lent.
    store.leave(one).unwrap();
    store.audit();
    assert_eq!(store.stats().lent, 54 * BLOCK_BYTES);
    first.into_iter().chain(second).for_each(|loan| store.return_loan(loan));
    store.audit();
    assert_eq!(store.stats().lent, 0);
    // Half of what is free with half the mean weight, one and a half times as much with one and a half times that.
    let heavy = store.join(300).unwrap();
    assert_eq!(borrow(&mut store, two).len(), 24);
    assert_eq!(borrow(&mut store, heavy).len(), 29);
}

fn behaves(memory: &impl Memory) {
    let file = memory.create(version(1, 1, 3 * PAGE_BYTES)).unwrap();
    memory.write(&file, b"one", PAGE_BYTES - 1).unwrap();
    let mut buf = [1; 5];
    memory.read(&file, &mut buf, PAGE_BYTES - 2).unwrap();
    assert_eq!(&buf, b"\0one\0");
    memory.release(&file, PAGE_BYTES, PAGE_BYTES).unwrap();
    memory.read(&file, &mut buf, PAGE_BYTES - 2).unwrap();
    assert_eq!(&buf, b"\0o\0\0\0");
    assert_eq!(memory.read(&file, &mut buf, 3 * PAGE_BYTES - 4), Err(Errno::IO));
    memory.seal(&file).unwrap();
    assert_eq!(memory.write(&file, b"two", 0), Err(Errno::PERM));
    assert_eq!(memory.release(&file, 0, PAGE_BYTES), Err(Errno::PERM));
    memory.read(&file, &mut buf, PAGE_BYTES - 2).unwrap();
    assert_eq!(&buf, b"\0o\0\0\0");
}

#[test]
fn both_kinds_of_memory() {
    behaves(&PrivateMemory);
    behaves(&MemFd);
}
