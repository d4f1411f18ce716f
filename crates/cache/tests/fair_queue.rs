//! Misses by weight, in virtual time: containers that all have more to fetch than a storage gives have parts by weight, and one alone
//! has all of it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![cfg(not(shuttle))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use vellum_cache::*;

/// What a fetch takes at the storage, in its own units: a thing of every request, and one of each byte.
const fn takes(bytes: u64) -> u64 {
    OPERATION_BYTES + bytes
}

/// Of a fetch: whose, how many bytes, and its place.
type Fetch<'a> = (usize, u64, Permit<'a>);

/// A storage that does one fetch after the other, in the order in which they come to it.
struct Run<'a> {
    fair: &'a Fair,
    flows: &'a [Flow],
    /// How large the next fetch of a container is, by how many there were of all.
    size: &'a dyn Fn(usize, usize) -> u64,
    waiting: Vec<Fetch<'a>>,
    storage: VecDeque<Fetch<'a>>,
    time: u64,
    done: Vec<u64>,
    count: usize,
}

impl<'a> Run<'a> {
    fn new(fair: &'a Fair, flows: &'a [Flow], size: &'a dyn Fn(usize, usize) -> u64) -> Self {
        let done = vec![0; flows.len()];
        Self { fair, flows, size, waiting: vec![], storage: VecDeque::new(), time: 0, done, count: 0 }
    }

    /// A container asks for something.
    fn ask(&mut self, flow: usize) {
        let bytes = (self.size)(flow, self.count);
        self.count += 1;
        let turn = self.fair.ask(&self.flows[flow], bytes);
        let to = (flow, bytes, turn);
        if to.2.is_granted() { self.storage.push_back(to) } else { self.waiting.push(to) }
    }

    /// The storage has done the first one. Whose it was.
    fn end_one(&mut self) -> usize {
        let (flow, bytes, turn) = self.storage.pop_front().expect("the storage is idle");
        self.time += takes(bytes);
        self.done[flow] += takes(bytes);
        drop(turn);
        let come = self.waiting.iter().position(|(_, _, turn)| turn.is_granted());
        self.storage.extend(come.map(|at| self.waiting.remove(at)));
        flow
    }

    /// Each asks again as soon as one of its fetches has ended.
    fn all_busy(&mut self, each: usize, ends: usize) {
        for flow in (0..self.flows.len()).cycle().take(each * self.flows.len()) {
            self.ask(flow);
        }
        for _ in 0..ends {
            let flow = self.end_one();
            assert!(self.fair.counts().0 <= u64::from(DEPTH));
            self.ask(flow);
        }
    }
}

const SIZES: [u64; 5] = [4096, 1 << 20, 64 << 10, 100, 300_000];

fn mixed(_: usize, count: usize) -> u64 {
    SIZES[count % SIZES.len()]
}

fn flows(weights: &[u32]) -> Vec<Flow> {
    weights.iter().map(|weight| Flow::new(*weight)).collect()
}

/// Fails where somebody's part of what was done is off the ideal by more than 5 % of it.
fn assert_parts(done: &[u64], ideal: &[f64]) {
    let (all, of): (u64, f64) = (done.iter().sum(), ideal.iter().sum());
    for (done, ideal) in
        done.iter().map(|done| *done as f64 / all as f64).zip(ideal.iter().map(|ideal| ideal / of))
    {
        println!("did {:.2} %, ideal {:.2} %", done * 100.0, ideal * 100.0);
        assert!((done - ideal).abs() <= ideal / 20.0, "{done} is not {ideal}");
    }
}

#[test]
fn all_busy_have_parts_by_weight() {
    for sizes in [SIZES.as_slice(), &[64 << 10], &[100], &[1 << 20]] {
        let (fair, flows) = (Fair::new(DEPTH), flows(&[100, 200, 400, 800]));
        let size = |_, count| sizes[count % sizes.len()];
        let mut run = Run::new(&fair, &flows, &size);
        run.all_busy(2 * DEPTH as usize, 20_000);
        assert_parts(&run.done, &[1.0, 2.0, 4.0, 8.0]);
    }
}

#[test]
fn flows_are_weighed_by_the_cost_of_their_requests() {
    let (fair, flows) = (Fair::new(DEPTH), flows(&[100, 100]));
    let mut run = Run::new(&fair, &flows, &|flow, _| [100, 1 << 20][flow]);
    run.all_busy(2 * DEPTH as usize, 20_000);
    assert_parts(&run.done, &[1.0, 1.0]);
}

#[test]
fn a_single_flow_has_the_whole_queue_depth() {
    let (fair, flows) = (Fair::new(DEPTH), flows(&[1, 10_000]));
    let mut run = Run::new(&fair, &flows, &mixed);
    for _ in 0..DEPTH {
        run.ask(0);
        assert!(run.waiting.is_empty(), "nobody waits while there is room");
    }
    for _ in 0..10_000 {
        let flow = run.end_one();
        run.ask(flow);
        assert!(run.waiting.is_empty() && run.storage.len() == DEPTH as usize, "the storage has less to do");
    }
    let part = run.done[0] as f64 / run.time as f64;
    assert!(part >= 0.98, "{part}");
}

#[test]
fn an_idle_flow_gains_no_credit_and_no_debt() {
    let (fair, flows) = (Fair::new(DEPTH), flows(&[100, 100]));
    let mut run = Run::new(&fair, &flows, &mixed);
    // The first one is alone for long.
    for _ in 0..2 * DEPTH {
        run.ask(0);
    }
    for _ in 0..5000 {
        let flow = run.end_one();
        run.ask(flow);
    }
    let before = run.done[0];
    for _ in 0..2 * DEPTH {
        run.ask(1);
    }
    for _ in 0..5000 {
        let flow = run.end_one();
        run.ask(flow);
    }
    assert_parts(&[run.done[0] - before, run.done[1]], &[1.0, 1.0]);
}

#[test]
fn weights_can_change_between_requests() {
    let (fair, flows) = (Fair::new(DEPTH), flows(&[100, 100]));
    let mut run = Run::new(&fair, &flows, &mixed);
    run.all_busy(2 * DEPTH as usize, 5000);
    flows[0].set_weight(300);
    let before = run.done.clone();
    for _ in 0..10_000 {
        let flow = run.end_one();
        run.ask(flow);
    }
    assert_parts(&[run.done[0] - before[0], run.done[1] - before[1]], &[3.0, 1.0]);
}

#[test]
fn a_cancelled_request_frees_its_slot() {
    let (fair, flow) = (Fair::new(2), Flow::new(1));
    let (one, other) = (fair.ask(&flow, 1), fair.ask(&flow, 1));
    let (third, fourth) = (fair.ask(&flow, 1), fair.ask(&flow, 1));
    assert!(other.is_granted() && !third.is_granted());
    drop(third);
    assert_eq!(fair.counts(), (2, 1));
    drop(one);
    assert!(fourth.is_granted());
    drop((other, fourth));
    assert_eq!(fair.counts(), (0, 0));
}

#[test]
fn no_thread_starves() {
    let fair = Arc::new(Fair::new(3));
    let threads: Vec<_> = (1..=16)
        .map(|weight| {
            let fair = Arc::clone(&fair);
            thread::spawn(move || {
                let flow = Flow::new(weight);
                for bytes in 0..500 {
                    let turn = fair.ask(&flow, bytes);
                    turn.wait();
                    assert!(turn.is_granted() && fair.counts().0 <= 3);
                    if bytes % 7 == 0 {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(fair.counts(), (0, 0));
}

#[test]
fn requests_within_the_depth_allocate_nothing() {
    let (fair, flow) = (Fair::new(2), Flow::new(100));
    let used = allocation_counter::measure(|| {
        for _ in 0..1000 {
            let turn = fair.ask(&flow, 4096);
            turn.wait();
        }
    });
    assert_eq!(used.count_total, 0);
}
