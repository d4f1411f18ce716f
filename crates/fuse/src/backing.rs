//! Backing files of passthrough: one id per node while it is open.
//!
//! The kernel refuses (with EIO to the application) a second id on an inode, even for the same file, and cached
//! I/O beside passthrough. So the first open of a node decides, and every later one follows until the last
//! RELEASE: with the same id, or cached when the file could not be registered.

use crate::session::warn_once;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vellum_sys::fuse_dev;
use vellum_vfs::NodeId;

/// Shards of the table; a power of two.
const SHARDS: usize = 16;

struct Backing {
    file: Arc<OwnedFd>,
    /// None: registering failed, and the node is cached while it is open.
    id: Option<i32>,
    opens: u64,
}

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
}

impl BackingTable {
    fn shard(&self, node: NodeId) -> Option<&Mutex<HashMap<NodeId, Backing>>> {
        self.shards.get(node.0 as usize % SHARDS).map(|shard| &shard.0)
    }

    /// Counts an open of `node` with this file. EIO: the node is open with another file (the filesystem should
    /// have swapped the node id).
    pub(crate) fn open(&self, device: &OwnedFd, node: NodeId, file: &Arc<OwnedFd>) -> Result<Grant, Errno> {
        let mut table = self.shard(node).ok_or(Errno::IO)?.lock();
        if let Some(backing) = table.get_mut(&node) {
            if !Arc::ptr_eq(&backing.file, file) {
                tracing::error!(node = node.0, "two backing files for one node");
                return Err(Errno::IO);
            }
            backing.opens += 1;
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
        table.insert(node, Backing { file: Arc::clone(file), id, opens: 1 });
        Ok(id.map_or(Grant::Cached, Grant::Id))
    }

    /// Takes an open back. At the last one the id is given back to the kernel.
    pub(crate) fn release(&self, device: &OwnedFd, node: NodeId) {
        let Some(shard) = self.shard(node) else { return };
        let mut table = shard.lock();
        let Some(backing) = table.get_mut(&node) else { return };
        backing.opens -= 1;
        if backing.opens > 0 {
            return;
        }
        if let Some(Backing { id: Some(id), .. }) = table.remove(&node)
            && let Err(error) = fuse_dev::backing_close(device, id)
        {
            tracing::debug!(%error, id, "backing id could not be given back");
        }
    }

    /// How many nodes are open with a backing file.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }
}
