//! Each policy against what its paper says, and all of them against a plain list of what they hold.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "support/policies.rs"]
mod policies;

use policies::{Kind, Lru, Sieve};
use proptest::prelude::*;
use std::collections::BTreeMap;
use vellum_cache::{Handle, Policy, S3Fifo};

fn drain(queue: &mut dyn Policy) -> Vec<u32> {
    std::iter::from_fn(|| queue.victim()).collect()
}

fn filled(queue: &mut dyn Policy, items: std::ops::Range<u32>) -> Vec<Handle> {
    items.map(|item| queue.insert(item, item.into())).collect()
}

#[test]
fn lru_evicts_the_least_recently_used() {
    let mut queue = Lru::default();
    let entries = filled(&mut queue, 0..4);
    queue.hit(entries[0]);
    queue.remove(entries[2]);
    assert_eq!(drain(&mut queue), [1, 3, 0]);
}

#[test]
fn sieve_skips_used_entries_and_keeps_its_position() {
    let mut queue = Sieve::default();
    let entries = filled(&mut queue, 0..5);
    queue.hit(entries[0]);
    queue.hit(entries[2]);
    assert_eq!(queue.victim(), Some(1));
    assert_eq!(queue.victim(), Some(3), "0 was not asked again");
    queue.insert(5, 5);
    assert_eq!(queue.victim(), Some(4));
    queue.remove(entries[2]);
    assert_eq!(drain(&mut queue), [5, 0], "the hand comes to the new one, and begins again");
}

#[test]
fn sieve_survives_the_end_of_the_entry_at_its_hand() {
    let mut queue = Sieve::default();
    let entries = filled(&mut queue, 0..3);
    assert_eq!(queue.victim(), Some(0));
    queue.remove(entries[1]);
    assert_eq!(drain(&mut queue), [2]);
}

#[test]
fn s3_fifo_keeps_entries_that_are_hit_again() {
    let mut queue = S3Fifo::default();
    let entries = filled(&mut queue, 0..20);
    for _ in 0..2 {
        queue.hit(entries[0]);
    }
    queue.hit(entries[1]);
    // 0 was used twice on trial, 1 only once.
    assert_eq!(queue.victim(), Some(1));
    // It comes back while it is remembered: no trial.
    queue.insert(1, 1);
    let left: Vec<u32> = drain(&mut queue);
    assert_eq!(left.first(), Some(&2));
    let place = |item| left.iter().position(|other| *other == item).unwrap();
    assert!(place(0) > place(17) && place(1) > place(17), "{left:?}");
}

#[test]
fn a_scan_evicts_used_entries_only_with_lru() {
    for kind in Kind::ALL {
        let mut queue = kind.policy()();
        let used = filled(&mut *queue, 0..50);
        for _ in 0..3 {
            used.iter().for_each(|entry| queue.hit(*entry));
        }
        let mut gone = Vec::new();
        for item in 50..130 {
            if queue.len() >= 100 {
                gone.extend(queue.victim());
            }
            queue.insert(item, item.into());
        }
        let lost = gone.iter().filter(|item| **item < 50).count();
        assert_eq!(lost, if kind == Kind::Lru { 30 } else { 0 }, "{kind:?}");
    }
}

proptest! {
    /// Nothing is lost or given twice, whatever the order.
    #[test]
    fn queue_entries_are_evicted_exactly_once(
        kind in prop::sample::select(Kind::ALL.to_vec()),
        steps in prop::collection::vec((0_u8..8, any::<u16>()), 0..400),
    ) {
        let mut queue = kind.policy()();
        let mut held = BTreeMap::new();
        for (at, (step, pick)) in (0_u32..).zip(steps) {
            let picked = held.iter().nth(usize::from(pick) % held.len().max(1)).map(|(item, entry)| (*item, *entry));
            match (step, picked) {
                (0..=2, _) => { held.insert(at, queue.insert(at, u64::from(pick % 64))); }
                (3..=5, Some((_, entry))) => queue.hit(entry),
                (6, Some((item, entry))) => { queue.remove(entry); held.remove(&item); }
                (7, _) => {
                    let victim = queue.victim();
                    prop_assert_eq!(victim.is_none(), held.is_empty());
                    if let Some(victim) = victim { prop_assert!(held.remove(&victim).is_some()); }
                }
                _ => {}
            }
            prop_assert_eq!(queue.len(), held.len());
        }
        let mut left = drain(&mut *queue);
        left.sort_unstable();
        prop_assert_eq!(left, held.into_keys().collect::<Vec<_>>());
    }
}
