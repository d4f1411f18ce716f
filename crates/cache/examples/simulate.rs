//! Hit ratios of the policies over traces of keys, with Belady's choice as the limit that none can reach:
//! `simulate [FILE]`, where each line of FILE is a key; `simulate [--seed NUMBER]`: over four traces that are made from a seed.
#![forbid(unsafe_code)]

#[path = "../tests/support/policies.rs"]
mod policies;

use fastrand::Rng;
use policies::Kind;
use std::collections::{BTreeSet, HashMap, HashSet};
use vellum_cache::Handle;

/// Of the generator, unless another one is given.
const SEED: u64 = 20_261_123;
/// Keys of the made traces.
const KEYS: u64 = 20_000;
/// Accesses of each.
const ACCESSES: usize = 400_000;
/// Sizes of the cache, in percent of the different keys of a trace.
const PERCENTS: [usize; 4] = [1, 5, 10, 20];

/// Keys whose frequency falls with the power `skew` of their rank.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: u64, skew: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        Self(sums.collect())
    }

    fn draw(&self, random: &mut Rng) -> u64 {
        let at = random.f64() * self.0.last().copied().unwrap_or_default();
        self.0.partition_point(|sum| *sum <= at) as u64
    }
}

fn made(seed: u64) -> Vec<(&'static str, Vec<u64>)> {
    let mut random = Rng::with_seed(seed);
    let zipf = |skew, random: &mut Rng| {
        let zipf = Zipf::new(KEYS, skew);
        (0..ACCESSES).map(|_| zipf.draw(random)).collect::<Vec<u64>>()
    };
    let (flat, steep) = (zipf(0.8, &mut random), zipf(1.0, &mut random));
    // Every tenth access is one of readings of 4,000 keys in a row, each of which is read once in the whole trace.
    let mut scanned = KEYS;
    let mixed = steep.chunks(36_000).flat_map(|part| {
        let start = scanned;
        scanned += 4_000;
        part.iter().copied().chain(start..scanned).collect::<Vec<u64>>()
    });
    let mixed = mixed.collect();
    let around = (0..ACCESSES as u64).map(|at| at % KEYS).collect();
    vec![("zipf 0.8", flat), ("zipf 1.0", steep), ("zipf 1.0 and scans", mixed), ("loop", around)]
}

/// Hits of a policy.
fn hits(kind: Kind, trace: &[u64], size: usize) -> usize {
    let mut queue = kind.policy()();
    // An item is the number of a key in the order of their first access.
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let mut entries: Vec<Option<Handle>> = Vec::new();
    let mut hits = 0;
    for key in trace {
        let number = *numbers.entry(*key).or_insert_with(|| {
            entries.push(None);
            entries.len() as u32 - 1
        });
        if let Some(entry) = entries[number as usize] {
            queue.hit(entry);
            hits += 1;
            continue;
        }
        if queue.len() >= size
            && let Some(victim) = queue.victim()
        {
            entries[victim as usize] = None;
        }
        entries[number as usize] = Some(queue.insert(number, *key));
    }
    hits
}

/// Hits of a cache that knows the future: the one whose next use is farthest goes, the one just read included.
fn limit(trace: &[u64], size: usize) -> usize {
    let mut later: HashMap<u64, usize> = HashMap::new();
    let mut next = vec![usize::MAX; trace.len()];
    for (at, key) in trace.iter().enumerate().rev() {
        next[at] = later.insert(*key, at).unwrap_or(usize::MAX);
    }
    let (mut held, mut by_use) = (HashSet::new(), BTreeSet::new());
    let mut hits = 0;
    for (at, key) in trace.iter().enumerate() {
        if held.insert(*key) {
            by_use.insert((next[at], *key));
            if held.len() > size
                && let Some((_, gone)) = by_use.pop_last()
            {
                held.remove(&gone);
            }
        } else {
            hits += 1;
            by_use.remove(&(at, *key));
            by_use.insert((next[at], *key));
        }
    }
    hits
}

fn show(name: &str, trace: &[u64]) {
    let footprint = trace.iter().collect::<HashSet<_>>().len();
    for percent in PERCENTS {
        let size = (footprint * percent / 100).max(1);
        let part = |hits: usize| format!("{:.1}", 100.0 * hits as f64 / trace.len() as f64);
        let all = Kind::ALL.map(|kind| part(hits(kind, trace, size)));
        println!("| {name} | {percent} % | {} | {} |", all.join(" | "), part(limit(trace, size)));
    }
}

/// A key is whatever a line says; lines that are alike are one key.
fn read(text: &str) -> Vec<u64> {
    let mut numbers: HashMap<&str, u64> = HashMap::new();
    let mut number = |line| {
        let new = numbers.len() as u64;
        *numbers.entry(line).or_insert(new)
    };
    text.lines().map(&mut number).collect()
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let traces = match arguments[..] {
        [] => made(SEED),
        ["--seed", seed] => made(seed.parse::<u64>().map_err(std::io::Error::other)?.max(1)),
        [file] => vec![("file", read(&std::fs::read_to_string(file)?))],
        _ => return Err(std::io::Error::other("simulate [FILE | --seed NUMBER]")),
    };
    println!("| trace | cache | LRU | SIEVE | S3-FIFO | Belady |\n| --- | --- | --- | --- | --- | --- |");
    traces.iter().for_each(|(name, trace)| show(name, trace));
    Ok(())
}
