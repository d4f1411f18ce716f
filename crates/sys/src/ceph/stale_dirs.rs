//! Directories that names were moved out of.
//!
//! After a rename the library shows the old directory as it was before it, its times and its count of links, for as long as it likes. An
//! answer of the cluster sets that right, and one of its attributes is one for which it asks the cluster each time.

use super::library::Inode;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The attribute.
pub(super) const ASKS: &CStr = c"ceph.dir.entries";
/// So many wait until somebody asks for their attributes; another one is set right at once.
const MOST: usize = 1024;

/// Those that nobody has looked at since, by their place in the library's memory: what it forgets there is right when it comes back.
#[derive(Default)]
pub(super) struct StaleDirs {
    /// For a look without the lock.
    count: AtomicUsize,
    /// With a number for each time.
    at: Mutex<(HashMap<usize, u64>, u64)>,
}

impl StaleDirs {
    fn at(&self) -> MutexGuard<'_, (HashMap<usize, u64>, u64)> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name is moved out of it. False: there is no room for it.
    pub(super) fn note(&self, dir: *const Inode) -> bool {
        let mut at = self.at();
        let (dirs, times) = &mut *at;
        if dirs.len() >= MOST && !dirs.contains_key(&dir.addr()) {
            return false;
        }
        *times += 1;
        dirs.insert(dir.addr(), *times);
        self.count.store(dirs.len(), SeqCst);
        true
    }

    /// The number of the last time, if it has to be set right.
    pub(super) fn last(&self, dir: *const Inode) -> Option<u64> {
        if self.count.load(SeqCst) == 0 {
            return None;
        }
        self.at().0.get(&dir.addr()).copied()
    }

    /// The cluster has answered a question that was asked after that time.
    pub(super) fn mark_fresh(&self, dir: *const Inode, time: u64) {
        let mut at = self.at();
        if at.0.get(&dir.addr()) == Some(&time) {
            at.0.remove(&dir.addr());
        }
        self.count.store(at.0.len(), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn a_directory_made_stale_during_repair_is_repaired_again() {
        let (left, dir) = (StaleDirs::default(), ptr::without_provenance(8));
        assert_eq!(left.last(dir), None);
        assert!(left.note(dir));
        let first = left.last(dir).unwrap();
        assert!(left.note(dir));
        left.mark_fresh(dir, first);
        let second = left.last(dir).unwrap();
        left.mark_fresh(dir, second);
        assert_eq!(left.last(dir), None);
        let others = (0..MOST + 1).map(|number| left.note(ptr::without_provenance(8 * (number + 2))));
        assert_eq!(others.filter(|noted| *noted).count(), MOST);
    }
}
