//! Directories whose files are written behind. Names come and go at once.

use super::LogAccess;
use super::file::{WritebackFile, WritebackObject, opened, wrap_file, wrap_object};
use std::any::Any;
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, BranchFile, Name, Object, OpenMode, RenameFlags, Result, SetTime};

pub(super) struct WritebackDir {
    inner: Arc<dyn BranchDir>,
    way: LogAccess,
}

/// The object inside, whatever kind of wrapper it has.
pub(super) fn unwrapped_object(object: &dyn Object) -> &dyn Object {
    let any = object.as_any();
    if let Some(file) = any.downcast_ref::<WritebackFile>() {
        &*file.inner
    } else if let Some(held) = any.downcast_ref::<WritebackObject>() {
        &*held.inner
    } else if let Some(dir) = any.downcast_ref::<WritebackDir>() {
        &*dir.inner
    } else {
        object
    }
}

impl WritebackDir {
    pub(super) fn wrap(inner: Arc<dyn BranchDir>, way: &LogAccess) -> Arc<dyn BranchDir> {
        Arc::new(Self { inner, way: way.clone() })
    }

    /// The directory inside, if it is wrapped at all, and whether it is one of the work directory.
    fn unwrapped(dir: &dyn BranchDir) -> (&dyn BranchDir, bool) {
        let wrapped = dir.as_any().downcast_ref::<Self>();
        wrapped.map_or((dir, false), |wrapped| (&*wrapped.inner, wrapped.way.is_work))
    }

    /// Attributes of what is about to lose this name; None: there is nothing, or that does not matter.
    fn unlinked_attr(&self, dir: &dyn BranchDir, name: Name<'_>) -> Option<Attr> {
        dir.stat_at(name).ok().filter(Attr::is_file)
    }
}

impl Object for WritebackDir {
    fn inner(&self) -> Result<&dyn Object> {
        Ok(&*self.inner)
    }

    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        self.inner.reopen(mode)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl BranchDir for WritebackDir {
    fn inner_dir(&self) -> Result<&dyn BranchDir> {
        Ok(&*self.inner)
    }

    fn set_owner_at(&self, name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        match self.inner.hold(name) {
            Ok(held) => self.way.set_owner(&*held, uid, gid),
            // Arguments are looked at before names are.
            Err(_) => self.inner.set_owner_at(name, uid, gid),
        }
    }

    fn set_mode_at(&self, name: Name<'_>, mode: u32) -> Result<()> {
        match self.inner.hold(name) {
            Ok(held) => self.way.set_mode(&*held, mode),
            // Arguments are looked at before names are.
            Err(_) => self.inner.set_mode_at(name, mode),
        }
    }

    fn set_times_at(&self, name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        match self.inner.hold(name) {
            Ok(held) => self.way.set_times(&*held, atime, mtime),
            // Arguments are looked at before names are.
            Err(_) => self.inner.set_times_at(name, atime, mtime),
        }
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        Ok(Self::wrap(self.inner.open_dir(name)?, &self.way))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        opened(&self.way, mode, || self.inner.hold(name), || self.inner.open_file(name, mode))
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        Ok(wrap_object(self.inner.hold(name)?, &self.way))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        Ok(wrap_file(self.inner.create(name, mode)?, &self.way))
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        Ok(wrap_file(self.inner.create_unnamed(mode)?, &self.way))
    }

    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()> {
        let object = unwrapped_object(object);
        self.way.writeback.before_another_name(&object.stat()?);
        self.inner.link_object(object, name)
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        let loses = self.unlinked_attr(&*self.inner, name);
        self.inner.remove(name)?;
        loses.iter().for_each(|attr| self.way.writeback.note_unlinked(attr));
        Ok(())
    }

    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()> {
        if let Some(attr) = self.unlinked_attr(&*self.inner, name) {
            self.way.writeback.before_another_name(&attr);
        }
        self.inner.link(name, Self::unwrapped(to).0, to_name)
    }

    fn rename(
        &self,
        name: Name<'_>,
        to: &dyn BranchDir,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (to, to_work) = Self::unwrapped(to);
        // What goes to the work directory is about to be removed.
        if !to_work && let Some(attr) = self.unlinked_attr(&*self.inner, name) {
            self.way.writeback.before_another_name(&attr);
        }
        let replaced =
            if flags.contains(RenameFlags::EXCHANGE) { None } else { self.unlinked_attr(to, to_name) };
        let moved = replaced.as_ref().and_then(|_| self.unlinked_attr(&*self.inner, name));
        self.inner.rename(name, to, to_name, flags)?;
        // Two names of one file both stay.
        let replaced = replaced.filter(|old| moved.is_none_or(|moved| moved.ino != old.ino));
        replaced.iter().for_each(|attr| self.way.writeback.note_unlinked(attr));
        Ok(())
    }
}
