//! Directories.

use super::handle::{CephDir, CephFile, CephHandle, InodeHandle};
use crate::convert::attr;
use crate::kernel_checks::TARGET_MAX;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, DirItem, Errno, Error, FileKind, Name, Object, OpenMode, RenameFlags,
    Result, SetTime,
};

impl CephDir {
    /// What `name` leads to, and its attributes.
    fn find(&self, name: Name<'_>) -> Result<(InodeHandle, Attr)> {
        let (inode, stat) = self.0.inode.lookup(name.as_c_str())?;
        let attr = attr(&stat);
        Ok((InodeHandle { inode: Arc::new(inode), kind: attr.kind() }, attr))
    }

    /// A directory in it, and its attributes. ENOTDIR.
    pub(super) fn enter(&self, name: Name<'_>) -> Result<(Self, Attr)> {
        let (held, attr) = self.find(name)?;
        if held.kind == FileKind::Directory { Ok((Self(held), attr)) } else { Err(Errno::NOTDIR.into()) }
    }

    pub(super) fn snapshots(&self) -> Result<Self> {
        let inode = Arc::new(self.0.inode.snapshots()?);
        Ok(Self(InodeHandle { inode, kind: FileKind::Directory }))
    }

    /// A directory of the same client. EXDEV.
    fn peer<'a>(&self, dir: &'a dyn BranchDir) -> Result<&'a Self> {
        dir.as_any()
            .downcast_ref::<Self>()
            .filter(|dir| dir.0.inode.has_same_client(&self.0.inode))
            .ok_or(Error::new(Errno::XDEV, "move between branches"))
    }

    /// Gives `held` a name here. EPERM: it is a directory; ENOENT: it has no name any more.
    fn give_name(&self, held: &InodeHandle, name: Name<'_>) -> Result<()> {
        if held.kind == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        if held.inode.stat()?.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        Ok(held.inode.link(&self.0.inode, name.as_c_str())?)
    }
}

impl BranchDir for CephDir {
    fn stat_at(&self, name: Name<'_>) -> Result<Attr> {
        Ok(self.find(name)?.1)
    }

    fn get_xattr_at(&self, name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.find(name)?.0.get_xattr(attr, buf)
    }

    fn set_owner_at(&self, name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.find(name)?.0.set_owner(uid, gid)
    }

    fn set_mode_at(&self, name: Name<'_>, mode: u32) -> Result<()> {
        self.find(name)?.0.set_mode(mode)
    }

    fn set_times_at(&self, name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        self.find(name)?.0.set_times(atime, mtime)
    }

    fn read_link_at(&self, name: Name<'_>, buf: &mut [u8]) -> Result<usize> {
        self.find(name)?.0.read_link(buf)
    }

    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>> {
        Ok(Arc::new(self.enter(name)?.0))
    }

    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        self.find(name)?.0.open(mode)
    }

    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>> {
        Ok(Arc::new(CephHandle(self.find(name)?.0)))
    }

    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        Ok(Arc::new(CephFile::new(self.0.inode.create(name.as_c_str(), mode & 0o7777)?)))
    }

    fn create_unnamed(&self, _mode: u32) -> Result<Arc<dyn BranchFile>> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()> {
        let any = object.as_any();
        let held = if let Some(file) = any.downcast_ref::<CephFile>() {
            file.inode_handle()
        } else if let Some(handle) = any.downcast_ref::<CephHandle>() {
            handle.inode_handle()
        } else if let Some(dir) = any.downcast_ref::<Self>() {
            dir.inode_handle()
        } else {
            return Err(Error::new(Errno::XDEV, "link between branches"));
        };
        self.give_name(held, name)
    }

    fn make_dir(&self, name: Name<'_>, mode: u32) -> Result<()> {
        // mkdir(2) has no set-id bits.
        Ok(self.0.inode.make_dir(name.as_c_str(), mode & 0o1777)?)
    }

    fn make_node(&self, name: Name<'_>, mode: u32, rdev: u64) -> Result<()> {
        let rdev = match FileKind::from_mode(mode) {
            Some(FileKind::CharDevice | FileKind::BlockDevice) => rdev,
            Some(FileKind::Regular | FileKind::Fifo | FileKind::Socket) => 0,
            Some(FileKind::Directory) => return Err(Errno::PERM.into()),
            Some(FileKind::Symlink) | None => return Err(Errno::INVAL.into()),
        };
        Ok(self.0.inode.make_node(name.as_c_str(), mode, rdev)?)
    }

    fn make_symlink(&self, name: Name<'_>, target: &CStr) -> Result<()> {
        match target.to_bytes().len() {
            0 => Err(Errno::NOENT.into()),
            1..=TARGET_MAX => Ok(self.0.inode.make_symlink(name.as_c_str(), target)?),
            _ => Err(Errno::NAMETOOLONG.into()),
        }
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        Ok(self.0.inode.remove(name.as_c_str())?)
    }

    fn remove_dir(&self, name: Name<'_>) -> Result<()> {
        Ok(self.0.inode.remove_dir(name.as_c_str())?)
    }

    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()> {
        let to = self.peer(to)?;
        to.give_name(&self.find(name)?.0, to_name)
    }

    /// CephFS has no flags of renames.
    fn rename(
        &self,
        name: Name<'_>,
        to: &dyn BranchDir,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.peer(to)?;
        if !flags.is_empty() {
            return Err(Errno::INVAL.into());
        }
        let from = self.find(name)?.1;
        // Two names of one file stay as they are. The client does not know that, and would forget the first.
        if to.find(to_name).is_ok_and(|(_, there)| (there.dev, there.ino) == (from.dev, from.ino)) {
            return Ok(());
        }
        Ok(self.0.inode.rename(name.as_c_str(), &to.0.inode, to_name.as_c_str())?)
    }

    fn list(&self, each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()> {
        let mut listing = self.0.inode.list()?;
        while let Some((name, ino, kind)) = listing.next_entry()? {
            if name == c"." || name == c".." {
                continue;
            }
            each(DirItem { name: Name::new(name)?, ino, kind: FileKind::from_mode(kind) })?;
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<()> {
        Ok(self.0.inode.sync()?)
    }
}
