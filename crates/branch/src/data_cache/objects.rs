//! The wrapped directories and handles. For other branches a wrapper is what it wraps ([`Object::as_any`]), so an operation on two
//! objects, of which one is wrapped or both are, is the inner branch's.

use super::CacheAccess;
use super::file::DataCacheFile;
use crate::wrappers::forward_to_inner;
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, DirItem, Name, Object, OpenMode, RenameFlags, Result, SetTime,
};

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
            forward_to_inner! {
                fn stat() -> Result<Attr>;
                fn set_mode(mode: u32) -> Result<()>;
                fn set_owner(uid: Option<u32>, gid: Option<u32>) -> Result<()>;
                fn set_times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
                fn get_xattr(name: &CStr, buf: &mut [u8]) -> Result<usize>;
                fn set_xattr(name: &CStr, value: &[u8], flags: u32) -> Result<()>;
                fn list_xattr(buf: &mut [u8]) -> Result<usize>;
                fn remove_xattr(name: &CStr) -> Result<()>;
                fn flags() -> Result<u32>;
                fn set_flags(flags: u32) -> Result<()>;
                fn read_link(buf: &mut [u8]) -> Result<usize>;
                fn as_descriptor() -> Option<BorrowedFd<'_>>;
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
    forward_to_inner! {
        fn stat_at(name: Name<'_>) -> Result<Attr>;
        fn get_xattr_at(name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize>;
        fn set_owner_at(name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        fn set_mode_at(name: Name<'_>, mode: u32) -> Result<()>;
        fn set_times_at(name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
        fn read_link_at(name: Name<'_>, buf: &mut [u8]) -> Result<usize>;
        fn make_dir(name: Name<'_>, mode: u32) -> Result<()>;
        fn make_node(name: Name<'_>, mode: u32, rdev: u64) -> Result<()>;
        fn make_symlink(name: Name<'_>, target: &CStr) -> Result<()>;
        fn remove(name: Name<'_>) -> Result<()>;
        fn remove_dir(name: Name<'_>) -> Result<()>;
        fn link_object(object: &dyn Object, name: Name<'_>) -> Result<()>;
        fn link(name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()>;
        fn rename(name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>, flags: RenameFlags) -> Result<()>;
        fn list(each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()>;
        fn sync_dir() -> Result<()>;
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
