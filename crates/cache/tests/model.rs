//! A store against one that is as simple as can be: lists, searched from the beginning, and sums made anew each time.
//! With the least recently used going first, both must hold the same after every step.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "support/policies.rs"]
mod policies;
#[path = "support/private_memory.rs"]
mod private_memory;

use policies::Kind;
use private_memory::PrivateMemory;
use proptest::prelude::*;
use std::collections::BTreeMap;
use vellum_cache::*;

const CONTAINERS: usize = 4;
const FILES: u64 = 6;
const CAPACITY: u64 = 7 * BLOCK_BYTES;

#[derive(Clone, Debug)]
enum Step {
    /// Read, and fetched if it is not there.
    Use {
        container: usize,
        file: u64,
        block: u64,
    },
    /// Read or fetched, with an invalidation meanwhile.
    Late {
        container: usize,
        file: u64,
        block: u64,
        all: bool,
    },
    Lend {
        container: usize,
        file: u64,
    },
    GiveBack(usize),
    Invalidate(u64),
    /// The storage has other contents from now on.
    Change(u64),
    InvalidateVersion {
        file: u64,
        old: bool,
    },
    Weight(usize, u32),
    /// Another one comes in its place.
    Leave(usize),
    Tick(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let (container, file, block) = (0..CONTAINERS, 0..FILES, 0..3_u64);
    prop_oneof![
        30 => (container.clone(), file.clone(), block.clone())
            .prop_map(|(container, file, block)| Step::Use { container, file, block }),
        2 => (container.clone(), file.clone(), block, any::<bool>())
            .prop_map(|(container, file, block, all)| Step::Late { container, file, block, all }),
        5 => (container.clone(), file.clone()).prop_map(|(container, file)| Step::Lend { container, file }),
        4 => any::<prop::sample::Index>().prop_map(|at| Step::GiveBack(at.index(64))),
        1 => file.clone().prop_map(Step::Invalidate),
        2 => file.clone().prop_map(Step::Change),
        1 => (file, any::<bool>()).prop_map(|(file, old)| Step::InvalidateVersion { file, old }),
        2 => (container.clone(), 1..9_u32).prop_map(|(container, weight)| Step::Weight(container, weight)),
        1 => container.prop_map(Step::Leave),
        2 => (1..8_u32).prop_map(Step::Tick),
    ]
}

/// One copy of a file; others with its key may be there that were invalidated while they were lent.
type Copy = usize;

#[derive(Clone, Debug)]
struct Cached {
    copy: Copy,
    block: u64,
    bytes: u64,
    users: Vec<usize>,
}

#[derive(Clone, Debug)]
struct File {
    version: Version,
    lent: usize,
    /// Who was lent it first.
    borrower: usize,
    sealed: bool,
    doomed: bool,
    waiting: Vec<(usize, u64)>,
}

/// Container 0 is nobody; the others are in order.
#[derive(Default)]
struct Model {
    files: BTreeMap<Copy, File>,
    next: Copy,
    cached: Vec<Cached>,
    /// The oldest first.
    queues: [Vec<(Copy, u64)>; CONTAINERS + 1],
    weights: [u32; CONTAINERS + 1],
    quiet: [u32; CONTAINERS + 1],
}

impl Model {
    fn size(&self) -> u64 {
        self.cached.iter().map(|cached| cached.bytes).sum()
    }

    fn charge(&self, container: usize) -> u64 {
        let part = |cached: &Cached| {
            let at = cached.users.iter().position(|user| *user == container)? as u64;
            let users = cached.users.len() as u64;
            Some(cached.bytes / users + u64::from(at < cached.bytes % users))
        };
        self.cached.iter().filter_map(part).sum()
    }

    fn copy(&self, key: Key) -> Option<Copy> {
        self.files.iter().find(|(_, file)| file.version.key == key && !file.doomed).map(|(copy, _)| *copy)
    }

    fn cached(&mut self, copy: Copy, block: u64) -> Option<&mut Cached> {
        self.cached.iter_mut().find(|cached| (cached.copy, cached.block) == (copy, block))
    }

    fn has(&self, key: Key, block: u64) -> bool {
        let copy = self.copy(key);
        self.cached.iter().any(|cached| Some(cached.copy) == copy && cached.block == block)
    }

    fn uses(&mut self, container: usize, copy: Copy, block: u64) {
        let Some(cached) = self.cached(copy, block) else { return };
        if cached.users.contains(&container) {
            let queue = &mut self.queues[container];
            if let Some(at) = queue.iter().position(|entry| *entry == (copy, block)) {
                let entry = queue.remove(at);
                queue.push(entry);
            }
            return;
        }
        cached.users.retain(|user| *user != 0);
        cached.users.push(container);
        cached.users.sort_unstable();
        self.queues[0].retain(|entry| *entry != (copy, block));
        self.queues[container].push((copy, block));
    }

    fn counts(&self, container: usize) -> u64 {
        let over = self.quiet[container].saturating_sub(IDLE_TICKS).min(LENT_SHIFT_MAX);
        u64::from(self.weights[container]) << (LENT_SHIFT_MAX - over)
    }

    fn evict_one(&mut self, asking: usize, bytes: u64) -> bool {
        loop {
            let mut most: Option<usize> = None;
            let holds =
                |container: usize| self.charge(container) + if container == asking { bytes } else { 0 };
            for container in (0..=CONTAINERS).filter(|container| !self.queues[*container].is_empty()) {
                if self.charge(container) > 0
                    && most.is_none_or(|most| {
                        holds(container) * self.counts(most) > holds(most) * self.counts(container)
                    })
                {
                    most = Some(container);
                }
            }
            let Some(most) = most else { return false };
            let (copy, block) = self.queues[most].remove(0);
            let file = self.files.get_mut(&copy).unwrap();
            if file.lent > 0 {
                file.waiting.push((most, block));
                continue;
            }
            let cached = self.cached(copy, block).unwrap();
            cached.users.retain(|user| *user != most);
            let last = cached.users.is_empty();
            if last && self.files[&copy].sealed {
                self.free(copy);
            } else if last {
                self.cached.retain(|cached| (cached.copy, cached.block) != (copy, block));
                if !self.cached.iter().any(|cached| cached.copy == copy) {
                    self.files.remove(&copy);
                }
            }
            return true;
        }
    }

    fn insert(&mut self, container: usize, version: Version, block: u64) -> bool {
        let len = version.block_len(BlockIndex(block));
        let bytes = len.next_multiple_of(PAGE_BYTES);
        while self.size() + bytes > CAPACITY {
            if !self.evict_one(container, bytes) {
                return false;
            }
        }
        let copy = self.copy(version.key).unwrap_or_else(|| {
            self.next += 1;
            self.files.insert(
                self.next,
                File { version, lent: 0, borrower: 0, sealed: false, doomed: false, waiting: vec![] },
            );
            self.next
        });
        self.cached.push(Cached { copy, block, bytes, users: vec![container] });
        self.queues[container].push((copy, block));
        true
    }

    fn lend(&mut self, container: usize, version: Version) -> Option<Copy> {
        let copy = self.copy(version.key)?;
        let blocks = self.cached.iter().filter(|cached| cached.copy == copy).count() as u64;
        if blocks == version.blocks() {
            self.quiet[container] = 0;
        }
        let bytes = |is: &dyn Fn(&Cached) -> bool| {
            self.cached.iter().filter(|cached| is(cached)).map(|cached| cached.bytes).sum::<u64>()
        };
        let own = bytes(&|cached| cached.copy == copy);
        let lent = bytes(&|cached| self.files[&cached.copy].lent > 0);
        let borrowed = bytes(&|cached| {
            self.files[&cached.copy].lent > 0 && self.files[&cached.copy].borrower == container
        });
        // As much as is free, times its weight in relation to the mean.
        let free = CAPACITY / LENT_MAX - lent;
        let weights: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let threshold = free * u64::from(self.weights[container]) * CONTAINERS as u64 / weights;
        let is_too_much = own > free || borrowed + own > threshold;
        if blocks < version.blocks() || self.files[&copy].lent == 0 && is_too_much {
            return None;
        }
        let file = self.files.get_mut(&copy)?;
        if file.lent == 0 {
            file.borrower = container;
        }
        (file.lent, file.sealed) = (file.lent + 1, true);
        (0..blocks).for_each(|block| self.uses(container, copy, block));
        Some(copy)
    }

    /// What a container alone has used is nobody's from now on.
    fn leave(&mut self, container: usize) {
        let borrowed = self.files.values_mut().filter(|file| file.lent > 0 && file.borrower == container);
        borrowed.for_each(|file| file.borrower = 0);
        let waiting = |(copy, file): (&Copy, &File)| {
            let own = file.waiting.iter().filter(|(of, _)| *of == container);
            own.map(|(_, block)| (*copy, *block, true)).collect::<Vec<_>>()
        };
        let waiting: Vec<_> = self.files.iter().flat_map(waiting).collect();
        let queued = std::mem::take(&mut self.queues[container]);
        let queued = queued.into_iter().map(|(copy, block)| (copy, block, false));
        for (copy, block, waits) in queued.chain(waiting) {
            let Some(cached) = self.cached(copy, block) else { continue };
            let users = cached.users.len();
            cached.users.retain(|user| *user != container);
            if users == cached.users.len() || !cached.users.is_empty() {
                continue;
            }
            cached.users.push(0);
            if waits {
                let file = self.files.get_mut(&copy).unwrap();
                let of = file.waiting.iter_mut().find(|waiting| **waiting == (container, block));
                of.unwrap().0 = 0;
            } else {
                self.queues[0].push((copy, block));
            }
        }
    }

    fn return_loan(&mut self, copy: Copy) {
        let file = self.files.get_mut(&copy).unwrap();
        file.lent -= 1;
        if file.lent > 0 {
            return;
        }
        let waiting = std::mem::take(&mut file.waiting);
        if file.doomed {
            return self.free(copy);
        }
        for (container, block) in waiting {
            let uses = self.cached(copy, block).is_some_and(|cached| cached.users.contains(&container));
            if uses && !self.queues[container].contains(&(copy, block)) {
                self.queues[container].push((copy, block));
            }
        }
    }

    fn free(&mut self, copy: Copy) {
        self.files.remove(&copy);
        self.cached.retain(|cached| cached.copy != copy);
        self.queues.iter_mut().for_each(|queue| queue.retain(|entry| entry.0 != copy));
    }

    fn end(&mut self, goes: impl Fn(Key) -> bool) {
        for (copy, file) in self.files.clone() {
            if goes(file.version.key) && !file.doomed {
                self.files.get_mut(&copy).unwrap().doomed = true;
                if file.lent == 0 {
                    self.free(copy);
                }
            }
        }
    }
}

/// What the storage has in a block: other data for each block and version.
fn data(version: Version, block: u64) -> Vec<u8> {
    let key = version.key;
    let byte = key.object.inode * 40 + key.version * 7 + block;
    vec![byte as u8; version.block_len(BlockIndex(block)) as usize]
}

struct Both {
    store: Store<PrivateMemory>,
    containers: Vec<Container>,
    model: Model,
    versions: [u64; FILES as usize],
    lent: Vec<(FileLoan, Copy, Vec<u8>)>,
    exact: bool,
}

impl Both {
    fn new(policy: Kind) -> Self {
        let mut store = Store::new(
            Config { capacity: CAPACITY, files: usize::MAX, policy: policy.policy() },
            PrivateMemory,
        );
        let containers = (0..CONTAINERS).map(|_| store.join(1).unwrap()).collect();
        let model = Model { weights: [0, 1, 1, 1, 1], ..Model::default() };
        Self {
            store,
            containers,
            model,
            versions: [0; FILES as usize],
            lent: vec![],
            exact: policy == Kind::Lru,
        }
    }

    /// Files have 1 to 3 blocks, the last of which is short in some.
    fn version(&self, file: u64) -> Version {
        let key =
            Key { object: Object { filesystem: 0, inode: file }, version: self.versions[file as usize] };
        Version { key, size: (file % 3 + 1) * BLOCK_BYTES - (file % 2) * 20_000 }
    }

    fn uses(&mut self, container: usize, file: u64, block: u64, late: Option<bool>) {
        let (version, index) = (self.version(file), BlockIndex(block));
        let Some(fill) = self.store.begin(version, index) else { return };
        let right = data(version, block);
        let mut buf = vec![0; right.len()];
        let len = self.store.read(version.key, index, self.containers[container], 0, &mut buf).unwrap();
        self.model.quiet[container + 1] = 0;
        if let Some(copy) = self.model.copy(version.key).filter(|_| len.is_some()) {
            self.model.uses(container + 1, copy, block);
        }
        if let Some(all) = late {
            match all {
                true => self.store.invalidate(version.key.object),
                false => self.store.invalidate_version(version.key),
            }
            self.model.end(|key| if all { key.object == version.key.object } else { key == version.key });
        }
        match len {
            Some(len) => {
                assert_eq!((len, &buf), (right.len(), &right), "what is read is what the storage has");
                self.store.abandon(fill);
            }
            None => {
                let taken = self.store.insert(fill, self.containers[container], &right).unwrap();
                if late.is_some() {
                    assert!(!taken, "what was invalidated does not come in");
                } else if self.exact {
                    assert_eq!(taken, self.model.insert(container + 1, version, block));
                }
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Use { container, file, block } => self.uses(container, file, block, None),
            Step::Late { container, file, block, all } => self.uses(container, file, block, Some(all)),
            Step::Lend { container, file } => {
                let version = self.version(file);
                let lent = self.store.lend(version.key, self.containers[container]).unwrap();
                let expected = self.model.lend(container + 1, version);
                if self.exact {
                    assert_eq!(lent.is_some(), expected.is_some());
                }
                let whole = (0..version.blocks()).flat_map(|block| data(version, block)).collect();
                self.lent.extend(lent.map(|lent| (lent, expected.unwrap_or_default(), whole)));
            }
            Step::GiveBack(at) => {
                if !self.lent.is_empty() {
                    let (lent, copy, _) = self.lent.remove(at % self.lent.len());
                    self.store.return_loan(lent);
                    if self.exact {
                        self.model.return_loan(copy);
                    }
                }
            }
            Step::Invalidate(file) => {
                let object = self.version(file).key.object;
                self.store.invalidate(object);
                self.model.end(|key| key.object == object);
            }
            Step::Change(file) => self.versions[file as usize] += 1,
            Step::InvalidateVersion { file, old } => {
                let mut gone = self.version(file).key;
                gone.version = gone.version.saturating_sub(u64::from(old));
                self.store.invalidate_version(gone);
                self.model.end(|key| key == gone);
            }
            Step::Weight(container, weight) => {
                self.store.set_weight(self.containers[container], weight).unwrap();
                self.model.weights[container + 1] = weight;
            }
            Step::Leave(container) => self.leave(container),
            Step::Tick(ticks) => {
                (0..ticks).for_each(|_| self.store.tick());
                self.model.quiet.iter_mut().for_each(|quiet| *quiet += ticks);
            }
        }
    }

    fn leave(&mut self, container: usize) {
        self.store.leave(self.containers[container]).unwrap();
        self.containers[container] = self.store.join(3).unwrap();
        let place = container + 1;
        (self.model.weights[place], self.model.quiet[place]) = (3, 0);
        self.model.leave(place);
    }

    fn check(&self) {
        self.store.audit();
        for (lent, _, whole) in &self.lent {
            assert_eq!(self.store.lent_file(lent).unwrap().bytes(), *whole, "what is lent stays as it is");
        }
        if !self.exact {
            return;
        }
        let stats = self.store.stats();
        assert_eq!(stats.size, self.model.size());
        for (container, at) in self.containers.iter().zip(1..) {
            let charge =
                stats.containers.iter().find(|stats| stats.container == *container).map(|stats| stats.charge);
            assert_eq!(charge, Some(self.model.charge(at)), "container {at}");
        }
        for file in 0..FILES {
            let version = self.version(file);
            for block in 0..3 {
                let has = self.store.contains(version.key, BlockIndex(block));
                assert_eq!(has, self.model.has(version.key, block), "block {block} of {file}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_a_simple_model(steps in prop::collection::vec(step(), 1..200)) {
        let mut both = Both::new(Kind::Lru);
        for step in steps {
            both.step(step);
            both.check();
        }
    }

    #[test]
    fn bounds_sums_and_data_with_the_other_policies(
        policy in prop::sample::select(Kind::ALL[1..].to_vec()),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut both = Both::new(policy);
        for step in steps {
            both.step(step);
            both.check();
        }
    }
}
