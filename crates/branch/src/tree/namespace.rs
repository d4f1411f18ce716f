//! Names: making, linking, renaming and removing them, in the order of checks of the kernel and ext4.

use super::state::{Body, Contents, Inode, State};
use crate::kernel_checks::TARGET_MAX;
use std::collections::BTreeMap;
use vellum_vfs::{Errno, FileKind, Name, RenameFlags};

/// Most links to a file, as on ext4.
const LINK_MAX: u32 = 65_000;

impl<D: Contents> State<D> {
    /// What `name` leads to.
    pub(crate) fn find(&self, dir: u64, name: Name<'_>) -> Result<u64, Errno> {
        self.check_name(name)?;
        self.inode(dir)?.entries()?.get(name.bytes()).copied().ok_or(Errno::NOENT)
    }

    fn check_name(&self, name: Name<'_>) -> Result<(), Errno> {
        if name.bytes().len() > self.options.name_max { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// Whether a name can be made: EEXIST, or ENOENT in a directory that has been removed.
    fn check_free(&self, dir: u64, name: Name<'_>) -> Result<(), Errno> {
        match self.find(dir, name) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) if self.inode(dir)?.nlink == 0 => Err(Errno::NOENT),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// A directory is changed; its times become now.
    fn change_dir(&mut self, dir: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, Errno> {
        let inode = self.change(dir)?;
        inode.mtime = inode.ctime;
        match &mut inode.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// A name leads to `ino` from now on.
    fn enter(&mut self, dir: u64, name: Name<'_>, ino: u64) -> Result<(), Errno> {
        self.change_dir(dir)?.insert(name.bytes().to_vec(), ino);
        self.touched.entry(dir, name.bytes(), Some(ino));
        Ok(())
    }

    /// A name is gone.
    fn leave(&mut self, dir: u64, name: Name<'_>) -> Result<(), Errno> {
        self.change_dir(dir)?.remove(name.bytes());
        self.touched.entry(dir, name.bytes(), None);
        Ok(())
    }

    fn add_nlink(&mut self, ino: u64, by: i32) -> Result<(), Errno> {
        let inode = self.inode_mut(ino)?;
        inode.nlink = inode.nlink.saturating_add_signed(by);
        Ok(())
    }

    /// An inode as it is born in `dir`: the group of a set-group-id directory, and its default ACL.
    fn new_inode_in(&mut self, dir: u64, mode: u32, body: Body<D>) -> Result<Inode<D>, Errno> {
        let mut inode = self.new_inode(mode);
        inode.body = body;
        inode.nlink = if inode.is_dir() { 2 } else { 1 };
        let parent = self.inode(dir)?;
        if parent.mode & 0o2000 != 0 {
            inode.gid = parent.gid;
            if inode.is_dir() {
                inode.mode |= 0o2000;
            }
        }
        self.inherit_acl(dir, &mut inode)?;
        Ok(inode)
    }

    fn make(&mut self, dir: u64, name: Name<'_>, inode: Inode<D>) -> Result<u64, Errno> {
        let is_dir = inode.is_dir();
        let ino = self.add(inode)?;
        self.enter(dir, name, ino)?;
        if is_dir {
            self.add_nlink(dir, 1)?;
        }
        Ok(ino)
    }

    /// Creates a regular file.
    pub(crate) fn create(&mut self, dir: u64, name: Name<'_>, mode: u32) -> Result<u64, Errno> {
        self.check_free(dir, name)?;
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        let inode = self.new_inode_in(dir, mode, Body::Regular(Default::default()))?;
        self.make(dir, name, inode)
    }

    /// Creates a regular file without a name.
    pub(crate) fn create_unnamed(&mut self, dir: u64, mode: u32) -> Result<u64, Errno> {
        if !self.options.unnamed {
            return Err(Errno::OPNOTSUPP);
        }
        // ext4 makes no inode in a directory that has been removed, and this is what it calls that.
        if self.inode(dir)?.nlink == 0 {
            return Err(Errno::PERM);
        }
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        let mut inode = self.new_inode_in(dir, mode, Body::Regular(Default::default()))?;
        inode.nlink = 0;
        inode.linkable = true;
        self.add(inode)
    }

    pub(crate) fn make_dir(&mut self, dir: u64, name: Name<'_>, mode: u32) -> Result<(), Errno> {
        self.check_free(dir, name)?;
        // mkdir(2) takes permission bits and the sticky bit only.
        let mode = FileKind::Directory.mode_bits() | (mode & 0o1777);
        let inode =
            self.new_inode_in(dir, mode, Body::Directory { entries: BTreeMap::new(), parent: dir })?;
        self.make(dir, name, inode)?;
        Ok(())
    }

    pub(crate) fn make_node(&mut self, dir: u64, name: Name<'_>, mode: u32, rdev: u64) -> Result<(), Errno> {
        let kind = match FileKind::from_mode(mode) {
            None | Some(FileKind::Symlink) => return Err(Errno::INVAL),
            Some(FileKind::Directory) => return Err(Errno::PERM),
            Some(kind) => kind,
        };
        self.check_free(dir, name)?;
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) && !self.options.devices {
            return Err(Errno::PERM);
        }
        let body = match kind {
            FileKind::Regular => Body::Regular(Default::default()),
            _ => Body::Special,
        };
        let mut inode = self.new_inode_in(dir, kind.mode_bits() | (mode & 0o7777), body)?;
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            inode.rdev = rdev;
        }
        self.make(dir, name, inode)?;
        Ok(())
    }

    pub(crate) fn make_symlink(&mut self, dir: u64, name: Name<'_>, target: &[u8]) -> Result<(), Errno> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.check_free(dir, name)?;
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        let inode = self.new_inode_in(dir, mode, Body::Symlink(target.to_vec()))?;
        self.make(dir, name, inode)?;
        Ok(())
    }

    /// Another name for an inode.
    pub(crate) fn link(&mut self, ino: u64, dir: u64, name: Name<'_>) -> Result<(), Errno> {
        self.check_free(dir, name)?;
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Errno::PERM);
        }
        if inode.nlink == 0 && !inode.linkable {
            return Err(Errno::NOENT);
        }
        if inode.nlink >= LINK_MAX {
            return Err(Errno::MLINK);
        }
        let inode = self.change(ino)?;
        inode.nlink += 1;
        inode.linkable = false;
        self.enter(dir, name, ino)
    }

    /// Takes a name away; the inode loses a link.
    fn unname(&mut self, dir: u64, name: Name<'_>, ino: u64) -> Result<(), Errno> {
        self.leave(dir, name)?;
        self.lose(dir, ino)
    }

    /// A name in `dir` does not lead to `ino` any more.
    fn lose(&mut self, dir: u64, ino: u64) -> Result<(), Errno> {
        let inode = self.change(ino)?;
        if inode.is_dir() {
            inode.nlink = 0;
            self.add_nlink(dir, -1)?;
        } else {
            inode.nlink = inode.nlink.saturating_sub(1);
        }
        self.reap(ino);
        Ok(())
    }

    pub(crate) fn remove(&mut self, dir: u64, name: Name<'_>) -> Result<(), Errno> {
        let ino = self.find(dir, name)?;
        if self.inode(ino)?.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.unname(dir, name, ino)
    }

    pub(crate) fn remove_dir(&mut self, dir: u64, name: Name<'_>) -> Result<(), Errno> {
        let ino = self.find(dir, name)?;
        if !self.inode(ino)?.entries()?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.unname(dir, name, ino)
    }

    /// Whether `ino` is `dir` or above it.
    fn is_above(&self, ino: u64, dir: u64) -> bool {
        let mut at = dir;
        loop {
            if at == ino {
                return true;
            }
            match self.inode(at).map(|inode| &inode.body) {
                Ok(Body::Directory { parent, .. }) if *parent != at => at = *parent,
                _ => return false,
            }
        }
    }

    /// renameat2(2).
    pub(crate) fn rename(
        &mut self,
        from: (u64, Name<'_>),
        to: (u64, Name<'_>),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let alone = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        let unknown = !RenameFlags::all().contains(flags);
        if unknown || (exchange && (flags.intersects(alone) || !self.options.exchange)) {
            return Err(Errno::INVAL);
        }
        let source = self.find(from.0, from.1)?;
        let target = match self.find(to.0, to.1) {
            Ok(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EXIST),
            Ok(ino) => Some(ino),
            Err(Errno::NOENT) if exchange || self.inode(to.0)?.nlink == 0 => return Err(Errno::NOENT),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        // Into itself; or onto something above the source, which is not empty.
        if self.inode(source)?.is_dir() && self.is_above(source, to.0) {
            return Err(Errno::INVAL);
        }
        if target.is_some_and(|ino| self.is_above(ino, from.0)) {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        // Two names of one file: nothing to do, and both stay.
        if target == Some(source) {
            return Ok(());
        }
        if flags.contains(RenameFlags::WHITEOUT) && !(self.options.rename_whiteout && self.options.devices) {
            return Err(Errno::INVAL);
        }
        match target {
            Some(target) if exchange => self.exchange(from, source, to, target),
            target => self.replace(from, source, to, target, flags),
        }
    }

    fn replace(
        &mut self,
        from: (u64, Name<'_>),
        source: u64,
        to: (u64, Name<'_>),
        target: Option<u64>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let source_is_dir = self.inode(source)?.is_dir();
        match target.map(|ino| self.inode(ino)).transpose()? {
            Some(target) if source_is_dir && !target.is_dir() => return Err(Errno::NOTDIR),
            Some(target) if !source_is_dir && target.is_dir() => return Err(Errno::ISDIR),
            Some(target) if target.is_dir() && !target.entries()?.is_empty() => {
                // ext4 has written the whiteout by then, and takes it back.
                if flags.contains(RenameFlags::WHITEOUT) {
                    self.change_dir(from.0)?;
                }
                return Err(Errno::NOTEMPTY);
            }
            _ => {}
        }
        self.leave(from.0, from.1)?;
        self.enter(to.0, to.1, source)?;
        if let Some(target) = target {
            self.lose(to.0, target)?;
        }
        self.move_dir(source, from.0, to.0)?;
        self.change(source)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            let inode = self.new_inode_in(from.0, FileKind::CharDevice.mode_bits(), Body::Special)?;
            self.make(from.0, from.1, inode)?;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        from: (u64, Name<'_>),
        source: u64,
        to: (u64, Name<'_>),
        target: u64,
    ) -> Result<(), Errno> {
        self.enter(from.0, from.1, target)?;
        self.enter(to.0, to.1, source)?;
        self.move_dir(source, from.0, to.0)?;
        self.move_dir(target, to.0, from.0)?;
        self.change(source)?;
        self.change(target)?;
        Ok(())
    }

    /// A directory that changes its parent takes the link of its `..` along.
    fn move_dir(&mut self, ino: u64, from: u64, to: u64) -> Result<(), Errno> {
        if let Body::Directory { parent, .. } = &mut self.inode_mut(ino)?.body {
            *parent = to;
            self.add_nlink(from, -1)?;
            self.add_nlink(to, 1)?;
        }
        Ok(())
    }
}
