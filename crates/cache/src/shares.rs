//! Which container has to give when memory is short: the one that holds most in relation to its weight.
//!
//! What follows from that one rule: containers of equal weight come to hold equally much; who needs less than its share leaves the
//! rest to all others in relation to their weights; and who comes back takes it from those that are above their shares, with every
//! block that it needs. One thing does not follow: a container that holds its share and sleeps would keep it for ever. So after
//! [`IDLE_TICKS`] its weight counts half as much with each tick, and in full again from its next use on.

use crate::error::{Error, Result};
use slab::Slab;

/// The most containers that one cache has, so that looking through all of them stays short beside fetching a block.
pub const CONTAINERS_MAX: usize = 1024;
/// The largest weight: the kernel's for `io.weight`.
pub const WEIGHT_MAX: u32 = 10_000;
/// After so many ticks (seconds) without a use a container is idle. Short, because little is lost when it comes back: others
/// give as fast as it fetches.
pub const IDLE_TICKS: u32 = 5;
/// The weight of an idle container is halved at most so many times: with 1/64 of its share it keeps what is at the core of its work
/// when memory is needed only by the way.
pub const LENT_SHIFT_MAX: u32 = 6;

/// Whoever pays for what nobody uses any more: its weight is 0, so it gives before all others.
pub(crate) const NOBODY: u32 = 0;

/// A container in a cache, from [`Shares::join`] until it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Container {
    place: u32,
    /// Places are used again, numbers are not.
    serial: u64,
}

impl Container {
    /// Where it stands in tables, together with one that has left.
    pub(crate) const fn place(self) -> u32 {
        self.place
    }
}

#[derive(Debug)]
struct Member {
    serial: u64,
    weight: u32,
    /// Bytes that it pays for.
    charge: u64,
    /// Ticks since it last used something.
    quiet: u32,
}

impl Member {
    const fn shift(&self) -> u32 {
        let over = self.quiet.saturating_sub(IDLE_TICKS);
        if over < LENT_SHIFT_MAX { over } else { LENT_SHIFT_MAX }
    }

    /// Its weight as it counts now, in units that a halved weight still has whole numbers of.
    fn counts(&self) -> u128 {
        u128::from(self.weight) << (LENT_SHIFT_MAX - self.shift())
    }
}

/// Weights, and who pays for how much.
#[derive(Debug)]
pub struct Shares {
    members: Slab<Member>,
    serial: u64,
}

impl Default for Shares {
    fn default() -> Self {
        let mut members = Slab::new();
        members.insert(Member { serial: 0, weight: 0, charge: 0, quiet: 0 });
        Self { members, serial: 0 }
    }
}

impl Shares {
    /// A further container.
    pub fn join(&mut self, weight: u32) -> Result<Container> {
        if self.members.len() > CONTAINERS_MAX {
            return Err(Error::TooManyContainers);
        }
        let weight = checked(weight)?;
        self.serial += 1;
        let serial = self.serial;
        let place = self.members.insert(Member { serial, weight, charge: 0, quiet: 0 });
        Ok(Container { place: u32::try_from(place).map_err(|_| Error::TooManyContainers)?, serial })
    }

    /// Another weight, from now on.
    pub fn set_weight(&mut self, container: Container, weight: u32) -> Result<()> {
        let place = self.place(container)?;
        let weight = checked(weight)?;
        self.change(place, |member| member.weight = weight);
        Ok(())
    }

    /// Time goes on by a second.
    pub fn tick(&mut self) {
        for (_, member) in &mut self.members {
            member.quiet = member.quiet.saturating_add(1);
        }
    }

    /// Its weight. None: it has left.
    #[must_use]
    pub fn weight(&self, container: Container) -> Option<u32> {
        self.member(container).map(|member| member.weight)
    }

    /// Bytes that it pays for. None: it has left.
    #[must_use]
    pub fn charge(&self, container: Container) -> Option<u64> {
        self.member(container).map(|member| member.charge)
    }

    /// Whether part of its share is lent to others for it has used nothing for a while.
    #[must_use]
    pub fn is_idle(&self, container: Container) -> bool {
        self.member(container).is_some_and(|member| member.shift() > 0)
    }

    /// All containers.
    pub fn containers(&self) -> impl Iterator<Item = Container> {
        let all = self.members.iter().skip(1);
        all.filter_map(|(place, member)| {
            Some(Container { place: u32::try_from(place).ok()?, serial: member.serial })
        })
    }

    fn member(&self, container: Container) -> Option<&Member> {
        self.members.get(container.place as usize).filter(|member| member.serial == container.serial)
    }

    fn change(&mut self, place: u32, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.members.get_mut(place as usize) {
            change(member);
        }
    }

    /// Where it stands in tables beside this one.
    pub(crate) fn place(&self, container: Container) -> Result<u32> {
        self.member(container).map(|_| container.place).ok_or(Error::NoContainer)
    }

    /// It has used something.
    pub(crate) fn used(&mut self, place: u32) {
        // Not written again while it is 0: that is so for nearly all uses.
        if let Some(member) = self.members.get_mut(place as usize).filter(|member| member.quiet > 0) {
            member.quiet = 0;
        }
    }

    pub(crate) fn pay(&mut self, place: u32, bytes: u64) {
        self.change(place, |member| member.charge += bytes);
    }

    pub(crate) fn refund(&mut self, place: u32, bytes: u64) {
        self.change(place, |member| {
            debug_assert!(member.charge >= bytes, "more is given back than was paid");
            member.charge = member.charge.saturating_sub(bytes);
        });
    }

    /// Forgets a container that pays for nothing any more.
    pub(crate) fn leave(&mut self, place: u32) {
        if place != NOBODY {
            self.members.try_remove(place as usize);
        }
    }

    pub(crate) fn charge_at(&self, place: u32) -> u64 {
        self.members.get(place as usize).map_or(0, |member| member.charge)
    }

    /// How much a container may have of what nobody can take back, where so much of that is free: as much, times its weight in relation to
    /// the mean. Who is alone may have all.
    pub(crate) fn threshold(&self, place: u32, free: u64) -> u64 {
        let all = self.members.iter().skip(1).map(|(_, member)| u128::from(member.weight));
        let (count, sum) = all.fold((0_u128, 0), |(count, sum), weight| (count + 1, sum + weight));
        let own = self.members.get(place as usize).map_or(0, |member| u128::from(member.weight));
        if count <= 1 {
            return u64::MAX;
        }
        u64::try_from(u128::from(free) * own * count / sum.max(1)).unwrap_or(u64::MAX)
    }

    /// Who holds most in relation to weight, `asking` with so many bytes more than now; among equals the one with the lowest
    /// place. Only those that hold something, and of which `can_give` says that it can go.
    pub(crate) fn most(&self, asking: Option<(u32, u64)>, can_give: impl Fn(u32) -> bool) -> Option<u32> {
        let mut most: Option<(u32, u128, u128)> = None;
        for (place, member) in &self.members {
            let Ok(place) = u32::try_from(place) else { continue };
            if member.charge == 0 || !can_give(place) {
                continue;
            }
            let more = asking.filter(|(asking, _)| *asking == place).map_or(0, |(_, bytes)| bytes);
            let (holds, counts) = (u128::from(member.charge) + u128::from(more), member.counts());
            if most.is_none_or(|(_, most, of)| holds * of > most * counts) {
                most = Some((place, holds, counts));
            }
        }
        most.map(|(place, ..)| place)
    }
}

fn checked(weight: u32) -> Result<u32> {
    if (1..=WEIGHT_MAX).contains(&weight) { Ok(weight) } else { Err(Error::Weight) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the paper on weights in the page cache: weights 100, 200, 400, 800 hold 2, 9, 7, 14 pages.
    #[test]
    fn the_container_above_its_share_is_the_victim() {
        let mut shares = Shares::default();
        let all: Vec<Container> =
            [100, 200, 400, 800].iter().map(|weight| shares.join(*weight).unwrap()).collect();
        for (container, pages) in all.iter().zip([2, 9, 7, 14]) {
            shares.pay(container.place, pages);
        }
        assert_eq!(shares.most(None, |_| true), Some(all[1].place));
        assert_eq!(shares.most(None, |place| place != all[1].place), Some(all[0].place));
        shares.set_weight(all[3], 10).unwrap();
        assert_eq!(shares.most(None, |_| true), Some(all[3].place));
        assert_eq!(shares.most(Some((all[0].place, 1000)), |_| true), Some(all[0].place));
        shares.pay(NOBODY, 1);
        assert_eq!(shares.most(None, |_| true), Some(NOBODY));
    }

    #[test]
    fn an_idle_container_counts_less_until_it_wakes() {
        let mut shares = Shares::default();
        let (sleeps, works) = (shares.join(100).unwrap(), shares.join(100).unwrap());
        shares.pay(sleeps.place, 10);
        shares.pay(works.place, 15);
        for _ in 0..=IDLE_TICKS {
            assert_eq!((shares.is_idle(sleeps), shares.most(None, |_| true)), (false, Some(works.place)));
            shares.tick();
            shares.used(works.place);
        }
        assert_eq!((shares.is_idle(sleeps), shares.most(None, |_| true)), (true, Some(sleeps.place)));
        shares.used(sleeps.place);
        assert_eq!((shares.is_idle(sleeps), shares.most(None, |_| true)), (false, Some(works.place)));
    }

    #[test]
    fn share_slots_are_reused_and_container_ids_are_not() {
        let mut shares = Shares::default();
        let first = shares.join(1).unwrap();
        shares.leave(first.place);
        let second = shares.join(2).unwrap();
        assert_eq!(first.place, second.place);
        assert_eq!((shares.place(first), shares.weight(first)), (Err(Error::NoContainer), None));
        assert_eq!(shares.weight(second), Some(2));
        assert_eq!(shares.join(0), Err(Error::Weight));
        assert_eq!(shares.set_weight(second, WEIGHT_MAX + 1), Err(Error::Weight));
        for _ in 1..CONTAINERS_MAX {
            shares.join(1).unwrap();
        }
        assert_eq!(shares.join(1), Err(Error::TooManyContainers));
    }
}
