//! Backing files of passthrough: one id per node while it is open.
//!
//! The kernel refuses (with EIO to the application) a second id on an inode, even for the same file, and cached
//! I/O beside passthrough. So the first open of a node decides, and every later one follows until the last
//! RELEASE: with the same id, or cached when the file could not be registered.
//!
//! With the id the kernel holds the file by itself. No descriptor is kept for it, so that clients can have more files open
//! than the service may.

use crate::warn_once;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use vellum_sys::fuse_dev;
use vellum_vfs::{Filesystem, NodeId, OwnOpens};

/// Shards of the table; a power of two.
const SHARDS: usize = 16;

struct Backing {
    /// Which file it is.
    inode: u64,
    /// None: registering failed, and the node is cached while it is open.
    id: Option<i32>,
    opens: u64,
}

/// The identity of copies that were lent: all of a node are alike.
const COPY: u64 = u64::MAX;

/// How an open that asked for passthrough is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// With this backing id.
    Id(i32),
    /// Through the page cache.
    Cached,
}

/// A part of the table, on cache lines of its own: files in different parts have nothing in common.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<HashMap<NodeId, Backing>>);

/// The backing files of a session.
#[derive(Default)]
pub(crate) struct BackingTable {
    shards: [Shard; SHARDS],
    warned: AtomicBool,
    /// A successor of the process must find the opens again.
    kept: bool,
}

impl Backing {
    /// The file is known by the id (plus one; 0: none) and its identity.
    fn to_own_opens(&self) -> OwnOpens {
        let id = self.id.map_or(0, |id| u64::from(id.cast_unsigned()) + 1);
        OwnOpens { opens: self.opens, file: [id, self.inode] }
    }

    fn close_file(&self, device: &OwnedFd) {
        if let Some(id) = self.id
            && let Err(error) = fuse_dev::backing_close(device, id)
        {
            tracing::debug!(%error, id, "backing id could not be given back");
        }
    }

    fn from_own_opens(kept: OwnOpens) -> Option<Self> {
        let OwnOpens { opens, file: [_, inode] } = kept;
        (opens > 0).then_some(Self { inode, id: kept_id(kept), opens })
    }
}

/// The id that is written down, whatever the number of opens is.
fn kept_id(kept: OwnOpens) -> Option<i32> {
    kept.file[0].checked_sub(1).map(|id| (id as u32).cast_signed())
}

/// Tells files apart, as long as they are open; 0 where it cannot.
fn identity(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).map_or(0, |stat| stat.st_ino ^ stat.st_dev.rotate_left(40))
}

impl BackingTable {
    /// `kept`: opens are written down for a successor.
    pub(crate) fn new(kept: bool) -> Self {
        Self { kept, ..Self::default() }
    }

    fn shard(&self, node: NodeId) -> Option<&Mutex<HashMap<NodeId, Backing>>> {
        self.shards.get(node.0 as usize % SHARDS).map(|shard| &shard.0)
    }

    /// Counts an open of `node` with this file, or with a copy of it. EIO: the node is open with another file (the filesystem should
    /// have swapped the node id).
    pub(crate) fn open(
        &self,
        device: &OwnedFd,
        fs: &(impl Filesystem + ?Sized),
        node: NodeId,
        (file, is_copy): (&OwnedFd, bool),
    ) -> Result<Grant, Errno> {
        let inode = if is_copy { COPY } else { identity(file) };
        let mut table = self.shard(node).ok_or(Errno::IO)?.lock();
        self.recall(&mut table, fs, node);
        if let Some(backing) = table.get_mut(&node) {
            if backing.inode != inode {
                tracing::error!(node = node.0, "two backing files for one node");
                return Err(Errno::IO);
            }
            backing.opens += 1;
            if self.kept {
                fs.keep_own_opens(node, backing.to_own_opens());
            }
            return Ok(backing.id.map_or(Grant::Cached, Grant::Id));
        }
        let id = match fuse_dev::backing_open(device, file) {
            Ok(id) => Some(id),
            Err(error) => {
                warn_once(&self.warned, || {
                    tracing::warn!(%error, "passthrough refused by the kernel, files are cached instead");
                });
                None
            }
        };
        let backing = Backing { inode, id, opens: 1 };
        if self.kept {
            fs.keep_own_opens(node, backing.to_own_opens());
        }
        table.insert(node, backing);
        Ok(id.map_or(Grant::Cached, Grant::Id))
    }

    /// Counts an open to read of a node that is open with a backing file already, which the kernel would not let be cached beside. None: it
    /// is not.
    pub(crate) fn join(&self, fs: &(impl Filesystem + ?Sized), node: NodeId) -> Option<i32> {
        let mut table = self.shard(node)?.lock();
        self.recall(&mut table, fs, node);
        let backing = table.get_mut(&node)?;
        let id = backing.id?;
        backing.opens += 1;
        if self.kept {
            fs.keep_own_opens(node, backing.to_own_opens());
        }
        Some(id)
    }

    /// Takes an open back. At the last one the id is given back to the kernel. `begins` is called before anything is done.
    pub(crate) fn release(
        &self,
        device: &OwnedFd,
        fs: &(impl Filesystem + ?Sized),
        node: NodeId,
        begins: &dyn Fn(),
    ) {
        let Some(shard) = self.shard(node) else { return };
        let mut table = shard.lock();
        self.recall(&mut table, fs, node);
        // A release that is carried out twice takes back more than this.
        begins();
        let Some(backing) = table.get_mut(&node) else { return };
        backing.opens -= 1;
        if self.kept {
            fs.keep_own_opens(node, backing.to_own_opens());
        }
        if backing.opens > 0 {
            return;
        }
        if let Some(backing) = table.remove(&node) {
            backing.close_file(device);
            if self.kept {
                // Not before: a successor gives back what is written down without opens.
                fs.keep_own_opens(node, OwnOpens::default());
            }
        }
    }

    /// Gives back what a predecessor has got of the kernel and not written down, or not given back with the last open. Nobody opens anything
    /// meanwhile. `probe`: any file.
    pub(crate) fn resume(&self, device: &OwnedFd, fs: &(impl Filesystem + ?Sized), probe: impl AsFd) {
        /// Ids are given out one after the other: so many at most were on their way in a process.
        const RECENT: i32 = 256;
        let (mut used, mut ended) = (HashSet::new(), Vec::new());
        fs.each_own_opens(&mut |node, opens| match Backing::from_own_opens(opens) {
            Some(backing) => used.extend(backing.id),
            None => ended.push((node, kept_id(opens))),
        });
        for (node, id) in ended {
            if let Some(id) = id
                && !used.contains(&id)
            {
                // It may have been given back.
                let _ = fuse_dev::backing_close(device, id);
            }
            fs.keep_own_opens(node, OwnOpens::default());
        }
        let Ok(next) = fuse_dev::backing_open(device, probe) else { return };
        let recent = next.saturating_sub(RECENT).max(1)..next;
        for id in recent.filter(|id| !used.contains(id)).chain([next]) {
            let _ = fuse_dev::backing_close(device, id);
        }
    }

    /// The kernel has forgotten a node, of which `kept` opens are written down: those are of requests that were carried out twice, for it
    /// forgets what is open last of all.
    pub(crate) fn end(
        &self,
        device: &OwnedFd,
        fs: &(impl Filesystem + ?Sized),
        node: NodeId,
        kept: OwnOpens,
    ) {
        let Some(shard) = self.shard(node) else { return };
        let mut table = shard.lock();
        // Looked up and opened again meanwhile.
        if fs.own_opens(node) != OwnOpens::default() {
            return;
        }
        if let Some(backing) = table.remove(&node).or_else(|| Backing::from_own_opens(kept)) {
            backing.close_file(device);
        }
    }

    /// Whether opens are written down.
    pub(crate) const fn records_opens(&self) -> bool {
        self.kept
    }

    /// Finds the opens of a predecessor again.
    fn recall(&self, table: &mut HashMap<NodeId, Backing>, fs: &(impl Filesystem + ?Sized), node: NodeId) {
        if self.kept
            && let Entry::Vacant(vacant) = table.entry(node)
            && let Some(backing) = Backing::from_own_opens(fs.own_opens(node))
        {
            vacant.insert(backing);
        }
    }

    /// How many nodes are open with a backing file.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }
}
