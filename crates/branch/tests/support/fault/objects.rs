//! The wrapped objects. An operation on two objects takes the peer out of its wrapper first, because the branch
//! inside knows only its own.

use super::FaultPlan;
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, DirItem, Name, Object, OpenMode, RenameFlags, Result, Seek, SetTime,
};

pub(super) struct FaultDir {
    inner: Arc<dyn BranchDir>,
    plan: Arc<FaultPlan>,
}

pub(super) struct FaultFile {
    inner: Arc<dyn BranchFile>,
    plan: Arc<FaultPlan>,
}

struct FaultObject {
    inner: Arc<dyn Object>,
    plan: Arc<FaultPlan>,
}

impl FaultDir {
    pub(super) fn wrap(inner: Arc<dyn BranchDir>, plan: &Arc<FaultPlan>) -> Arc<dyn BranchDir> {
        Arc::new(Self { inner, plan: Arc::clone(plan) })
    }

    /// The directory inside, if it is wrapped at all.
    fn unwrapped(dir: &dyn BranchDir) -> &dyn BranchDir {
        dir.as_any().downcast_ref::<Self>().map_or(dir, |wrapped| &*wrapped.inner)
    }
}

impl FaultFile {
    pub(super) fn wrap(inner: Arc<dyn BranchFile>, plan: &Arc<FaultPlan>) -> Arc<dyn BranchFile> {
        Arc::new(Self { inner, plan: Arc::clone(plan) })
    }

    fn unwrapped(file: &dyn BranchFile) -> &dyn BranchFile {
        file.as_any().downcast_ref::<Self>().map_or(file, |wrapped| &*wrapped.inner)
    }
}

/// The object inside, whatever kind of wrapper it has.
fn unwrapped_object(object: &dyn Object) -> &dyn Object {
    let any = object.as_any();
    if let Some(file) = any.downcast_ref::<FaultFile>() {
        &*file.inner
    } else if let Some(handle) = any.downcast_ref::<FaultObject>() {
        &*handle.inner
    } else if let Some(dir) = any.downcast_ref::<FaultDir>() {
        &*dir.inner
    } else {
        object
    }
}

/// Operations that the plan counts, as looks or as changes, and that are the inner object's.
macro_rules! forward_to_inner {
    ($($kind:ident fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.plan.$kind()?;
            self.inner.$name($($arg),*)
        })*
    };
}

macro_rules! impl_object {
    ($type:ident) => {
        impl Object for $type {
            forward_to_inner! {
                look fn stat() -> Result<Attr>;
                change fn set_mode(mode: u32) -> Result<()>;
                change fn set_owner(uid: Option<u32>, gid: Option<u32>) -> Result<()>;
                change fn set_times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
                look fn get_xattr(name: &CStr, buf: &mut [u8]) -> Result<usize>;
                change fn set_xattr(name: &CStr, value: &[u8], flags: u32) -> Result<()>;
                look fn list_xattr(buf: &mut [u8]) -> Result<usize>;
                change fn remove_xattr(name: &CStr) -> Result<()>;
                look fn read_link(buf: &mut [u8]) -> Result<usize>;
            }

            fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
                opening(&self.plan, mode)?;
                Ok(FaultFile::wrap(self.inner.reopen(mode)?, &self.plan))
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }
    };
}

impl_object!(FaultDir);
impl_object!(FaultFile);
impl_object!(FaultObject);

/// An open changes something only when it cuts the file.
fn opening(plan: &FaultPlan, mode: OpenMode) -> Result<()> {
    if mode.contains(OpenMode::TRUNCATE) { plan.change() } else { plan.look() }
}

impl BranchFile for FaultFile {
    forward_to_inner! {
        look fn read_at(buf: &mut [u8], offset: u64) -> Result<usize>;
        change fn sync(datasync: bool) -> Result<()>;
        change fn truncate(size: u64) -> Result<()>;
        change fn allocate(mode: u32, offset: u64, len: u64) -> Result<()>;
        look fn seek(offset: u64, whence: Seek) -> Result<u64>;
        look fn version() -> Result<(Attr, Option<u64>)>;
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.plan.write(|| {
            // What becomes of the torn part is nobody's business any more.
            let _ = self.inner.write_at(data.get(..torn_len(offset, data.len())).unwrap_or(data), offset);
        })?;
        self.inner.write_at(data, offset)
    }

    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        let from = Self::unwrapped(from);
        self.plan.write(|| {
            let _ = self.inner.copy_range(
                offset,
                from,
                from_offset,
                torn_len(offset, usize::try_from(len).unwrap_or(usize::MAX)) as u64,
            );
        })?;
        self.inner.copy_range(offset, from, from_offset, len)
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        self.plan.change()?;
        BranchFile::clone_from(&*self.inner, Self::unwrapped(from))
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.inner.descriptor()
    }

    fn lent_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.inner.lent_descriptor()
    }

    fn has_writers(&self) -> bool {
        self.inner.has_writers()
    }
}

impl BranchDir for FaultDir {
    forward_to_inner! {
        look fn stat_at(name: Name<'_>) -> Result<Attr>;
        look fn get_xattr_at(name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize>;
        change fn set_owner_at(name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        change fn set_mode_at(name: Name<'_>, mode: u32) -> Result<()>;
        change fn set_times_at(name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
        look fn read_link_at(name: Name<'_>, buf: &mut [u8]) -> Result<usize>;
        change fn make_dir(name: Name<'_>, mode: u32) -> Result<()>;
        change fn make_node(name: Name<'_>, mode: u32, rdev: u64) -> Result<()>;
        change fn make_symlink(name: Name<'_>, target: &CStr) -> Result<()>;
        change fn remove(name: Name<'_>) -> Result<()>;
        change fn remove_dir(name: Name<'_>) -> Result<()>;
        look fn list(each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()>;
        change fn sync_dir() -> Result<()>;
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        self.plan.look()?;
        Ok(Self::wrap(self.inner.open_dir(name)?, &self.plan))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        opening(&self.plan, mode)?;
        Ok(FaultFile::wrap(self.inner.open_file(name, mode)?, &self.plan))
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        self.plan.look()?;
        Ok(Arc::new(FaultObject { inner: self.inner.hold(name)?, plan: Arc::clone(&self.plan) }))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        self.plan.change()?;
        Ok(FaultFile::wrap(self.inner.create(name, mode)?, &self.plan))
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        self.plan.change()?;
        Ok(FaultFile::wrap(self.inner.create_unnamed(mode)?, &self.plan))
    }

    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()> {
        self.plan.change()?;
        self.inner.link_object(unwrapped_object(object), name)
    }

    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()> {
        self.plan.change()?;
        self.inner.link(name, Self::unwrapped(to), to_name)
    }

    fn rename(
        &self,
        name: Name<'_>,
        to: &dyn BranchDir,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.plan.change()?;
        self.plan.check_flags(flags)?;
        self.inner.rename(name, Self::unwrapped(to), to_name, flags)
    }
}

/// Bytes of a torn write that arrive: about half of them, in whole pages, as the kernel copies them.
fn torn_len(offset: u64, len: usize) -> usize {
    const PAGE: u64 = 4096;
    let end = (offset + len as u64 / 2) / PAGE * PAGE;
    usize::try_from(end.saturating_sub(offset)).unwrap_or(0)
}
