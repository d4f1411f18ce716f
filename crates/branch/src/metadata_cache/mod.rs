//! A branch around another one that nobody changes, of which nothing is asked twice.
//!
//! Once somebody has asked, it is known of an object what its attributes and extended attributes are, where a symbolic link leads, and
//! which version of its contents a file has; of a directory what its names lead to, which are missing, and which there are. A file that
//! is known is opened below when contents of it have to be fetched, and not before: for what a cache above has, nobody is asked.
//!
//! All who have a layer share one such branch, and all layers of a process one [`MetadataCache`]. It holds so many bytes; where it is full,
//! all is forgotten, and learned anew.
//!
//! What is known is recalled as a whole ([`MetadataCache::recall`]). A file that is opened below and is not what was known shows that
//! somebody has changed the layer all the same. Handles go on with the objects that they hold, and ask them again.
//!
//! Nothing can be changed through it (EROFS), and files have no descriptors: it is for storages that have none.

mod dir;
mod file;
mod store;

pub use self::store::MetadataCache;

use self::dir::MetadataCacheDir;
use self::store::Node;
use crate::path;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, Result};

/// A branch that nobody changes.
pub struct MetadataCacheBranch {
    inner: Arc<dyn Branch>,
    root: Arc<Node>,
}

impl MetadataCacheBranch {
    /// Of which nothing is known yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Branch>, knowledge: &Arc<MetadataCache>) -> Arc<Self> {
        Arc::new(Self { inner, root: Node::new(knowledge) })
    }
}

impl Branch for MetadataCacheBranch {
    fn inner(&self) -> Result<&dyn Branch> {
        Ok(&*self.inner)
    }

    fn root(&self) -> Arc<dyn BranchDir> {
        Arc::new(MetadataCacheDir { node: Arc::clone(&self.root), inner: self.inner.root() })
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        path::walk(self.root(), path)
    }

    /// Nothing is ever written.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn find_file(&self, _ino: u64) -> Result<Arc<dyn BranchFile>> {
        Err(Errno::ROFS.into())
    }
}
