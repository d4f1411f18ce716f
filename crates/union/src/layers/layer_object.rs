//! Something in a layer that can be looked at or changed.

use crate::layers::Layers;
use crate::nodes::node::{Dentry, Dir, FileState, InodeLocation};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, BranchFile, Errno, Error, Name, Object, OpenMode, Result, SetTime};

/// An entry of a directory, or a held object.
pub(crate) enum Target<'a> {
    Entry(Arc<dyn BranchDir>, &'a CStr),
    /// A held object.
    Object(Arc<dyn Object>),
}

impl Target<'_> {
    pub(crate) fn stat(&self) -> Result<Attr> {
        match self {
            Self::Entry(dir, name) => dir.stat_at(Name::new(name)?),
            Self::Object(object) => object.stat(),
        }
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Self::Entry(dir, name) => dir.set_mode_at(Name::new(name)?, mode),
            Self::Object(object) => object.set_mode(mode),
        }
    }

    pub(super) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        match self {
            Self::Entry(dir, name) => dir.set_owner_at(Name::new(name)?, uid, gid),
            Self::Object(object) => object.set_owner(uid, gid),
        }
    }

    pub(super) fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        match self {
            Self::Entry(dir, name) => dir.set_times_at(Name::new(name)?, atime, mtime),
            Self::Object(object) => object.set_times(atime, mtime),
        }
    }

    pub(crate) fn get_xattr(&self, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        match self {
            Self::Entry(dir, name) => dir.get_xattr_at(Name::new(name)?, attr, buf),
            Self::Object(object) => object.get_xattr(attr, buf),
        }
    }

    /// Opens the regular file that it is.
    pub(crate) fn open(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        match self {
            Self::Entry(dir, name) => dir.open_file(Name::new(name)?, mode),
            Self::Object(object) => object.reopen(mode),
        }
    }

    /// The object itself, held.
    pub(crate) fn hold(&self) -> Result<Arc<dyn Object>> {
        match self {
            Self::Entry(dir, name) => dir.hold(Name::new(name)?),
            Self::Object(object) => Ok(Arc::clone(object)),
        }
    }
}

impl FileState {
    /// Opens the file, whose inode is at `target`. ESTALE: the name is another file's.
    pub(crate) fn open(&self, target: &Target<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        let file = target.open(mode)?;
        if let (Target::Entry(..), Some((0, ino))) = (target, self.inode)
            && file.stat()?.ino != ino
        {
            return Err(Error::new(Errno::STALE, "another file has its name"));
        }
        Ok(file)
    }
}

impl Layers {
    /// A place in the upper layer.
    pub(crate) fn target_at<'a>(&self, place: &'a Dentry) -> Result<Target<'a>> {
        let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
        let handle = self.upper_of(parent)?.ok_or(Error::new(Errno::STALE, "parent is not in the upper"))?;
        Ok(Target::Entry(handle, &place.name))
    }

    /// Where a file's inode is, and in which layer. The caller holds the file's state.
    pub(crate) fn target_of<'a>(&self, state: &'a FileState) -> Result<(u16, Target<'a>)> {
        match &state.at {
            InodeLocation::Lower(at) => {
                let handle = at.dir.open(self)?;
                Ok((at.dir.layer, Target::Entry(handle, &at.name)))
            }
            InodeLocation::Upper => {
                let place = state.names.first().ok_or(Error::new(Errno::STALE, "file without a name"))?;
                Ok((0, self.target_at(place)?))
            }
            InodeLocation::Orphan(object) => Ok((0, Target::Object(Arc::clone(object)))),
        }
    }

    /// The part of a directory that has its attributes, and its layer.
    pub(crate) fn top_of(&self, dir: &Dir) -> Result<(u16, Arc<dyn BranchDir>)> {
        if let Some(handle) = self.upper_of(dir)? {
            return Ok((0, handle));
        }
        let part = dir.described().ok_or(Error::new(Errno::STALE, "directory without parts"))?;
        Ok((part.layer, part.open(self)?))
    }
}

/// A directory seen as an object.
pub(crate) fn as_object(dir: Arc<dyn BranchDir>) -> Arc<dyn Object> {
    dir
}
