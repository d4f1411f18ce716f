//! A directory of CephFS as a branch, by libcephfs and without a mount.
//!
//! Everything is relative to an inode and names one component, so no symbolic link is ever followed and nothing leads out of the
//! root. An object holds a reference to its inode in the client's memory. What Linux checks before a filesystem is asked is checked
//! here, for Linux sees nothing of this one.

mod dir;
mod held;
mod writer;

pub use self::writer::{CephClaim, CephWriter};
pub use vellum_sys::ceph::{
    CephAccess, CephClient, CephLineage, CephRefusal, CephSetup, CephTrouble, connected as ceph_clients,
    load as load_ceph, on_expulsion,
};

use self::held::{CephDir, Held};
use self::writer::Right;
use crate::convert::stat_fs;
use crate::path;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_vfs::{Branch, BranchDir, Errno, Error, FileKind, Name, Result, StatFs};

/// A directory of CephFS.
pub struct CephBranch {
    client: Arc<CephClient>,
    root: Arc<CephDir>,
    path: String,
    /// The right to write to it.
    _right: Option<Right>,
}

impl CephBranch {
    /// Takes the directory at `path` below the client's root: components joined by `/`, perhaps with one before them; no symbolic
    /// link on the way is followed. ENOENT, ENOTDIR, EINVAL, ...
    pub fn open(client: &Arc<CephClient>, path: &CStr) -> Result<Arc<Self>> {
        let bytes = path.to_bytes();
        let fail = |error: Error| error.doing("open branch").at(bytes);
        let top =
            Held { inode: Arc::new(client.root().map_err(|e| fail(e.into()))?), kind: FileKind::Directory };
        let top = Arc::new(CephDir(top));
        let below = bytes.strip_prefix(b"/").unwrap_or(bytes);
        let root = walk(&top, below).map_err(fail)?;
        let path = format!("ceph:/{}", String::from_utf8_lossy(below));
        Ok(Arc::new(Self { client: Arc::clone(client), root, path, _right: None }))
    }
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
        dir = Arc::new(dir.enter(Name::new(&name)?)?);
    }
    Ok(dir)
}

impl Branch for CephBranch {
    fn root(&self) -> Arc<dyn BranchDir> {
        Arc::<CephDir>::clone(&self.root)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        Ok(walk(&self.root, path.to_bytes())?)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(stat_fs(&self.client.stat_fs()?))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.client.sync()?)
    }

    fn exchanges(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        self.path.clone()
    }
}
