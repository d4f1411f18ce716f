//! How a branch is shown.

use super::nodes::ViewObject;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_branch::CEPH_WRITER;
use vellum_union::{HostEntry, HostView, OwnBlocks};
use vellum_vfs::{Attr, BranchDir, Errno, FileKind, Name, Result};

/// How a branch is shown.
pub(super) enum View {
    Plain,
    /// As it would lie on a filesystem of this host.
    Hosted(HostView),
}

/// An extended attribute's value, or names of some, as getxattr(2) and listxattr(2) give them.
fn copy_value(value: &[u8], buf: &mut [u8]) -> Result<usize> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

impl View {
    /// What is under a name; None: nothing.
    pub(super) fn find(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<Option<ViewObject>> {
        if let Self::Hosted(hosted) = self {
            return hosted.find(dir, name);
        }
        let attr = match dir.stat_at(name) {
            Err(e) if e.errno() == Errno::NOENT => return Ok(None),
            attr => attr?,
        };
        let found = if attr.is_dir() {
            HostEntry::Directory(dir.open_dir(name)?, false)
        } else {
            HostEntry::Other(dir.hold(name)?)
        };
        Ok(Some(found))
    }

    pub(super) fn attr(&self, held: &ViewObject) -> Result<Attr> {
        match self {
            Self::Plain => held.object().stat(),
            Self::Hosted(hosted) => hosted.attr(held),
        }
    }

    pub(super) fn list(
        &self,
        dir: &dyn BranchDir,
        each: &mut dyn FnMut(&CStr, u64, Option<FileKind>),
    ) -> Result<()> {
        match self {
            Self::Plain => dir.list(&mut |item| {
                each(item.name.as_c_str(), item.ino, item.kind);
                Ok(())
            }),
            Self::Hosted(hosted) => hosted.list(dir, each),
        }
    }

    /// The blocks of a file that are no holes; None: the branch says it.
    pub(super) fn own_blocks(&self, held: &ViewObject) -> Result<Option<Arc<OwnBlocks>>> {
        match self {
            Self::Plain => Ok(None),
            Self::Hosted(hosted) => Ok(hosted.own_blocks(held.object())?.map(Arc::new)),
        }
    }

    pub(super) fn get_xattr(&self, held: &ViewObject, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        let other = match self {
            Self::Plain => None,
            Self::Hosted(_) if name == CEPH_WRITER => Some(Err(Errno::NODATA.into())),
            Self::Hosted(hosted) => hosted.xattr(held, name),
        };
        match other {
            Some(value) => copy_value(value?, buf),
            None => held.object().get_xattr(name, buf),
        }
    }

    pub(super) fn list_xattr(&self, held: &ViewObject, buf: &mut [u8]) -> Result<usize> {
        let Self::Hosted(hosted) = self else { return held.object().list_xattr(buf) };
        let names = hosted.xattrs(held)?;
        let is_shown = |name: &&[u8]| *name != CEPH_WRITER.to_bytes_with_nul();
        let shown: Vec<u8> =
            names.split_inclusive(|byte| *byte == 0).filter(is_shown).flatten().copied().collect();
        copy_value(&shown, buf)
    }
}
