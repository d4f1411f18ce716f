//! A directory of CephFS as a branch, by libcephfs and without a mount.
//!
//! Everything is relative to an inode and names one component, so no symbolic link is ever followed and nothing leads out of the
//! root. An object holds a reference to its inode in the client's memory. What Linux checks before a filesystem is asked is checked
//! here, for Linux sees nothing of this one.

mod dir;
mod handle;
mod uncached_read;
mod writer;

pub use self::writer::{CephClaim, CephWriter, WRITER as CEPH_WRITER};
pub use vellum_sys::ceph::{
    CephAccess, CephClient, CephLineage, CephRefusal, CephSetup, CephTrouble, calls as ceph_calls,
    connected as ceph_clients, load as load_ceph, on_expulsion,
};

use self::handle::{CephDir, InodeHandle};
use self::writer::Right;
use crate::convert::stat_fs;
use crate::path;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_sys::ceph::{CephInode, WritePolicy};
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, Error, FileKind, Name, OpenMode, Result, StatFs};

/// A directory of CephFS.
pub struct CephBranch {
    client: Arc<CephClient>,
    root: Arc<CephDir>,
    path: String,
    /// The device number of all that is in it.
    device: u64,
    /// The right to write to it.
    _right: Option<Right>,
}

impl CephBranch {
    /// Takes the directory at `path` below the client's root: components joined by `/`, perhaps with one before them; no symbolic
    /// link on the way is followed. `.snap` and a name after a directory lead into its snapshot of that name. ENOENT, ENOTDIR, EINVAL, ...
    pub fn open(client: &Arc<CephClient>, path: &CStr) -> Result<Arc<Self>> {
        Self::sent(client, path, WritePolicy::Later).map(Arc::new)
    }

    /// What its root is, by device and inode number, and the count of that inode's changes, if the cluster has one.
    pub fn version(&self) -> Result<((u64, u64), Option<u64>)> {
        let (stat, count) = self.root.inode_handle().inode.stat_version()?;
        Ok(((stat.dev, stat.ino), count))
    }

    /// Whether it lies in a snapshot, where nothing changes any more.
    fn is_snapshot(&self) -> bool {
        self.device != self.client.device()
    }

    /// As [`CephBranch::open`]; when the cluster is given changes is said.
    fn sent(client: &Arc<CephClient>, path: &CStr, sending: WritePolicy) -> Result<Self> {
        let bytes = path.to_bytes();
        let fail = |error: Error| error.doing("open branch").at(bytes);
        let top = client.root().map_err(|e| fail(e.into()))?.sent(sending);
        let top = Arc::new(CephDir(InodeHandle { inode: Arc::new(top), kind: FileKind::Directory }));
        let below = bytes.strip_prefix(b"/").unwrap_or(bytes);
        let (root, device) = open_root(&top, below, client.device()).map_err(fail)?;
        let path = format!("ceph:/{}", String::from_utf8_lossy(below));
        Ok(Self { client: Arc::clone(client), root, path, device, _right: None })
    }
}

/// What stands for the snapshots of the directory before it, in the path of a layer as everywhere in CephFS.
const SNAPSHOTS: &[u8] = b".snap";

/// The root of a branch and its device number. EINVAL: the path leads to no directory, but to all snapshots of one.
fn open_root(top: &Arc<CephDir>, path: &[u8], device: u64) -> Result<(Arc<CephDir>, u64)> {
    let (mut dir, mut found) = (Arc::clone(top), device);
    if path.is_empty() {
        return Ok((dir, found));
    }
    path::check(path)?;
    let mut components = path.split(|&byte| byte == b'/');
    while let Some(component) = components.next() {
        let mut name = component;
        if component == SNAPSHOTS {
            name = components.next().ok_or(Error::new(Errno::INVAL, "open all snapshots"))?;
            dir = Arc::new(dir.snapshots()?);
        }
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let (next, attr) = dir.enter(Name::new(&name)?)?;
        (dir, found) = (Arc::new(next), attr.dev);
    }
    Ok((dir, found))
}

/// One component after the other.
fn walk(from: &Arc<CephDir>, path: &[u8]) -> Result<Arc<CephDir>> {
    let mut dir = Arc::clone(from);
    if path.is_empty() {
        return Ok(dir);
    }
    path::check(path)?;
    for component in path.split(|&byte| byte == b'/') {
        let name = CString::new(component).map_err(|_| Errno::INVAL)?;
        dir = Arc::new(dir.enter(Name::new(&name)?)?.0);
    }
    Ok(dir)
}

/// Most directories between a file and the root of its branch.
const DEPTH_MAX: usize = 4096;

impl CephBranch {
    /// Whether an inode lies in the branch, by the directories above it up to the root.
    fn holds(&self, inode: &CephInode) -> Result<bool> {
        let root = self.root.inode_handle().inode.stat()?.ino;
        let (mut dir, mut stat) = inode.parent()?;
        let mut below = inode.stat()?.ino;
        for _ in 0..DEPTH_MAX {
            if stat.ino == root {
                return Ok(true);
            }
            // The filesystem's root, and what was removed, are in no directory.
            if stat.ino == below {
                return Ok(false);
            }
            below = stat.ino;
            (dir, stat) = dir.parent()?;
        }
        Ok(false)
    }
}

impl Branch for CephBranch {
    fn root(&self) -> Arc<dyn BranchDir> {
        Arc::<CephDir>::clone(&self.root)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        Ok(walk(&self.root, path.to_bytes())?)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { fsid: self.device, ..stat_fs(&self.client.stat_fs()?) })
    }

    /// No monitor is asked.
    fn fsid(&self) -> Result<u64> {
        Ok(self.device)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.client.sync()?)
    }

    fn find_file(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        if self.is_snapshot() {
            return Err(Errno::ROFS.into());
        }
        let root = &self.root.inode_handle().inode;
        let inode = match self.client.inode(ino) {
            Ok(inode) => inode.sent(root.sending()),
            Err(Errno::STALE) => return Err(Errno::NOENT.into()),
            Err(errno) => return Err(errno.into()),
        };
        let is_file = FileKind::from_mode(inode.stat()?.mode) == Some(FileKind::Regular);
        if !is_file || !self.holds(&inode)? {
            return Err(Errno::NOENT.into());
        }
        InodeHandle { inode: Arc::new(inode), kind: FileKind::Regular }.open(OpenMode::READ | OpenMode::WRITE)
    }

    fn exchanges(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}
