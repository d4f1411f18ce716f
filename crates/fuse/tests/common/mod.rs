//! A filesystem in memory for the tests, with what they need to look behind the kernel's back: node ids that have
//! nothing to do with inode numbers, files backed by real ones that can be swapped, a gate that holds reads up.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests, each of which uses a part")]

mod mount;
mod tree;

pub(crate) use mount::*;

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tree::{Content, Held, Inode, State, fill, now};
use vellum_vfs::*;

const FIRST_NODE: u64 = 70_000;

/// How the filesystem behaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    /// Regular files are real files in this directory, and are passed through.
    pub(crate) backing: Option<PathBuf>,
    /// Do without opens where that is offered.
    pub(crate) no_open: bool,
    /// For how long names and attributes may be cached.
    pub(crate) ttl: Duration,
    /// For how long missing names may be cached.
    pub(crate) negative_ttl: Duration,
    /// Reads and writes come one by one.
    pub(crate) direct: bool,
}

/// What the tests look at afterwards.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) groups: Mutex<Vec<(u32, Vec<u32>)>>,
    pub(crate) stale: AtomicU64,
    pub(crate) stopped: AtomicBool,
    pub(crate) flushed: AtomicU64,
}

pub(crate) struct MemFs {
    state: Mutex<State>,
    manner: Manner,
    connection: OnceLock<Connection>,
    pub(crate) seen: Seen,
    gate: Mutex<bool>,
    gate_opened: Condvar,
    /// Reads that wait at the gate.
    pub(crate) waiting: AtomicU64,
    files: AtomicU64,
}

impl MemFs {
    pub(crate) fn new(manner: Manner) -> Arc<Self> {
        let root = Inode::new(1, 0o040_755, &Context::default(), 1);
        let held = Held { ino: 1, lookups: 1, opens: 0, file: None };
        Arc::new(Self {
            state: Mutex::new(State {
                inodes: HashMap::from([(1, root)]),
                nodes: HashMap::from([(1, held)]),
                current: HashMap::from([(1, 1)]),
                next_ino: 500,
                next_node: FIRST_NODE,
            }),
            manner,
            connection: OnceLock::new(),
            seen: Seen::default(),
            gate: Mutex::new(true),
            gate_opened: Condvar::new(),
            waiting: AtomicU64::new(0),
            files: AtomicU64::new(0),
        })
    }

    fn features(&self) -> Features {
        self.connection.get().unwrap().features
    }

    /// Shuts the gate that every read passes, or opens it.
    pub(crate) fn set_gate(&self, open: bool) {
        *self.gate.lock() = open;
        self.gate_opened.notify_all();
    }

    fn pass_gate(&self) {
        let mut open = self.gate.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while !*open {
            self.gate_opened.wait(&mut open);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Every node id that an inode number is known by.
    pub(crate) fn nodes_of(&self, ino: u64) -> Vec<NodeId> {
        let state = self.state.lock();
        state.nodes.iter().filter(|(_, held)| held.ino == ino).map(|(&node, _)| NodeId(node)).collect()
    }

    /// Lookup counts that the kernel holds, the root's aside.
    pub(crate) fn lookups(&self) -> u64 {
        let state = self.state.lock();
        state.nodes.iter().filter(|(node, _)| **node != 1).map(|(_, held)| held.lookups).sum()
    }

    /// Open files.
    pub(crate) fn opens(&self) -> u64 {
        self.state.lock().nodes.values().map(|held| held.opens).sum()
    }

    /// Changes a file behind the kernel's back.
    pub(crate) fn poke(&self, ino: u64, data: &[u8]) {
        let mut state = self.state.lock();
        let inode = state.inodes.get_mut(&ino).unwrap();
        inode.resize(0).unwrap();
        inode.write(0, data).unwrap();
    }

    /// Removes a name of the root directory behind the kernel's back.
    pub(crate) fn snatch(&self, name: &CStr) {
        let mut state = self.state.lock();
        let name = Name::new(name).unwrap();
        state.inode(NodeId::ROOT).unwrap().take(name).unwrap();
    }

    /// Makes a file in the root directory behind the kernel's back.
    pub(crate) fn plant(&self, name: &CStr) {
        let mut state = self.state.lock();
        state.insert(NodeId::ROOT, Name::new(name).unwrap(), 0o100_644, &Context::default()).unwrap();
    }

    /// Makes many files in the root directory.
    pub(crate) fn populate(&self, count: u64) {
        for i in 0..count {
            self.plant(&std::ffi::CString::new(format!("file-{i:06}")).unwrap());
        }
    }

    fn new_file(&self) -> Result<Arc<OwnedFd>> {
        let dir = self.manner.backing.as_ref().ok_or(Errno::IO)?;
        let path = dir.join(format!("{}", self.files.fetch_add(1, Ordering::Relaxed)));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|_| Errno::IO)?;
        Ok(Arc::new(file.into()))
    }

    /// Puts another backing file, with a copy of the data, under an inode: a copy-up.
    pub(crate) fn swap(&self, ino: u64) {
        let file = self.new_file().unwrap();
        let mut state = self.state.lock();
        let inode = state.inodes.get_mut(&ino).unwrap();
        let mut data = vec![0; inode.attr().size as usize];
        let len = inode.read(0, &mut data).unwrap();
        rustix::io::pwrite(&file, &data[..len], 0).unwrap();
        inode.content = Content::File(file);
    }

    fn open_locked(&self, state: &mut State, node: NodeId, flags: u32) -> Result<Opened> {
        let ino = state.ino(node)?;
        let inode = state.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let Content::File(file) = &inode.content else {
            if flags & 0o1000 != 0 {
                inode.resize(0)?;
            }
            let io = if self.manner.direct { OpenIo::Direct } else { OpenIo::Cached { keep: true } };
            state.nodes.get_mut(&node.0).ok_or(Errno::STALE)?.opens += 1;
            return Ok(Opened { handle: Handle(node.0), io });
        };
        let file = Arc::clone(file);
        let held = state.nodes.get_mut(&node.0).ok_or(Errno::STALE)?;
        let conflict = held.opens > 0 && !held.file.as_ref().is_some_and(|held| Arc::ptr_eq(held, &file));
        let is_current = state.current.get(&ino) == Some(&node.0);
        if conflict || !is_current {
            if is_current {
                state.new_node(ino);
            }
            self.seen.stale.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::STALE.into());
        }
        if flags & 0o1000 != 0 {
            rustix::fs::ftruncate(&file, 0)?;
        }
        held.opens += 1;
        held.file = Some(Arc::clone(&file));
        Ok(Opened { handle: Handle(node.0), io: OpenIo::Passthrough(file) })
    }

    fn list(&self, node: NodeId, offset: u64, sink: &mut dyn DirSink, plus: bool) -> Result<()> {
        let mut state = self.state.lock();
        let (own, parent) = (state.ino(node)?, state.inode(node)?.parent);
        for (cookie, name, ino) in [(1, b".".as_slice(), own), (2, b"..".as_slice(), parent)] {
            if offset < cookie {
                if !sink.fits(name.len()) {
                    return Ok(());
                }
                sink.push(DirEntry { ino, cookie, kind: Some(FileKind::Directory), name }, None);
            }
        }
        let mut at = offset.max(2);
        loop {
            let dir = state.inode(node)?;
            let Some((&cookie, name)) = dir.by_cookie.range(at + 1..).next() else { return Ok(()) };
            let name = name.clone();
            let (ino, _) = dir.children[&name];
            if !sink.fits(name.len()) {
                return Ok(());
            }
            let kind = state.inodes[&ino].attr.kind();
            let dirent = DirEntry { ino, cookie, kind: Some(kind), name: &name };
            if plus {
                let entry = state.entry(ino, self.manner.ttl)?;
                sink.push(dirent, Some(&entry));
            } else {
                sink.push(dirent, None);
            }
            at = cookie;
        }
    }
}

impl Filesystem for MemFs {
    fn start(&self, connection: Connection) {
        assert!(self.connection.set(connection).is_ok(), "started twice");
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

    fn open(&self, _: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened> {
        if self.manner.no_open && self.features().contains(Features::NO_OPEN) {
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
        flags: u32,
    ) -> Result<(Entry, Opened)> {
        if name.bytes() == b"gated-create" {
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

    fn tmpfile(&self, cx: &Context<'_>, _: NodeId, mode: u32, flags: u32) -> Result<(Entry, Opened)> {
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
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: u32) -> Result<Opened> {
        if self.manner.no_open && self.features().contains(Features::NO_OPENDIR) {
            return Err(Errno::NOSYS.into());
        }
        Ok(Opened { handle: Handle(0), io: OpenIo::Direct })
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
