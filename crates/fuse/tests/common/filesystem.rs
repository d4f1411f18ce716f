//! The calls of the tests' filesystem.

use super::MemFs;
use super::tree::{Content, Inode, fill, now};
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vellum_vfs::*;

impl Filesystem for MemFs {
    fn start(&self, connection: Connection) {
        // A successor's front does as its predecessor's.
        let duties = connection.duties;
        assert_eq!(self.connection.get_or_init(|| connection).duties, duties);
    }

    fn stop(&self) {
        self.seen.stopped.store(true, Ordering::Relaxed);
    }

    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        if name.bytes() == b"panic" {
            panic!("asked for by the test");
        }
        if name.bytes() == b"gated" {
            self.pass_gate();
        }
        let mut state = self.state.lock();
        let Some(&(ino, _)) = state.inode(parent)?.children.get(name.bytes()) else { return Ok(None) };
        state.entry(ino, self.manner.ttl).map(Some)
    }

    fn negative_ttl(&self, _: NodeId, _: Name<'_>) -> Duration {
        self.manner.negative_ttl
    }

    fn lookup_node(&self, _: &Context<'_>, node: NodeId) -> Result<Entry> {
        let mut state = self.state.lock();
        let ino = state.ino(node)?;
        state.entry(ino, self.manner.ttl)
    }

    fn lookup_parent(&self, _: &Context<'_>, node: NodeId) -> Result<Entry> {
        let mut state = self.state.lock();
        let parent = state.inode(node)?.parent;
        state.entry(parent, self.manner.ttl)
    }

    fn forget(&self, node: NodeId, count: u64) {
        let mut state = self.state.lock();
        let Some(held) = state.nodes.get_mut(&node.0) else { panic!("forget of an unknown node") };
        assert!(held.lookups >= count, "forgets more than were looked up");
        held.lookups -= count;
        let ino = held.ino;
        if held.lookups == 0 && state.current.get(&ino) != Some(&node.0) {
            state.nodes.remove(&node.0);
        }
        state.collect(ino);
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.state.lock().inode(node)?.attr(), ttl: self.manner.ttl })
    }

    fn setattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>, set: &SetAttr) -> Result<AttrReply> {
        let mut state = self.state.lock();
        let inode = state.inode(node)?;
        if let Some(size) = set.size {
            inode.resize(size)?;
        }
        let attr = &mut inode.attr;
        if let Some(mode) = set.mode {
            attr.mode = attr.mode & 0o170_000 | mode;
        }
        if set.kill_suidgid || set.uid.is_some() || set.gid.is_some() {
            attr.mode &= !0o4000;
            if attr.mode & 0o10 != 0 && attr.is_file() {
                attr.mode &= !0o2000;
            }
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        let time = |set: Option<SetTime>, old| match set {
            None => old,
            Some(SetTime::Now) => now(),
            Some(SetTime::At(time)) => time,
        };
        attr.atime = time(set.atime, attr.atime);
        attr.mtime = time(set.mtime, attr.mtime);
        attr.ctime = now();
        if let (Content::File(file), Some(_)) = (&inode.content, set.mtime) {
            let spec = |t: Timestamp| rustix::fs::Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
            let times =
                rustix::fs::Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) };
            rustix::fs::futimens(file, &times)?;
        }
        Ok(AttrReply { attr: inode.attr(), ttl: self.manner.ttl })
    }

    fn readlink(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let mut state = self.state.lock();
        let target = &state.inode(node)?.target;
        buf[..target.len()].copy_from_slice(target);
        Ok(target.len())
    }

    fn mknod(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let mut state = self.state.lock();
        let ino = state.insert(parent, name, mode, cx)?;
        state.inodes.get_mut(&ino).unwrap().attr.rdev = rdev;
        state.entry(ino, self.manner.ttl)
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.seen.groups.lock().push((cx.gid, cx.groups.to_vec()));
        let mut state = self.state.lock();
        let ino = state.insert(parent, name, mode | 0o040_000, cx)?;
        state.entry(ino, self.manner.ttl)
    }

    fn symlink(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, target: &CStr) -> Result<Entry> {
        let mut state = self.state.lock();
        let ino = state.insert(parent, name, 0o120_777, cx)?;
        state.inodes.get_mut(&ino).unwrap().target = target.to_bytes().to_vec();
        state.entry(ino, self.manner.ttl)
    }

    fn link(&self, _: &Context<'_>, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let mut state = self.state.lock();
        let ino = state.ino(node)?;
        let dir = state.inode(parent)?;
        if dir.children.contains_key(name.bytes()) {
            return Err(Errno::EXIST.into());
        }
        dir.add(name, ino);
        state.inodes.get_mut(&ino).ok_or(Errno::STALE)?.attr.nlink += 1;
        state.entry(ino, self.manner.ttl)
    }

    fn unlink(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        if name.bytes() == b"gated-unlink" {
            self.pass_gate();
        }
        let mut state = self.state.lock();
        let ino = state.inode(parent)?.take(name)?;
        state.drop_link(ino);
        Ok(())
    }

    fn rmdir(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        let mut state = self.state.lock();
        let &(ino, _) = state.inode(parent)?.children.get(name.bytes()).ok_or(Errno::NOENT)?;
        if !state.inodes[&ino].children.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        let dir = state.inode(parent)?;
        dir.take(name)?;
        dir.attr.nlink -= 1;
        state.inodes.get_mut(&ino).unwrap().attr.nlink = 0;
        state.collect(ino);
        Ok(())
    }

    fn rename(
        &self,
        _: &Context<'_>,
        (from, old): (NodeId, Name<'_>),
        (to, new): (NodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let ino = state.inode(from)?.children.get(old.bytes()).ok_or(Errno::NOENT)?.0;
        let target = state.inode(to)?.children.get(new.bytes()).map(|(ino, _)| *ino);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL.into());
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let target = target.ok_or(Errno::NOENT)?;
            state.inode(from)?.take(old)?;
            state.inode(to)?.take(new)?;
            state.inode(from)?.add(old, target);
            state.inode(to)?.add(new, ino);
            return Ok(());
        }
        if let Some(target) = target {
            if flags.contains(RenameFlags::NOREPLACE) {
                return Err(Errno::EXIST.into());
            }
            state.inode(to)?.take(new)?;
            state.drop_link(target);
        }
        state.inode(from)?.take(old)?;
        state.inode(to)?.add(new, ino);
        Ok(())
    }

    fn open(&self, _: &Context<'_>, node: NodeId, flags: OpenFlags) -> Result<OpenReply> {
        if self.manner.no_open && self.duties().contains(Duties::OPENS_FILES) {
            return Err(Errno::NOSYS.into());
        }
        self.open_locked(&mut self.state.lock(), node, flags)
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        if name.bytes() == b"gated-create" {
            self.pass_gate();
        }
        cx.progress.begins();
        if name.bytes() == b"gated-made" {
            self.pass_gate();
        }
        let file = self.manner.backing.as_ref().map(|_| self.new_file()).transpose()?;
        let mut state = self.state.lock();
        let ino = state.insert(parent, name, mode & 0o7777 | 0o100_000, cx)?;
        if let Some(file) = file {
            state.inodes.get_mut(&ino).unwrap().content = Content::File(file);
        }
        let entry = state.entry(ino, self.manner.ttl)?;
        let opened = self.open_locked(&mut state, entry.node, flags)?;
        Ok((entry, opened))
    }

    fn tmpfile(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        let mut state = self.state.lock();
        let ino = state.next_ino;
        state.next_ino += 1;
        let mut inode = Inode::new(ino, mode & !cx.umask & 0o7777 | 0o100_000, cx, 0);
        inode.attr.nlink = 0;
        state.inodes.insert(ino, inode);
        let entry = state.entry(ino, self.manner.ttl)?;
        let opened = self.open_locked(&mut state, entry.node, flags)?;
        Ok((entry, opened))
    }

    fn read(&self, _: &Context<'_>, node: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pass_gate();
        self.state.lock().inode(node)?.read(offset, buf)
    }

    fn write(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let mut state = self.state.lock();
        let inode = state.inode(node)?;
        if flags.contains(WriteFlags::KILL_SUIDGID) {
            inode.attr.mode &= !0o6000;
        }
        inode.write(offset, data)
    }

    fn flush(&self, _: &Context<'_>, _: NodeId, _: Handle) -> Result<()> {
        self.seen.flushed.fetch_add(1, Ordering::Relaxed);
        if self.manner.no_open { Err(Errno::NOSYS.into()) } else { Ok(()) }
    }

    fn release(&self, node: NodeId, handle: Handle) {
        assert_eq!(handle.0, node.0, "another handle than was given out");
        let mut state = self.state.lock();
        let held = state.nodes.get_mut(&node.0).expect("release of an unknown node");
        held.opens = held.opens.checked_sub(1).expect("released more than was opened");
        if held.opens == 0 {
            held.file = None;
        }
        drop(state);
        if self.manner.gated_releases {
            self.pass_gate();
        }
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        if self.manner.no_open && self.duties().contains(Duties::OPENS_DIRS) {
            return Err(Errno::NOSYS.into());
        }
        Ok(OpenReply { handle: Handle(0), io: OpenIo::Direct })
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.list(node, offset, sink, false)
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.list(node, offset, sink, true)
    }

    fn fsyncdir(&self, _: &Context<'_>, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs> {
        let frsize = 4096;
        Ok(StatFs {
            frsize,
            bsize: frsize,
            blocks: 1000,
            bfree: 500,
            bavail: 400,
            files: 77,
            namelen: 255,
            ..StatFs::default()
        })
    }

    fn setxattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let xattrs = &mut state.inode(node)?.xattrs;
        let exists = xattrs.contains_key(name.to_bytes());
        if exists && flags.contains(XattrFlags::CREATE) {
            return Err(Errno::EXIST.into());
        }
        if !exists && flags.contains(XattrFlags::REPLACE) {
            return Err(Errno::NODATA.into());
        }
        xattrs.insert(name.to_bytes().to_vec(), value.to_vec());
        Ok(())
    }

    fn getxattr(&self, _: &Context<'_>, node: NodeId, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        let mut state = self.state.lock();
        let value = state.inode(node)?.xattrs.get(name.to_bytes()).ok_or(Errno::NODATA)?;
        fill(buf, value)
    }

    fn listxattr(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let mut state = self.state.lock();
        let names: Vec<u8> =
            state.inode(node)?.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        fill(buf, &names)
    }

    fn removexattr(&self, _: &Context<'_>, node: NodeId, name: &CStr) -> Result<()> {
        let mut state = self.state.lock();
        state.inode(node)?.xattrs.remove(name.to_bytes()).ok_or(Errno::NODATA)?;
        Ok(())
    }

    fn fallocate(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let inode = state.inode(node)?;
        let size = inode.attr().size;
        let end = if mode & 1 != 0 { (offset + len).min(size) } else { offset + len };
        if end > size {
            inode.resize(end)?;
        }
        match mode & !1 {
            0 => Ok(()),
            // PUNCH_HOLE, ZERO_RANGE
            2 | 0x10 => inode.write(offset, &vec![0; end.saturating_sub(offset) as usize]).map(drop),
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    fn lseek(&self, _: &Context<'_>, node: NodeId, _: Handle, offset: u64, whence: Seek) -> Result<u64> {
        let mut state = self.state.lock();
        let Content::Memory(data) = &state.inode(node)?.content else { return Err(Errno::INVAL.into()) };
        if offset >= data.len() as u64 {
            return Err(Errno::NXIO.into());
        }
        // A page of zeros is a hole.
        let is_data = |page: u64| {
            let start = (page * 4096) as usize;
            data[start..(start + 4096).min(data.len())].iter().any(|&b| b != 0)
        };
        let pages = (data.len() as u64).div_ceil(4096);
        let found = (offset / 4096..pages).find(|&page| is_data(page) == (whence == Seek::Data));
        match (found, whence) {
            (Some(page), _) => Ok(offset.max(page * 4096)),
            (None, Seek::Hole) => Ok(data.len() as u64),
            (None, Seek::Data) => Err(Errno::NXIO.into()),
        }
    }

    fn copy_file_range(
        &self,
        _: &Context<'_>,
        (from, _, from_offset): (NodeId, Handle, u64),
        (to, _, offset): (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        let mut data = vec![0; len.min(1 << 24) as usize];
        let read = state.inode(from)?.read(from_offset, &mut data)?;
        Ok(state.inode(to)?.write(offset, &data[..read])? as u64)
    }
}
