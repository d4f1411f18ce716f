//! How much of the page cache each group is to have. No clock and no file: every run can be repeated.

use std::time::Duration;

/// A group without activity counts in full for so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// The least that the weight of an idle group counts, as a power of two: a 64th.
const LEAST: u32 = 6;
/// Less time on a processor than this part of the time is no activity.
const IDLE_PART: u32 = 200;
/// What a group that needs no more than it has is given beyond that, in bytes: room to begin to grow.
const HEADROOM: u64 = 16 << 20;
/// Parts of a weight, so that that of an idle group is not rounded away.
const PARTS: u64 = 1 << LEAST;

/// What a look at a group finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupSample {
    /// 1 to 10,000.
    pub(super) weight: u16,
    /// Its page cache, in bytes.
    pub(super) cache: u64,
    /// Pages that it had to read again, so far.
    pub(super) refaults: u64,
    /// Time on processors, so far.
    pub(super) cpu: Duration,
}

/// What a group does, as far as the page cache is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// It reads what it has read before and could not keep, or its cache grows.
    #[default]
    Hungry,
    /// What it has is enough.
    Content,
    /// It does nothing.
    Idle,
}

/// What a group is to compete with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupTarget {
    /// Weight, in parts: 64 for each unit of weight of a group that is not idle.
    parts: u64,
    /// It has no use for more, in bytes.
    most: u64,
}

/// What is remembered of a group between two looks.
#[derive(Debug, Default)]
pub(super) struct Controller {
    before: Option<GroupSample>,
    /// How long it has done nothing.
    idle: Duration,
    /// How long it has not been hungry.
    content: Duration,
    activity: Activity,
}

impl Controller {
    /// Takes in a look, `passed` after the one before.
    pub(super) fn look(&mut self, seen: &GroupSample, passed: Duration) -> GroupTarget {
        let before = self.before.replace(*seen);
        if let Some(before) = before {
            let hungry = seen.refaults > before.refaults || seen.cache > before.cache;
            let worked = seen.cpu.saturating_sub(before.cpu) * IDLE_PART >= passed && seen.cpu > before.cpu;
            self.content = if hungry { Duration::ZERO } else { self.content + passed };
            self.idle = if hungry || worked { Duration::ZERO } else { self.idle + passed };
        }
        self.activity = match (self.idle > PATIENCE, self.content > PATIENCE) {
            (true, _) => Activity::Idle,
            (false, true) => Activity::Content,
            (false, false) => Activity::Hungry,
        };
        let halvings = self.idle.saturating_sub(PATIENCE).as_secs().min(u64::from(LEAST));
        let parts = u64::from(seen.weight) * (PARTS >> halvings);
        let most = match self.activity {
            Activity::Hungry => u64::MAX,
            _ => seen.cache.saturating_add(seen.cache / 4).saturating_add(HEADROOM),
        };
        GroupTarget { parts, most }
    }

    pub(super) fn activity(&self) -> Activity {
        self.activity
    }
}

/// `room` bytes among groups: to each by weight, and what one has no use for to the others (weighted max-min fairness; Bertsekas and
/// Gallager, Data Networks, 6.5.2). What nobody has a use for is left.
pub(super) fn shares(room: u64, wishes: impl Iterator<Item = GroupTarget>) -> Vec<u64> {
    let wishes: Vec<GroupTarget> = wishes.collect();
    // Those that want least for their weight are satisfied first.
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    let need = |wish: &GroupTarget| u128::from(wish.most) * u128::from(PARTS) / u128::from(wish.parts.max(1));
    order.sort_by_key(|&index| wishes.get(index).map(need));
    let mut left = room;
    let mut parts: u64 = wishes.iter().map(|wish| wish.parts).sum();
    let mut shares = vec![0; wishes.len()];
    for index in order {
        let (Some(wish), Some(share)) = (wishes.get(index), shares.get_mut(index)) else { continue };
        let fair = u128::from(left) * u128::from(wish.parts) / u128::from(parts.max(1));
        *share = u64::try_from(fair).unwrap_or(u64::MAX).min(wish.most);
        left -= *share;
        parts -= wish.parts;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    fn wish(weight: u16, most: u64) -> GroupTarget {
        GroupTarget { parts: u64::from(weight) * PARTS, most }
    }

    #[test]
    fn hungry_groups_share_by_weight() {
        let wishes = [100, 200, 400, 800].map(|weight| wish(weight, u64::MAX));
        assert_eq!(shares(1500, wishes.into_iter()), [100, 200, 400, 800]);
        let equal = [wish(7, u64::MAX); 4];
        assert_eq!(shares(400, equal.into_iter()), [100; 4]);
    }

    #[test]
    fn an_unneeded_share_goes_to_the_others() {
        let wishes = [wish(800, 30), wish(100, u64::MAX), wish(200, u64::MAX)];
        assert_eq!(shares(330, wishes.into_iter()), [30, 100, 200]);
        assert_eq!(shares(100, [wish(1, 10), wish(1, 20)].into_iter()), [10, 20]);
    }

    #[test]
    fn an_idle_share_is_lent_and_returned_at_once() {
        let mut control = Controller::default();
        let mut seen = GroupSample { weight: 100, cache: 80 * MIB, refaults: 0, cpu: SECOND };
        let first = control.look(&seen, Duration::ZERO);
        assert_eq!((first, control.activity()), (wish(100, u64::MAX), Activity::Hungry));
        for _ in 0..5 {
            assert_eq!(control.look(&seen, SECOND).parts, 100 * PARTS);
        }
        let parts: Vec<u64> = (0..8).map(|_| control.look(&seen, SECOND).parts / 100).collect();
        assert_eq!((parts, control.activity()), (vec![32, 16, 8, 4, 2, 1, 1, 1], Activity::Idle));
        // It reads again what it has lent.
        seen.refaults += 1;
        assert_eq!(control.look(&seen, SECOND), wish(100, u64::MAX));
    }

    #[test]
    fn a_group_working_within_its_cache_is_not_idle() {
        let mut control = Controller::default();
        let mut seen = GroupSample { weight: 100, cache: 80 * MIB, refaults: 9, cpu: SECOND };
        control.look(&seen, Duration::ZERO);
        for _ in 0..20 {
            seen.cpu += SECOND / 100;
            control.look(&seen, SECOND);
        }
        assert_eq!(control.activity(), Activity::Content);
        assert_eq!(
            control.look(&GroupSample { cpu: seen.cpu + SECOND, ..seen }, SECOND),
            wish(100, 116 * MIB)
        );
    }

    proptest! {
        /// Never more than there is; nothing is left while somebody wants it; nobody with room to want has less for its weight than another.
        #[test]
        fn shares_are_fair(room in 0..1_u64 << 45, all in prop::collection::vec((1..=10_000_u16, 0..1_u64 << 44), 0..20)) {
            let wishes: Vec<GroupTarget> = all.iter().map(|(weight, most)| wish(*weight, *most)).collect();
            let shares = shares(room, wishes.iter().copied());
            let sum: u64 = shares.iter().sum();
            let wanted: u64 = wishes.iter().map(|wish| wish.most).sum();
            prop_assert!(sum <= room);
            prop_assert!(sum + wishes.len() as u64 >= room.min(wanted));
            for (a, share) in wishes.iter().zip(&shares) {
                prop_assert!(*share <= a.most);
                for (b, other) in wishes.iter().zip(&shares) {
                    // One of rounding, for each of them.
                    let slack = 20 * u128::from(a.parts.max(b.parts));
                    let less = u128::from(*share) * u128::from(b.parts) + slack < u128::from(*other) * u128::from(a.parts);
                    prop_assert!(*share == a.most || !less, "{share} of {a:?}, {other} of {b:?}");
                }
            }
        }
    }
}
