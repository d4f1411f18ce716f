//! The experiments on weights, with blocks for bytes and ticks for seconds: containers of weights 100, 200, 400 and 800 write two
//! units each and read one, with memory for a third of what is written (after the paper on weights in the page cache), and what
//! that paper leaves open: equal weights, a file of several containers, an idle container, one that leaves.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "support/policies.rs"]
mod policies;
#[path = "support/private_memory.rs"]
mod private_memory;

use policies::Kind;
use private_memory::PrivateMemory;
use vellum_cache::*;

/// Blocks of a unit.
const UNIT: u64 = 1500;
/// Every block is a file of its own and a page, so that much can be tried quickly.
const PAGE: [u8; PAGE_BYTES as usize] = [7; PAGE_BYTES as usize];

struct Run {
    store: Store<PrivateMemory>,
    containers: Vec<Container>,
}

impl Run {
    fn new(blocks: u64, weights: &[u32]) -> Self {
        Self::with(Kind::S3Fifo, blocks, weights)
    }

    fn with(policy: Kind, blocks: u64, weights: &[u32]) -> Self {
        let mut store = Store::new(
            Config { capacity: blocks * PAGE_BYTES, files: usize::MAX, policy: policy.policy() },
            PrivateMemory,
        );
        let containers = weights.iter().map(|weight| store.join(*weight).unwrap()).collect();
        Self { store, containers }
    }

    fn version(owner: u32, block: u64) -> Version {
        let object = Object { filesystem: u64::from(owner), inode: block };
        Version { key: Key { object, version: 1 }, size: PAGE_BYTES }
    }

    /// A container reads a block of an owner's, fetching it if it is not there. Whether it was.
    fn read(&mut self, container: usize, owner: u32, block: u64) -> bool {
        let (version, index) = (Self::version(owner, block), BlockIndex(0));
        if self.store.read(version.key, index, self.containers[container], 0, &mut [0; 1]).unwrap().is_some()
        {
            return true;
        }
        let fill = self.store.begin(version, index).unwrap();
        assert!(self.store.insert(fill, self.containers[container], &PAGE).unwrap());
        false
    }

    /// Each reads its own blocks in turn.
    fn all_read(&mut self, blocks: std::ops::Range<u64>) {
        for block in blocks {
            for container in 0..self.containers.len() {
                self.read(container, container as u32, block);
            }
        }
    }

    /// How much each pays for, in blocks.
    fn held(&self) -> Vec<f64> {
        self.store.audit();
        let stats = self.store.stats();
        stats.containers.iter().map(|container| container.charge as f64 / PAGE_BYTES as f64).collect()
    }

    /// Fails where somebody's part of all is off the ideal by more than 1 % of it.
    fn assert_parts(&self, ideal: &[f64]) {
        let held = self.held();
        let (all, of): (f64, f64) = (held.iter().sum(), ideal.iter().sum());
        for (held, ideal) in held.iter().map(|held| held / all).zip(ideal.iter().map(|ideal| ideal / of)) {
            println!("holds {:.3} %, ideal {:.3} %", held * 100.0, ideal * 100.0);
            assert!((held - ideal).abs() <= ideal / 100.0, "{held} is not {ideal}");
        }
    }
}

#[test]
fn four_weights() {
    for policy in Kind::ALL {
        let mut run = Run::with(policy, 8 * UNIT / 3, &[100, 200, 400, 800]);
        run.all_read(0..2 * UNIT);
        run.assert_parts(&[1.0, 2.0, 4.0, 8.0]);
        run.all_read(0..UNIT);
        run.assert_parts(&[1.0, 2.0, 4.0, 8.0]);
    }
}

#[test]
fn equal_weights() {
    let mut run = Run::new(8 * UNIT / 3, &[300; 4]);
    // One is first, and one reads much more than the others.
    for block in 0..2 * UNIT {
        run.read(0, 0, block);
    }
    run.all_read(0..2 * UNIT);
    for block in 0..4 * UNIT {
        run.read(1, 1, block);
        run.read(2, 2, block % UNIT);
    }
    run.assert_parts(&[1.0; 4]);
}

#[test]
fn a_file_of_four_is_paid_in_parts() {
    let mut run = Run::new(4 * UNIT, &[100, 200, 400, 800]);
    let shared = 99;
    for container in 0..4 {
        for block in 0..UNIT {
            assert_eq!(run.read(container, shared, block), container > 0, "one copy");
        }
    }
    assert_eq!(run.store.stats().size, UNIT * PAGE_BYTES);
    run.assert_parts(&[1.0; 4]);
    // Three leave: the last one pays for all.
    for container in [0, 1, 3] {
        run.store.leave(run.containers[container]).unwrap();
    }
    assert_eq!(run.held(), [UNIT as f64]);
}

#[test]
fn a_file_of_very_many_is_paid_by_lot_and_costs_little() {
    const USERS: usize = 256;
    const BLOCKS: u64 = 1000;
    let mut run = Run::new(4 * BLOCKS, &[100; USERS]);
    let shared = 9999;
    let mut of_all = |users: std::ops::Range<usize>| {
        for block in 0..BLOCKS {
            for container in users.clone() {
                run.read(container, shared, block);
            }
        }
    };
    of_all(0..1);
    // The data are there; what is added is what is kept about users.
    let used = allocation_counter::measure(|| of_all(1..USERS));
    let each = used.bytes_current / BLOCKS as i64;
    println!("{each} bytes are kept of a block with {USERS} users");
    assert!(each < 1024, "{each} bytes a block");
    let held = run.held();
    assert_eq!(held.iter().sum::<f64>(), BLOCKS as f64);
    // Each pays for an eighth of some 31 blocks, give or take three times the deviation of that.
    let mean = BLOCKS as f64 / USERS as f64;
    assert!(held.iter().all(|held| (held - mean).abs() < 0.6 * mean), "{held:?}");
    // Weights hold for what each has of its own beside it.
    run.all_read(0..40);
    let held = run.held();
    let mean = held.iter().sum::<f64>() / USERS as f64;
    assert!(held.iter().all(|held| (held - mean).abs() <= 1.0), "{held:?}");
}

#[test]
fn shared_blocks_stay_while_containers_are_limited() {
    let mut run = Run::new(4 * UNIT, &[100, 200, 400, 800]);
    let (shared, blocks) = (99, UNIT / 10);
    let mut misses = 0;
    for round in 0..40 {
        for container in 0..4 {
            for block in 0..blocks {
                misses += u64::from(!run.read(container, shared, block));
            }
        }
        run.all_read(round * UNIT / 5..(round + 1) * UNIT / 5);
    }
    assert_eq!(misses, blocks, "fetched once for all");
    run.assert_parts(&[1.0, 2.0, 4.0, 8.0]);
}

#[test]
fn an_idle_share_is_lent_and_returned() {
    let mut run = Run::new(3000, &[100, 100, 100]);
    run.all_read(0..2000);
    run.assert_parts(&[1.0; 3]);
    // The first sleeps; the others read 500 new blocks a second.
    let mut next = 2000;
    let second = |run: &mut Run, next: &mut u64| {
        for _ in 0..500 {
            run.read(1, 1, *next);
            run.read(2, 2, *next);
            *next += 1;
        }
        run.store.tick();
    };
    for _ in 0..IDLE_TICKS {
        second(&mut run, &mut next);
    }
    run.assert_parts(&[1.0; 3]);
    for _ in 0..5 {
        second(&mut run, &mut next);
    }
    let held = run.held();
    assert!(
        held[0] < 100.0 && held[1] > 1450.0 && held[2] > 1450.0,
        "in ten seconds nine tenths are lent: {held:?}"
    );
    assert!(run.store.stats().containers[0].idle);
    // It wakes and reads 200 blocks a second: 1,000 blocks are back as soon as it has fetched them.
    let mut seconds = 0;
    let mut own = 5000;
    while run.held()[0] < 990.0 {
        for _ in 0..200 {
            run.read(0, 0, own);
            own += 1;
        }
        second(&mut run, &mut next);
        seconds += 1;
        assert!(seconds <= 10, "{:?}", run.held());
    }
    assert_eq!(seconds, 5);
    run.assert_parts(&[1.0; 3]);
}

#[test]
fn unused_shares_go_to_the_other_containers() {
    let mut run = Run::new(3000, &[800, 100, 200]);
    for round in 0..20 {
        for block in 0..300 {
            assert_eq!(run.read(0, 0, block), round > 0, "what is below its share stays");
        }
        for block in 0..1000 {
            run.read(1, 1, round * 1000 + block);
            run.read(2, 2, round * 1000 + block);
        }
    }
    run.assert_parts(&[300.0, 900.0, 1800.0]);
}

#[test]
fn weights_can_change_at_run_time() {
    let mut run = Run::new(3000, &[100, 200]);
    run.all_read(0..3000);
    run.assert_parts(&[1.0, 2.0]);
    run.store.set_weight(run.containers[0], 400).unwrap();
    run.assert_parts(&[1.0, 2.0]);
    run.all_read(3000..6000);
    run.assert_parts(&[2.0, 1.0]);
}

#[test]
fn ownerless_blocks_are_evicted_first_and_can_be_adopted() {
    let mut run = Run::new(2000, &[100, 100]);
    run.all_read(0..1000);
    run.store.leave(run.containers[0]).unwrap();
    assert_eq!(run.store.stats().ownerless, 1000 * PAGE_BYTES);
    assert_eq!(
        run.store.read(Run::version(0, 0).key, BlockIndex(0), run.containers[0], 0, &mut [0]),
        Err(Error::NoContainer)
    );
    // Another one of the same image begins soon after.
    run.containers[0] = run.store.join(100).unwrap();
    for block in 0..400 {
        assert!(run.read(0, 0, block), "still there");
    }
    assert_eq!(run.store.stats().ownerless, 600 * PAGE_BYTES);
    for block in 1000..1600 {
        run.read(1, 1, block);
    }
    assert_eq!(run.store.stats().ownerless, 0);
    assert_eq!(run.held(), [400.0, 1600.0], "nobody's went, and nothing else");
}
