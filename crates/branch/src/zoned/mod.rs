//! A directory in a store on a zoned device, beside the images of checkpoints there.
//!
//! The tree of files is in memory, and each change of it is brought to the store, which writes it down in its log. Contents wait in memory for
//! a while, so that small writes become large ones.

mod contents;
mod inode_format;
mod medium;
mod ranges;
mod tree;

pub use tree::ZonedTree;

use crate::path;
use crate::tree::{Dir, IO_SIZE, Pin, ROOT};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_vfs::{Branch, BranchDir, Errno, Name, Result, StatFs};

/// A directory of a tree in a store.
pub struct ZonedBranch {
    tree: Arc<ZonedTree>,
    root: Arc<Dir<ZonedTree>>,
    shown: String,
}

impl ZonedBranch {
    /// The directory at `path` (components joined by `/`, no leading slash, empty for the root). `shown`: what messages call it.
    pub fn open(tree: &Arc<ZonedTree>, path: &CStr, shown: String) -> Result<Arc<Self>> {
        let root = tree.act(|state| Pin::new(tree, state, ROOT))?;
        let mut root = Dir { pin: root };
        if !path.is_empty() {
            path::check(path.to_bytes())?;
            for component in path.to_bytes().split(|&byte| byte == b'/') {
                let component = CString::new(component).map_err(|_| Errno::INVAL)?;
                let name = Name::new(&component)?;
                let pin = tree.act(|state| {
                    let ino = state.find(root.pin.ino, name)?;
                    state.inode(ino)?.entries()?;
                    Pin::new(tree, state, ino)
                })?;
                root = Dir { pin };
            }
        }
        Ok(Arc::new(Self { tree: Arc::clone(tree), root: Arc::new(root), shown }))
    }

    #[must_use]
    pub const fn tree(&self) -> &Arc<ZonedTree> {
        &self.tree
    }
}

impl Branch for ZonedBranch {
    fn root(&self) -> Arc<dyn BranchDir> {
        Arc::<Dir<ZonedTree>>::clone(&self.root)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        path::walk(self.root(), path)
    }

    fn statfs(&self) -> Result<StatFs> {
        /// "vlmz".
        const MAGIC: u64 = 0x766c_6d7a;
        let (blocks, left) = self.tree.store().space();
        let free = left.saturating_sub(self.tree.waiting_blocks());
        let inodes = self.tree.inodes();
        Ok(StatFs {
            frsize: self.tree.store().block_size(),
            bsize: IO_SIZE,
            blocks,
            bfree: free,
            bavail: free,
            files: inodes + free,
            ffree: free,
            namelen: 255,
            fsid: self.tree.dev(),
            fstype: MAGIC,
        })
    }

    fn sync(&self) -> Result<()> {
        self.tree.sync()
    }

    fn exchanges(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.shown.clone()
    }
}
