//! Files of the upper layer that have lost their last name, and that somebody may have open.
//!
//! A successor finds such a file by a descriptor, where its storage has some. Where it has none, the file keeps a name, in the work directory:
//! one that nobody else sees, made of its inode number, which the ledger has. It goes with the file's last node, and with the next
//! mount.

use crate::layers::layer::c_string;
use crate::nodes::recovery::ledger::Ledger;
use crate::sync::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::sync::{Arc, Weak};
use vellum_vfs::{BranchDir, Errno, Name, Result};

pub(crate) struct OrphanNames {
    dir: Arc<dyn BranchDir>,
    /// By inode number: those that are there, or are about to be.
    users: Mutex<HashMap<u64, OrphanUsers>>,
}

/// Who needs a name.
#[derive(Default)]
struct OrphanUsers {
    /// Files of this process: mostly one, but a file that a predecessor knew by two nodes, or by a name of which this process has not
    /// heard, may be two here.
    live: Weak<OrphanName>,
    /// Records of a predecessor for which no node was made again as yet.
    left: usize,
}

/// A name in the work directory, which is taken away when this is dropped.
pub(crate) struct OrphanName {
    all: Arc<OrphanNames>,
    /// The file's inode number.
    pub(crate) number: u64,
}

impl Drop for OrphanName {
    fn drop(&mut self) {
        self.all.remove_unneeded(self.number);
    }
}

/// The name of a file.
pub(crate) fn orphan_name(number: u64) -> Box<CStr> {
    c_string(format!("@{number:x}").into_bytes())
}

impl OrphanNames {
    /// Those that a predecessor has left in the work directory and written down.
    pub(crate) fn open(dir: &Arc<dyn BranchDir>, ledger: &Ledger) -> Result<Arc<Self>> {
        let mut left: HashMap<Box<CStr>, (u64, usize)> = HashMap::new();
        for number in ledger.records().filter_map(|record| record.orphan) {
            left.entry(orphan_name(number)).or_insert((number, 0)).1 += 1;
        }
        let mut users = HashMap::new();
        if !left.is_empty() {
            dir.list(&mut |item| {
                if let Some(&(number, left)) = left.get(item.name.as_c_str()) {
                    users.insert(number, OrphanUsers { live: Weak::new(), left });
                }
                Ok(())
            })?;
        }
        Ok(Arc::new(Self { dir: Arc::clone(dir), users: Mutex::new(users) }))
    }

    pub(crate) fn names(&self) -> BTreeSet<Box<CStr>> {
        self.users.lock().keys().copied().map(orphan_name).collect()
    }

    /// The name for a file, and whether it is there already: a second link to one inode cannot be renamed to the first.
    pub(crate) fn take(self: &Arc<Self>, number: u64) -> (Arc<OrphanName>, bool) {
        let mut users = self.users.lock();
        let is_there = users.contains_key(&number);
        let users = users.entry(number).or_default();
        if let Some(orphan) = users.live.upgrade() {
            return (orphan, is_there);
        }
        let orphan = Arc::new(OrphanName { all: Arc::clone(self), number });
        users.live = Arc::downgrade(&orphan);
        (orphan, is_there)
    }

    /// A predecessor's record does not need its name any more.
    pub(crate) fn release(&self, number: u64) {
        if let Some(users) = self.users.lock().get_mut(&number) {
            users.left = users.left.saturating_sub(1);
        }
        self.remove_unneeded(number);
    }

    fn remove_unneeded(&self, number: u64) {
        // Held until the name has gone, so that nobody takes it meanwhile.
        let mut all = self.users.lock();
        if !all.get(&number).is_some_and(|users| users.left == 0 && users.live.strong_count() == 0) {
            return;
        }
        all.remove(&number);
        let name = orphan_name(number);
        if let Err(error) = Name::new(&name).map_err(Into::into).and_then(|name| self.dir.remove(name))
            && error.errno() != Errno::NOENT
        {
            tracing::debug!(%error, "a removed file keeps its name in the work directory");
        }
    }
}
