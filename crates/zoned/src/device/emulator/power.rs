//! What is left when power is lost.
//!
//! Of each zone, what happened since the last flush is a list of steps. A first part of it stays; the last step of that part, if it is a
//! write, may stay in part. Zones are drawn independently of each other.

use super::random::Random;
use crate::device::zone::{Condition, Zone};

/// How much of what was not flushed stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Nothing,
    /// Everything.
    Everything,
    /// As drawn from a seed, for each zone: how many steps, how many blocks of the last one, and which blocks that were not flushed hold
    /// something else.
    Drawn(u64),
}

/// Something done to a zone and not flushed.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// So many blocks were written at the pointer.
    Write(u64),
    /// Made full.
    Finish,
    /// Emptied; it held these bytes.
    Reset(Vec<u8>),
}

/// A zone as the last flush left it, and what was done since.
#[derive(Clone, Debug)]
pub(super) struct UnflushedZone {
    pub(super) flushed: Zone,
    pub(super) steps: Vec<Step>,
}

/// A zone after a loss of power: its condition, and its bytes.
pub(super) fn survive(
    survival: Survival,
    number: u32,
    unflushed: &UnflushedZone,
    now: Zone,
    data: &[u8],
    block: usize,
) -> (Zone, Vec<u8>) {
    let seed = match survival {
        Survival::Drawn(seed) => seed,
        Survival::Nothing | Survival::Everything => 0,
    };
    let mut random = Random::new(seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let steps = unflushed.steps.len();
    let kept = match survival {
        Survival::Nothing => 0,
        Survival::Everything => steps,
        Survival::Drawn(_) => random.below(steps as u64 + 1) as usize,
    };
    let (mut pointer, mut is_full) =
        (unflushed.flushed.pointer, unflushed.flushed.condition == Condition::Full);
    let mut sure = pointer;
    let mut resets = 0;
    for (index, step) in unflushed.steps[..kept].iter().enumerate() {
        match step {
            Step::Write(blocks) => {
                let in_part = matches!(survival, Survival::Drawn(_)) && index + 1 == kept;
                pointer += if in_part { 1 + random.below(*blocks) } else { *blocks };
            }
            Step::Finish => is_full = true,
            Step::Reset(_) => (pointer, sure, is_full, resets) = (0, 0, false, resets + 1),
        }
    }
    // What the zone held before the first reset that did not stay, or holds now.
    let held = unflushed.steps.iter().filter_map(|step| match step {
        Step::Reset(held) => Some(held.as_slice()),
        _ => None,
    });
    let held = held.chain(std::iter::once(data)).nth(resets).unwrap_or(data);
    let mut bytes = held[..held.len().min(pointer as usize * block)].to_vec();
    if matches!(survival, Survival::Drawn(_)) {
        garble(&mut random, &mut bytes, sure as usize * block, block);
    }
    let condition = match now.condition {
        Condition::ReadOnly | Condition::Offline => now.condition,
        _ if is_full || pointer == now.capacity => Condition::Full,
        _ if pointer == 0 => Condition::Empty,
        _ => Condition::Closed,
    };
    let pointer = if condition == Condition::Full { now.capacity } else { pointer };
    (Zone { capacity: now.capacity, pointer, condition }, bytes)
}

/// Where the pointer of a zone that is as `zone` after a loss of power is found when it may be up to `ahead` blocks further.
pub(super) fn further(survival: Survival, number: u32, zone: Zone, ahead: u64) -> u64 {
    let Survival::Drawn(seed) = survival else { return zone.pointer };
    if zone.condition != Condition::Closed {
        return zone.pointer;
    }
    let mut random = Random::new(!seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (zone.pointer + random.below(ahead + 1)).min(zone.capacity - 1)
}

/// Of one zone in four, every other block behind those that are sure holds something else.
fn garble(random: &mut Random, bytes: &mut [u8], sure: usize, block: usize) {
    if random.below(4) != 0 || bytes.len() <= sure {
        return;
    }
    for block in bytes[sure..].chunks_mut(block) {
        if random.below(2) == 0 {
            let other = random.draw();
            block.iter_mut().for_each(|byte| *byte = other as u8);
        }
    }
}
