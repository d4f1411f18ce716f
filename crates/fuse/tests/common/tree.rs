//! The tree behind the tests' filesystem.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use vellum_vfs::*;

pub(super) enum Content {
    Memory(Vec<u8>),
    File(Arc<OwnedFd>),
}

pub(super) struct Inode {
    pub(super) attr: Attr,
    pub(super) content: Content,
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) children: BTreeMap<Vec<u8>, (u64, u64)>,
    pub(super) by_cookie: BTreeMap<u64, Vec<u8>>,
    pub(super) next_cookie: u64,
    pub(super) parent: u64,
}

pub(super) struct Held {
    pub(super) ino: u64,
    pub(super) lookups: u64,
    pub(super) opens: u64,
    pub(super) file: Option<Arc<OwnedFd>>,
}

pub(super) struct State {
    pub(super) inodes: HashMap<u64, Inode>,
    pub(super) nodes: HashMap<u64, Held>,
    pub(super) current: HashMap<u64, u64>,
    pub(super) next_ino: u64,
    pub(super) next_node: u64,
}

pub(super) fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

impl Inode {
    pub(super) fn new(ino: u64, mode: u32, cx: &Context<'_>, parent: u64) -> Self {
        let t = now();
        let attr = Attr {
            ino,
            mode,
            nlink: if mode & 0o170_000 == 0o040_000 { 2 } else { 1 },
            uid: cx.uid,
            gid: cx.gid,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            blksize: 4096,
            ..Attr::default()
        };
        Self {
            attr,
            content: Content::Memory(Vec::new()),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            children: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: 3,
            parent,
        }
    }

    pub(super) fn attr(&self) -> Attr {
        let mut attr = self.attr;
        match &self.content {
            Content::Memory(data) => attr.size = (data.len() + self.target.len()) as u64,
            Content::File(file) => {
                let stat = rustix::fs::fstat(file).unwrap();
                attr.size = stat.st_size as u64;
                attr.mtime = Timestamp { secs: stat.st_mtime as i64, nanos: stat.st_mtime_nsec as u32 };
            }
        }
        attr.blocks = attr.size.div_ceil(512);
        attr
    }

    pub(super) fn add(&mut self, name: Name<'_>, ino: u64) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.children.insert(name.bytes().to_vec(), (ino, cookie));
        self.by_cookie.insert(cookie, name.bytes().to_vec());
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
    }

    pub(super) fn take(&mut self, name: Name<'_>) -> Result<u64> {
        let (ino, cookie) = self.children.remove(name.bytes()).ok_or(Errno::NOENT)?;
        self.by_cookie.remove(&cookie);
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
        Ok(ino)
    }

    pub(super) fn resize(&mut self, size: u64) -> Result<()> {
        match &mut self.content {
            Content::Memory(data) => data.resize(size as usize, 0),
            Content::File(file) => rustix::fs::ftruncate(file, size)?,
        }
        self.attr.mtime = now();
        Ok(())
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<usize> {
        match &mut self.content {
            Content::Memory(data) => {
                let end = offset as usize + bytes.len();
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[offset as usize..end].copy_from_slice(bytes);
                Ok(bytes.len())
            }
            Content::File(file) => Ok(rustix::io::pwrite(file, bytes, offset)?),
        }
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match &self.content {
            Content::Memory(data) => {
                let rest = data.get(offset as usize..).unwrap_or_default();
                let len = rest.len().min(buf.len());
                buf[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            }
            Content::File(file) => Ok(rustix::io::pread(file, buf, offset)?),
        }
    }
}

impl State {
    pub(super) fn ino(&self, node: NodeId) -> Result<u64> {
        Ok(self.nodes.get(&node.0).ok_or(Errno::STALE)?.ino)
    }

    pub(super) fn inode(&mut self, node: NodeId) -> Result<&mut Inode> {
        let ino = self.ino(node)?;
        self.inodes.get_mut(&ino).ok_or_else(|| Errno::STALE.into())
    }

    pub(super) fn entry(&mut self, ino: u64, ttl: Duration) -> Result<Entry> {
        let attr = self.inodes.get(&ino).ok_or(Errno::STALE)?.attr();
        let node = match self.current.get(&ino) {
            Some(&node) => node,
            None => self.new_node(ino),
        };
        self.nodes.get_mut(&node).ok_or(Errno::STALE)?.lookups += 1;
        Ok(Entry { node: NodeId(node), generation: 5, attr, entry_ttl: ttl, attr_ttl: ttl })
    }

    pub(super) fn new_node(&mut self, ino: u64) -> u64 {
        let node = self.next_node;
        self.next_node += 1;
        self.nodes.insert(node, Held { ino, lookups: 0, opens: 0, file: None });
        self.current.insert(ino, node);
        node
    }

    pub(super) fn insert(
        &mut self,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        cx: &Context<'_>,
    ) -> Result<u64> {
        let parent_ino = self.ino(parent)?;
        let ino = self.next_ino;
        let dir = self.inode(parent)?;
        if dir.children.contains_key(name.bytes()) {
            return Err(Errno::EXIST.into());
        }
        dir.add(name, ino);
        if mode & 0o170_000 == 0o040_000 {
            dir.attr.nlink += 1;
        }
        self.next_ino += 1;
        self.inodes.insert(ino, Inode::new(ino, mode & !cx.umask, cx, parent_ino));
        Ok(ino)
    }

    pub(super) fn drop_link(&mut self, ino: u64) {
        let inode = self.inodes.get_mut(&ino).unwrap();
        inode.attr.nlink -= 1;
        inode.attr.ctime = now();
        self.collect(ino);
    }

    pub(super) fn collect(&mut self, ino: u64) {
        let used = self.nodes.values().any(|held| held.ino == ino && held.lookups > 0);
        if !used && self.inodes.get(&ino).is_some_and(|inode| inode.attr.nlink == 0) {
            self.inodes.remove(&ino);
            self.current.remove(&ino);
        }
    }
}

pub(super) fn fill(buf: &mut [u8], value: &[u8]) -> Result<usize> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}
