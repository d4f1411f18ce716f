//! Who uses a block, and so pays for a part of it.

use crate::policy::Handle;
use crate::shares::Shares;
use smallvec::SmallVec;

/// A container that uses a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    /// Of the container.
    pub(crate) place: u32,
    /// In the container's queue. None: it was chosen while the file was lent, and waits for its return.
    pub(crate) entry: Option<Handle>,
}

/// The users of one block, by place. Nearly always one or two.
#[derive(Debug, Default)]
pub(crate) struct Users(SmallVec<[User; 2]>);

impl Users {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &User> {
        self.0.iter()
    }

    fn find(&self, place: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&place, |user| user.place)
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut User> {
        self.find(place).ok().and_then(|at| self.0.get_mut(at))
    }

    /// The part of `bytes` that each pays, in whole bytes that add up.
    pub(crate) fn parts(&self, bytes: u64) -> impl Iterator<Item = (u32, u64)> {
        let users = self.0.len().max(1) as u64;
        let (part, rest) = (bytes / users, bytes % users);
        self.0.iter().zip(0..).map(move |(user, at)| (user.place, part + u64::from(at < rest)))
    }

    pub(crate) fn pay(&self, bytes: u64, shares: &mut Shares) {
        self.parts(bytes).for_each(|(place, part)| shares.pay(place, part));
    }

    pub(crate) fn pay_back(&self, bytes: u64, shares: &mut Shares) {
        self.parts(bytes).for_each(|(place, part)| shares.pay_back(place, part));
    }

    /// A further one, which pays from now on for its part of a block of so many bytes.
    pub(crate) fn join(&mut self, user: User, bytes: u64, shares: &mut Shares) {
        if let Err(at) = self.find(user.place) {
            self.pay_back(bytes, shares);
            self.0.insert(at, user);
            self.pay(bytes, shares);
        }
    }

    /// One less: the others pay for its part. Where it was the only one, nobody pays.
    pub(crate) fn leave(&mut self, place: u32, bytes: u64, shares: &mut Shares) -> Option<User> {
        let at = self.find(place).ok()?;
        self.pay_back(bytes, shares);
        let user = self.0.remove(at);
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
}
