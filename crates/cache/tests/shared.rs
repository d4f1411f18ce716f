//! A cache for many threads: what comes in, what hits cost, and who waits for whom.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![cfg(not(shuttle))]

#[path = "support/private_memory.rs"]
mod private_memory;

use private_memory::{PlainFile, PrivateMemory};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use vellum_cache::*;

const BLOCK: usize = BLOCK_BYTES as usize;

fn cache<M: Memory>(blocks: u64, memory: M) -> Arc<Shared<M>> {
    Shared::new(Config { capacity: blocks * BLOCK_BYTES, files: 100, policy: S3Fifo::queue }, memory)
}

/// A file of a storage that counts how it is read, and can fail, change and be slow.
struct Disk {
    inode: u64,
    data: Mutex<(u64, Vec<u8>)>,
    reads: Mutex<Vec<(u64, usize)>>,
    fails: AtomicBool,
    asked: AtomicU64,
    /// The first read takes its time.
    slow: Mutex<Option<Arc<[Barrier; 2]>>>,
    /// What somebody writes while it is read.
    meanwhile: Mutex<Option<Vec<u8>>>,
}

impl Disk {
    fn new(inode: u64, len: usize) -> Self {
        let data = (0..len).map(|at| (at % 251) as u8 ^ inode as u8).collect();
        Self {
            inode,
            data: Mutex::new((1, data)),
            reads: Mutex::default(),
            fails: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            slow: Mutex::default(),
            meanwhile: Mutex::default(),
        }
    }

    fn write(&self, data: Vec<u8>) {
        let mut now = self.data.lock().unwrap();
        *now = (now.0 + 1, data);
    }

    fn now(&self) -> Version {
        let data = self.data.lock().unwrap();
        let object = Object { filesystem: 1, inode: self.inode };
        Version { key: Key { object, version: data.0 }, size: data.1.len() as u64 }
    }

    fn reads(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }

    fn all(&self) -> Vec<u8> {
        self.data.lock().unwrap().1.clone()
    }
}

impl Source for Disk {
    type Error = Errno;

    fn version(&self) -> std::result::Result<Version, Errno> {
        self.asked.fetch_add(1, SeqCst);
        Ok(self.now())
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> std::result::Result<usize, Errno> {
        self.reads.lock().unwrap().push((offset / BLOCK_BYTES, buf.len()));
        let slow = self.slow.lock().unwrap().take();
        for barrier in slow.iter().flat_map(|barriers| barriers.iter()) {
            barrier.wait();
        }
        if self.fails.load(SeqCst) {
            return Err(Errno::IO);
        }
        let count = {
            let data = &self.data.lock().unwrap().1;
            let rest = data.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(buf.len());
            buf[..count].copy_from_slice(&rest[..count]);
            count
        };
        if let Some(data) = self.meanwhile.lock().unwrap().take() {
            self.write(data);
        }
        Ok(count)
    }
}

fn read<M: Memory>(opened: &FileReader<M>, disk: &Disk, offset: usize, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let count = opened.read(disk, &mut buf, offset as u64).unwrap();
    buf.truncate(count);
    buf
}

#[test]
fn fetched_blocks_are_shared_by_readers() {
    let cache = cache(16, MemFd);
    let disk = Disk::new(1, 3 * BLOCK + 100);
    let (one, other) = (cache.join(100).unwrap(), cache.join(100).unwrap());
    let first = one.open(disk.now()).unwrap();
    let all = disk.all();
    for (offset, len) in
        [(0, 10), (BLOCK - 5, 10), (3 * BLOCK - 1, 200), (0, all.len() + 10), (all.len() - 1, 5)]
    {
        let end = (offset + len).min(all.len());
        assert_eq!(read(&first, &disk, offset, len), all[offset..end]);
    }
    assert!(!disk.reads().is_empty());
    let second = other.open(disk.now()).unwrap();
    assert_eq!(read(&second, &disk, 0, all.len()), all);
    assert!(disk.reads().is_empty());
    // Only the storage knows what comes after the end.
    assert!(read(&second, &disk, all.len(), 5).is_empty());
    assert_eq!(disk.reads().len(), 1);
    let stats = cache.stats();
    assert_eq!((stats.blocks, stats.containers[1].hits, stats.containers[1].misses), (4, 4, 0));
    assert_eq!(stats.containers[0].charge, stats.containers[1].charge);
    cache.audit();
    drop((first, one));
    assert_eq!(cache.stats().containers.len(), 1);
}

#[test]
fn read_ahead_grows_for_sequential_reads_only() {
    let cache = cache(1000, PrivateMemory);
    let member = cache.join(1).unwrap();
    let disk = Disk::new(1, 100 * BLOCK);
    let (opened, all) = (member.open(disk.now()).unwrap(), disk.all());
    for (at, page) in all.chunks(4096).enumerate() {
        assert_eq!(read(&opened, &disk, at * 4096, 4096), page);
    }
    let fetched: Vec<usize> = disk.reads().iter().map(|(_, len)| len / BLOCK).collect();
    assert_eq!(fetched, [1, 2, 4, 8, 16, 16, 16, 16, 16, 5]);
    let other = Disk::new(2, 100 * BLOCK);
    let opened = member.open(other.now()).unwrap();
    for block in [50, 3, 90, 17, 64, 5] {
        read(&opened, &other, block * BLOCK + 777, 100);
    }
    assert_eq!(other.reads(), [50, 3, 90, 17, 64, 5].map(|block| (block, BLOCK)));
}

#[test]
fn the_version_is_checked_after_each_fetch() {
    let cache = cache(16, PrivateMemory);
    let member = cache.join(1).unwrap();
    let disk = Disk::new(1, 2 * BLOCK);
    let old = disk.now();
    let opened = member.open(old).unwrap();
    *disk.meanwhile.lock().unwrap() = Some(vec![9; 2 * BLOCK]);
    // What was fetched is good for this reader, but comes in under no version.
    read(&opened, &disk, 0, BLOCK);
    assert_eq!(cache.stats().blocks, 0);
    assert_eq!(read(&opened, &disk, 0, 100), [9; 100]);
    assert_eq!(read(&opened, &disk, BLOCK, 100), [9; 100]);
    assert_eq!(cache.stats().blocks, 0, "it reads the storage from then on");
    let new = member.open(disk.now()).unwrap();
    assert_eq!(read(&new, &disk, 0, 100), [9; 100]);
    assert_eq!(cache.stats().blocks, 1);
    // It has become shorter, and longer.
    for len in [10, 3 * BLOCK] {
        disk.write(vec![1; 2 * BLOCK]);
        let before = member.open(disk.now()).unwrap();
        disk.write(vec![2; len]);
        assert_eq!(
            read(&before, &disk, BLOCK / 2, 4 * BLOCK),
            disk.all().get(BLOCK / 2..).unwrap_or_default()
        );
    }
    cache.audit();
}

#[test]
fn an_invalidated_block_is_refetched_through_open_files() {
    let cache = cache(16, MemFd);
    let member = cache.join(1).unwrap();
    let disk = Disk::new(1, BLOCK);
    let opened = member.open(disk.now()).unwrap();
    read(&opened, &disk, 0, BLOCK);
    disk.write(vec![8; BLOCK]);
    assert_ne!(read(&opened, &disk, 0, 10), [8; 10], "nobody has said so yet");
    cache.invalidate(disk.now().key.object);
    assert_eq!(read(&opened, &disk, 0, 10), [8; 10]);
    // Nor when it is lent.
    let opened = member.open(disk.now()).unwrap();
    read(&opened, &disk, 0, BLOCK);
    let loan = opened.lend().unwrap().unwrap();
    disk.write(vec![7; BLOCK]);
    cache.invalidate(disk.now().key.object);
    assert_eq!(read(&opened, &disk, 0, 10), [7; 10]);
    let mut lent = [0; 10];
    assert_eq!(rustix::io::pread(loan.memory(), &mut lent, 0).unwrap(), 10);
    assert_eq!(lent, [8; 10], "what is lent stays");
    assert!(rustix::io::pwrite(loan.memory(), b"x", 0).is_err());
    assert_eq!(cache.stats().lent, BLOCK_BYTES);
    drop(loan);
    assert_eq!((cache.stats().lent, cache.stats().size), (0, 0));
    cache.audit();
}

#[test]
fn concurrent_misses_of_a_block_share_one_fetch() {
    for fails in [false, true] {
        let cache = cache(16, PrivateMemory);
        let disk = Disk::new(1, BLOCK);
        let barriers = Arc::new([Barrier::new(2), Barrier::new(2)]);
        *disk.slow.lock().unwrap() = Some(Arc::clone(&barriers));
        disk.fails.store(fails, SeqCst);
        let results: Vec<_> = thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let opened = cache.join(1).unwrap().open(disk.now()).unwrap();
                        let mut buf = vec![0; 100];
                        opened.read(&disk, &mut buf, 7).map(|count| buf[..count].to_vec())
                    })
                })
                .collect();
            barriers[0].wait();
            // The others come meanwhile.
            thread::sleep(std::time::Duration::from_millis(50));
            barriers[1].wait();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        let expected = if fails { Err(Errno::IO) } else { Ok(disk.all()[7..107].to_vec()) };
        assert!(results.iter().all(|result| *result == expected), "a fetch that fails wakes all");
        assert_eq!((cache.stats().blocks, disk.reads().len()), if fails { (0, 4) } else { (1, 1) });
        cache.audit();
    }
}

#[test]
fn hits_allocate_nothing() {
    let cache = cache(16, MemFd);
    let member = cache.join(1).unwrap();
    let disk = Disk::new(1, 2 * BLOCK);
    let opened = member.open(disk.now()).unwrap();
    let mut buf = vec![0; 2 * BLOCK];
    // The first use after a fetch is told to the store.
    for _ in 0..2 {
        opened.read(&disk, &mut buf, 0).unwrap();
    }
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert_eq!(opened.read(&disk, &mut buf, 0).unwrap(), 2 * BLOCK);
        }
    });
    assert_eq!(counted.count_total, 0);
    assert_eq!(cache.stats().hits, 203);
}

#[test]
fn hits_keep_a_container_active() {
    let cache = cache(16, PrivateMemory);
    let (works, sleeps) = (cache.join(1).unwrap(), cache.join(1).unwrap());
    let disk = Disk::new(1, BLOCK);
    let files = [&works, &sleeps].map(|member| member.open(disk.now()).unwrap());
    files.iter().for_each(|file| drop(read(file, &disk, 0, 10)));
    for second in 1..20 {
        read(&files[0], &disk, 0, 10);
        cache.time_is(second);
    }
    assert!(!works.stats().unwrap().idle && sleeps.stats().unwrap().idle);
}

/// Memory that takes its time to be written when it is told to, with the store's lock held.
#[derive(Clone)]
struct Slow(Arc<(AtomicBool, [Barrier; 2])>);

impl Memory for Slow {
    type File = PlainFile;

    fn create(&self, version: Version) -> std::result::Result<PlainFile, Errno> {
        PrivateMemory.create(version)
    }

    fn write(&self, file: &PlainFile, data: &[u8], offset: u64) -> std::result::Result<(), Errno> {
        let (is_slow, barriers) = &*self.0;
        if is_slow.load(SeqCst) {
            for barrier in barriers {
                barrier.wait();
            }
        }
        PrivateMemory.write(file, data, offset)
    }

    fn read(&self, file: &PlainFile, buf: &mut [u8], offset: u64) -> std::result::Result<(), Errno> {
        PrivateMemory.read(file, buf, offset)
    }

    fn release(&self, file: &PlainFile, offset: u64, bytes: u64) -> std::result::Result<(), Errno> {
        PrivateMemory.release(file, offset, bytes)
    }

    fn seal(&self, file: &PlainFile) -> std::result::Result<(), Errno> {
        PrivateMemory.seal(file)
    }
}

#[test]
fn a_hit_does_not_wait_for_a_fetch() {
    let memory = Slow(Arc::new((AtomicBool::new(false), [Barrier::new(2), Barrier::new(2)])));
    let cache = cache(16, memory.clone());
    let member = cache.join(1).unwrap();
    let (known, new) = (Disk::new(1, BLOCK), Disk::new(2, BLOCK));
    let opened = member.open(known.now()).unwrap();
    read(&opened, &known, 0, BLOCK);
    let (is_slow, [begun, goes_on]) = &*memory.0;
    is_slow.store(true, SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| read(&member.open(new.now()).unwrap(), &new, 0, 10));
        begun.wait();
        for _ in 0..10 {
            assert_eq!(read(&opened, &known, 5, 10), known.all()[5..15]);
        }
        goes_on.wait();
    });
    assert_eq!(cache.stats().hits, 10);
}

/// Readers, evictions, invalidations and loans at once: whatever is read is what the storage has under that version.
#[test]
fn many_threads() {
    let cache = cache(12, MemFd);
    let disks: Vec<Disk> = (1..9).map(|inode| Disk::new(inode, 3 * BLOCK - 1000)).collect();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (cache, disks) = (&cache, &disks);
            scope.spawn(move || {
                let member = cache.join(thread as u32 + 1).unwrap();
                let mut random = fastrand::Rng::with_seed(thread + 1);
                let mut next = |below: usize| random.usize(..below);
                let mut files: Vec<FileReader<MemFd>> =
                    disks.iter().map(|disk| member.open(disk.now()).unwrap()).collect();
                let mut loans = Vec::new();
                for step in 0..2000 {
                    let file = next(disks.len());
                    let disk = &disks[file];
                    match next(20) {
                        0 => cache.invalidate(disk.now().key.object),
                        1 => files[file] = member.open(disk.now()).unwrap(),
                        2 => loans.extend(files[file].lend().unwrap()),
                        3 => loans.clear(),
                        4 => cache.time_is(step),
                        _ => {
                            let all = disk.all();
                            let offset = next(all.len());
                            let len = (next(100_000) + 1).min(all.len() - offset);
                            assert_eq!(read(&files[file], disk, offset, len), all[offset..offset + len]);
                        }
                    }
                }
            });
        }
    });
    cache.audit();
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.hits > 0, "{stats:?}");
    assert_eq!((stats.lent, stats.containers.len()), (0, 0));
}

#[test]
fn a_block_used_only_by_non_payers_is_kept() {
    const USERS: usize = 2 * PAYERS_MAX;
    let cache = cache(64, MemFd);
    let shared = Disk::new(1, BLOCK);
    let members: Vec<_> = (0..USERS).map(|_| cache.join(100).unwrap()).collect();
    let opened: Vec<_> = members.iter().map(|member| member.open(shared.now()).unwrap()).collect();
    for opened in &opened {
        read(opened, &shared, 0, 1);
    }
    let pays = |member: &Arc<Member<MemFd>>| member.stats().unwrap().charge > 0;
    let (payers, others): (Vec<_>, Vec<_>) = (0..USERS).partition(|user| pays(&members[*user]));
    assert_eq!(payers.len(), PAYERS_MAX);
    shared.reads();
    // One that does not pay goes on reading, while those that do read much else.
    for round in 0..40 {
        for (number, payer) in payers.iter().enumerate() {
            let own = Disk::new(100 + (number * 100 + round) as u64, 2 * BLOCK);
            read(&members[*payer].open(own.now()).unwrap(), &own, 0, 2 * BLOCK);
        }
        read(&opened[others[0]], &shared, 0, 1);
        cache.audit();
    }
    assert!(shared.reads().is_empty(), "it was fetched again");
    assert!(pays(&members[others[0]]), "who still uses it pays for it");
}

/// Room that somebody else decides on.
#[derive(Clone)]
struct Decided(Arc<AtomicU64>);

impl Room for Decided {
    fn bytes(&self, _held: u64) -> u64 {
        self.0.load(SeqCst)
    }
}

#[test]
fn a_shrunken_cache_evicts_and_reads_succeed() {
    const MIB: u64 = 1 << 20;
    let room = Decided(Arc::new(AtomicU64::new(8 * MIB)));
    let config = Config { capacity: 64 * MIB, files: 100, policy: S3Fifo::queue };
    let cache = Shared::with(config, MemFd, DEPTH, Some(Box::new(room.clone())));
    let disk = Disk::new(1, 16 << 20);
    let member = cache.join(100).unwrap();
    let opened = member.open(disk.now()).unwrap();
    let all = disk.all();
    let size = || {
        assert_eq!(read(&opened, &disk, 0, all.len()), all);
        cache.audit();
        cache.stats().size
    };
    assert_eq!((size(), cache.stats().capacity), (8 * MIB, 8 * MIB));
    // There is less while it is read: the cache itself looks.
    room.0.store(3 * MIB, SeqCst);
    assert_eq!(size(), 3 * MIB);
    room.0.store(u64::MAX, SeqCst);
    // What was fetched before it looked again is missing after the first time.
    assert!(size() > 8 * MIB);
    assert_eq!(size(), 16 * MIB);
    // And while nobody reads.
    room.0.store(MIB, SeqCst);
    cache.look();
    assert_eq!(cache.stats().size, MIB);
    room.0.store(0, SeqCst);
    cache.look();
    assert_eq!((cache.stats().size, size()), (0, 0));
}

/// A storage that says how many read it at once.
struct Crowded {
    inode: u64,
    now: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Source for Crowded {
    type Error = Errno;

    fn version(&self) -> std::result::Result<Version, Errno> {
        let object = Object { filesystem: 3, inode: self.inode };
        Ok(Version { key: Key { object, version: 1 }, size: 50 * BLOCK_BYTES })
    }

    fn read(&self, buf: &mut [u8], _offset: u64) -> std::result::Result<usize, Errno> {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        thread::sleep(std::time::Duration::from_micros(200));
        self.now.fetch_sub(1, SeqCst);
        Ok(buf.len())
    }
}

#[test]
fn concurrent_fetches_stay_within_the_storage_depth() {
    let config = Config { capacity: 64 * BLOCK_BYTES, files: 100, policy: S3Fifo::queue };
    let cache = Shared::with(config, MemFd, 3, None);
    let (now, most) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    thread::scope(|scope| {
        for inode in 0..8 {
            let source = Crowded { inode, now: Arc::clone(&now), most: Arc::clone(&most) };
            let member = cache.join(1 + inode as u32).unwrap();
            scope.spawn(move || {
                let opened = member.open(source.version().unwrap()).unwrap();
                let mut buf = vec![0; BLOCK];
                for index in 0..50 {
                    assert_eq!(opened.read(&source, &mut buf, index * BLOCK_BYTES), Ok(BLOCK));
                }
            });
        }
    });
    assert_eq!((now.load(SeqCst), most.load(SeqCst)), (0, 3));
    cache.audit();
}
