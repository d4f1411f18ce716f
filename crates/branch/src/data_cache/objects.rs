//! The wrapped directories and handles. For other branches a wrapper is what it wraps ([`Object::as_any`]), so an operation on two
//! objects, of which one is wrapped or both are, is the inner branch's.

use super::CacheAccess;
use super::file::DataCacheFile;
use std::any::Any;
use std::sync::Arc;
use vellum_vfs::{BranchDir, BranchFile, Name, Object, OpenMode, Result};

/// A directory, whose files are opened to be read through the cache.
pub(super) struct DataCacheDir {
    pub(super) inner: Arc<dyn BranchDir>,
    pub(super) way: Arc<CacheAccess>,
}

/// A handle, which may be one of a regular file.
pub(super) struct DataCacheObject {
    pub(super) inner: Arc<dyn Object>,
    pub(super) way: Arc<CacheAccess>,
}

macro_rules! impl_object {
    ($type:ident) => {
        impl Object for $type {
            fn inner(&self) -> Result<&dyn Object> {
                Ok(&*self.inner)
            }

            fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
                self.way.opened(self.inner.reopen(CacheAccess::below(mode))?, mode)
            }

            fn as_any(&self) -> &dyn Any {
                self.inner.as_any()
            }
        }
    };
}

impl_object!(DataCacheFile);
impl_object!(DataCacheDir);
impl_object!(DataCacheObject);

impl BranchDir for DataCacheDir {
    fn inner_dir(&self) -> Result<&dyn BranchDir> {
        Ok(&*self.inner)
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        Ok(self.way.wrap_dir(self.inner.open_dir(name)?))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        self.way.opened(self.inner.open_file(name, CacheAccess::below(mode))?, mode)
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        Ok(self.way.wrap_object(self.inner.hold(name)?))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        self.way.opened(self.inner.create(name, mode)?, OpenMode::READ | OpenMode::WRITE)
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        self.way.opened(self.inner.create_unnamed(mode)?, OpenMode::READ | OpenMode::WRITE)
    }
}
