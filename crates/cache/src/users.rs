//! Who pays for a block: those that use it, as far as they are not too many.
//!
//! A further payer costs a place here and one in a queue, and everybody's part is reckoned anew. So beyond [`PAYERS_MAX`] it is drawn by
//! lot who of those that use it pays (Vitter, "Random Sampling with a Reservoir", TOMS 1985): each with the same chance. Of a file of
//! some thousand blocks, or a whole image, each pays about its part that way, and what a block costs does not depend on how many
//! use it.

use crate::policy::Handle;
use crate::shares::{CONTAINERS_MAX, Shares};
use smallvec::SmallVec;

/// So many pay for a block at most. A payer costs some 60 bytes, so these are below 1 % of a block of 64 KiB.
pub const PAYERS_MAX: usize = 8;

/// A container that pays for a block, which it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    /// Of the container.
    pub(crate) place: u32,
    /// In the container's queue. None: it was chosen while the file was lent, and waits for its return.
    pub(crate) entry: Option<Handle>,
}

/// The users of one block that pay for it, by place. Nearly always one or two.
#[derive(Debug, Default)]
pub(crate) struct Users {
    payers: SmallVec<[User; 2]>,
    /// How many have come when there were as many as can pay.
    more: u16,
}

/// What becomes of a further user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It pays, too.
    Free,
    /// It pays instead of the container at this place.
    Of(u32),
    /// Others pay.
    None,
}

impl Users {
    pub(crate) fn len(&self) -> usize {
        self.payers.len()
    }

    /// Whether others may use it that do not pay.
    pub(crate) const fn is_crowded(&self) -> bool {
        self.more > 0
    }

    /// Draws what becomes of a further user; `print` is the block's.
    pub(crate) fn draw(&mut self, print: u64) -> Admission {
        // The golden ratio as an odd number: its bits are well spread.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        if self.payers.len() < PAYERS_MAX {
            return Admission::Free;
        }
        // More than there can be at a time are those that have come and gone.
        self.more = (self.more + 1).min(CONTAINERS_MAX as u16);
        let mixed = (print ^ u64::from(self.more).wrapping_mul(SPREAD)).wrapping_mul(SPREAD);
        let drawn = (mixed ^ (mixed >> 32)).wrapping_mul(SPREAD) >> 32;
        let drawn = drawn % (PAYERS_MAX as u64 + u64::from(self.more));
        let payer = usize::try_from(drawn).ok().and_then(|drawn| self.payers.get(drawn));
        payer.map_or(Admission::None, |payer| Admission::Of(payer.place))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &User> {
        self.payers.iter()
    }

    fn find(&self, place: u32) -> Result<usize, usize> {
        self.payers.binary_search_by_key(&place, |user| user.place)
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut User> {
        self.find(place).ok().and_then(|at| self.payers.get_mut(at))
    }

    /// The part of `bytes` that each pays, in whole bytes that add up.
    pub(crate) fn parts(&self, bytes: u64) -> impl Iterator<Item = (u32, u64)> {
        let users = self.payers.len().max(1) as u64;
        let (part, rest) = (bytes / users, bytes % users);
        self.payers.iter().zip(0..).map(move |(user, at)| (user.place, part + u64::from(at < rest)))
    }

    pub(crate) fn pay(&self, bytes: u64, shares: &mut Shares) {
        self.parts(bytes).for_each(|(place, part)| shares.pay(place, part));
    }

    pub(crate) fn refund(&self, bytes: u64, shares: &mut Shares) {
        self.parts(bytes).for_each(|(place, part)| shares.refund(place, part));
    }

    /// A further one, which pays from now on for its part of a block of so many bytes.
    pub(crate) fn join(&mut self, user: User, bytes: u64, shares: &mut Shares) {
        if let Err(at) = self.find(user.place) {
            self.refund(bytes, shares);
            self.payers.insert(at, user);
            self.pay(bytes, shares);
        }
    }

    /// One less: the others pay for its part. Where it was the only one, nobody pays.
    pub(crate) fn leave(&mut self, place: u32, bytes: u64, shares: &mut Shares) -> Option<User> {
        let at = self.find(place).ok()?;
        self.refund(bytes, shares);
        let user = self.payers.remove(at);
        self.pay(bytes, shares);
        Some(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        let mut shares = Shares::default();
        let places: Vec<u32> =
            (0..3).map(|_| shares.join(1).and_then(|container| shares.place(container)).unwrap()).collect();
        let charges =
            |shares: &Shares| places.iter().map(|place| shares.charge_at(*place)).collect::<Vec<_>>();
        let mut users = Users::default();
        for (at, expected) in [(2, vec![0, 0, 11]), (0, vec![6, 0, 5]), (1, vec![4, 4, 3])] {
            users.join(User { place: places[at], entry: None }, 11, &mut shares);
            assert_eq!(charges(&shares), expected);
        }
        users.join(User { place: places[1], entry: None }, 11, &mut shares);
        assert_eq!(users.len(), 3);
        users.leave(places[0], 11, &mut shares);
        assert_eq!(charges(&shares), [0, 6, 5]);
        users.leave(places[1], 11, &mut shares);
        users.leave(places[2], 11, &mut shares);
        assert_eq!(charges(&shares), [0, 0, 0]);
    }

    #[test]
    fn each_of_many_users_pays_equally_often() {
        const USERS: u32 = 64;
        const BLOCKS: u64 = 8000;
        let mut pays = [0_u64; USERS as usize];
        let mut shares = Shares::default();
        for _ in 0..USERS {
            shares.join(1).unwrap();
        }
        for block in 0..BLOCKS {
            let mut users = Users::default();
            for place in 1..=USERS {
                match users.draw(block.wrapping_mul(0xdead_beef_1234_5677)) {
                    Admission::None => continue,
                    Admission::Of(other) => assert!(users.leave(other, 8, &mut shares).is_some()),
                    Admission::Free => {}
                }
                users.join(User { place, entry: None }, 8, &mut shares);
            }
            assert!(users.len() == PAYERS_MAX && users.is_crowded());
            users.iter().for_each(|user| pays[user.place as usize - 1] += 1);
        }
        // A thousand each, and five times the deviation of that.
        let mean = BLOCKS * PAYERS_MAX as u64 / u64::from(USERS);
        assert!(pays.iter().all(|pays| pays.abs_diff(mean) < 150), "{pays:?}");
    }
}
