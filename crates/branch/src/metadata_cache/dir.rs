//! Directories, and handles to anything.

use super::file::ObjectLocation;
use super::store::{CachedLookup, Node};
use std::any::Any;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock};
use vellum_vfs::{
    Attr, BranchDir, BranchFile, DirItem, Errno, Error, FileKind, Name, Object, OpenMode, Result,
};

pub(super) struct MetadataCacheDir {
    pub(super) node: Arc<Node>,
    pub(super) inner: Arc<dyn BranchDir>,
}

impl MetadataCacheDir {
    /// What a name leads to. ENOENT.
    fn find(&self, name: Name<'_>) -> Result<(Arc<Node>, Attr)> {
        let missing = || Error::from(Errno::NOENT);
        let turn = match self.node.look(name) {
            CachedLookup::Found(node, attr) => return Ok((node, attr)),
            CachedLookup::Missing => return Err(missing()),
            CachedLookup::Unknown(turn) => turn,
        };
        match self.inner.stat_at(name) {
            Ok(attr) => {
                let node = self.node.learn_name(turn, name, Some(attr)).ok_or_else(missing)?;
                Ok((node, attr))
            }
            Err(error) => {
                if error.errno() == Errno::NOENT {
                    self.node.learn_name(turn, name, None);
                }
                Err(error)
            }
        }
    }

    fn place(&self, name: Name<'_>) -> Result<(ObjectLocation, Attr)> {
        let (node, attr) = self.find(name)?;
        Ok((ObjectLocation { dir: Arc::clone(&self.inner), name: name.as_c_str().into(), node }, attr))
    }
}

impl Object for MetadataCacheDir {
    fn stat(&self) -> Result<Attr> {
        self.node.attr(|| self.inner.stat())
    }

    fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.node.xattr(name, buf, |buf| self.inner.get_xattr(name, buf))
    }

    fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
        self.node.xattr_list(buf, |buf| self.inner.list_xattr(buf))
    }

    fn flags(&self) -> Result<u32> {
        self.inner.flags()
    }

    fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
        self.inner.read_link(buf)
    }

    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        self.inner.reopen(mode)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl BranchDir for MetadataCacheDir {
    fn stat_at(&self, name: Name<'_>) -> Result<Attr> {
        Ok(self.find(name)?.1)
    }

    fn get_xattr_at(&self, name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.find(name)?.0.xattr(attr, buf, |buf| self.inner.get_xattr_at(name, attr, buf))
    }

    fn read_link_at(&self, name: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        self.find(name)?.0.target(buf, |buf| self.inner.read_link_at(name, buf))
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        let (node, attr) = self.find(name)?;
        let inner = match node.handle() {
            Ok(handle) => handle,
            // It says what else it is.
            Err(_) if attr.kind() != FileKind::Directory => return self.inner.open_dir(name),
            Err(turn) => {
                let handle = self.inner.open_dir(name)?;
                node.learn_handle(turn, &handle);
                handle
            }
        };
        Ok(Arc::new(Self { node, inner }))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        let (place, attr) = self.place(name)?;
        place.open(attr.kind(), mode)
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        let (place, attr) = self.place(name)?;
        Ok(Arc::new(MetadataCacheObject { place, kind: attr.kind(), inner: OnceLock::new() }))
    }

    fn list(&self, each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()> {
        let turn = match self.node.list() {
            Ok(list) => {
                return list.iter().try_for_each(|item| {
                    each(DirItem { name: Name::new(&item.name)?, ino: item.ino, kind: item.kind })
                });
            }
            Err(turn) => turn,
        };
        let (mut items, mut is_kept) = (self.node.items(), true);
        self.inner.list(&mut |item| {
            is_kept = is_kept && items.add(item.name, item.ino, item.kind);
            each(item)
        })?;
        if is_kept {
            self.node.learn_list(turn, items);
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<()> {
        Ok(())
    }
}

/// Anything in a directory. It is held below when something has to be asked.
struct MetadataCacheObject {
    place: ObjectLocation,
    kind: FileKind,
    inner: OnceLock<Arc<dyn Object>>,
}

impl MetadataCacheObject {
    fn lower_object(&self) -> Result<&dyn Object> {
        if let Some(inner) = self.inner.get() {
            return Ok(&**inner);
        }
        let inner = self
            .place
            .dir
            .hold(Name::new(&self.place.name)?)
            .map_err(|error| self.place.missing_error(error))?;
        Ok(&**self.inner.get_or_init(|| inner))
    }
}

impl Object for MetadataCacheObject {
    fn stat(&self) -> Result<Attr> {
        self.place.node.attr(|| self.lower_object()?.stat())
    }

    fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.place.node.xattr(name, buf, |buf| self.lower_object()?.get_xattr(name, buf))
    }

    fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
        self.place.node.xattr_list(buf, |buf| self.lower_object()?.list_xattr(buf))
    }

    fn flags(&self) -> Result<u32> {
        self.lower_object()?.flags()
    }

    fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
        self.place.node.target(buf, |buf| self.lower_object()?.read_link(buf))
    }

    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        self.place.clone().open(self.kind, mode)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
