//! The ways by which containers come to storages.

use crate::fair_queue::{Fair, Flow, Permit};
use crate::sync::Mutex;
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// The storages from which a cache fetches, by the numbers of their filesystems. One is there as long as a container comes to it.
pub(crate) struct Storages {
    depth: u32,
    all: Mutex<HashMap<u64, Weak<Fair>>>,
}

impl Storages {
    pub(crate) fn new(depth: u32) -> Self {
        Self { depth, all: Mutex::new(HashMap::new()) }
    }

    fn get(&self, filesystem: u64) -> Arc<Fair> {
        let mut all = self.all.lock();
        if let Some(fair) = all.get(&filesystem).and_then(Weak::upgrade) {
            return fair;
        }
        all.retain(|_, fair| fair.strong_count() > 0);
        let fair = Arc::new(Fair::new(self.depth));
        all.insert(filesystem, Arc::downgrade(&fair));
        fair
    }
}

/// The way of one container to one storage.
pub(crate) struct Lane {
    fair: Arc<Fair>,
    flow: Flow,
}

impl Lane {
    /// Waits until a fetch of so many bytes may begin, for as long as what is returned is there.
    pub(crate) fn acquire(&self, bytes: u64) -> Permit<'_> {
        let turn = self.fair.ask(&self.flow, bytes);
        turn.wait();
        turn
    }
}

/// The ways of one container.
pub(crate) struct Lanes(Mutex<LaneTable>);

struct LaneTable {
    weight: u32,
    all: SmallVec<[(u64, Arc<Lane>); 1]>,
}

impl Lanes {
    pub(crate) fn new(weight: u32) -> Self {
        Self(Mutex::new(LaneTable { weight, all: SmallVec::new() }))
    }

    /// The one to a storage.
    pub(crate) fn to(&self, filesystem: u64, storages: &Storages) -> Arc<Lane> {
        let mut ways = self.0.lock();
        if let Some((_, lane)) = ways.all.iter().find(|(of, _)| *of == filesystem) {
            return Arc::clone(lane);
        }
        let lane = Arc::new(Lane { fair: storages.get(filesystem), flow: Flow::new(ways.weight) });
        ways.all.push((filesystem, Arc::clone(&lane)));
        lane
    }

    pub(crate) fn set_weight(&self, weight: u32) {
        let mut ways = self.0.lock();
        ways.weight = weight;
        ways.all.iter().for_each(|(_, lane)| lane.flow.set_weight(weight));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn containers_share_a_lane_and_their_weights_apply() {
        let storages = Storages::new(1);
        let (one, other) = (Lanes::new(1), Lanes::new(2));
        let (first, second) = (one.to(7, &storages), other.to(7, &storages));
        assert!(Arc::ptr_eq(&first.fair, &second.fair) && !Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first, &one.to(7, &storages)));
        let elsewhere = one.to(8, &storages);
        assert!(!Arc::ptr_eq(&first.fair, &elsewhere.fair));
        one.set_weight(50);
        drop((first.acquire(1), elsewhere.acquire(1)));
        // What nobody comes to any more is forgotten.
        drop((one, other, first, second, elsewhere));
        Lanes::new(1).to(9, &storages);
        assert_eq!(storages.all.lock().len(), 1);
    }
}
