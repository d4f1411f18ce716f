//! A small filesystem in memory: files, directories, reading and writing.
//!
//! ```text
//! mkdir /tmp/hello
//! cargo run -p vellum-fuse --example hello -- /tmp/hello &
//! cat /tmp/hello/hello; echo more >> /tmp/hello/hello; mkdir /tmp/hello/dir
//! umount /tmp/hello          # or fusermount3 -u /tmp/hello
//! ```
//!
//! What is not said here is refused: links, renames, devices, extended attributes. The kernel checks permission,
//! because the mount has `default_permissions`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use vellum_fuse::{MountOptions, Session, SessionOptions, mount};
use vellum_vfs::*;

type Cx<'a> = Context<'a>;

/// For how long the kernel may believe what it was told: nothing changes behind its back.
const TTL: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Node {
    attr: Attr,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
}

/// Every node that was ever made, by its id. (A real filesystem drops nodes that are forgotten and unlinked.)
struct Hello(Mutex<HashMap<u64, Node>>);

impl Hello {
    fn new() -> Self {
        let hello = Self(Mutex::new(HashMap::from([(1, Node::default())])));
        let root = Attr { ino: 1, mode: 0o040_777, nlink: 2, ..Attr::default() };
        hello.nodes().insert(1, Node { attr: root, ..Node::default() });
        if let (Ok(name), cx) = (Name::new(c"hello"), &Context::default())
            && let Ok(entry) = hello.make(cx, NodeId::ROOT, name, 0o100_666)
            && let Some(node) = hello.nodes().get_mut(&entry.node.0)
        {
            node.data = b"Hello, world\n".to_vec();
            node.attr.size = 13;
        }
        hello
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut Node) -> Result<T>) -> Result<T> {
        change(self.nodes().get_mut(&node.0).ok_or(Errno::STALE)?)
    }

    fn entry(&self, node: u64) -> Result<Entry> {
        let attr = self.with(NodeId(node), |node| Ok(node.attr))?;
        Ok(Entry { node: NodeId(node), generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    fn make(&self, cx: &Cx<'_>, parent: NodeId, name: Name<'_>, mode: u32) -> Result<Entry> {
        let id = self.nodes().len() as u64 + 1;
        self.with(parent, |dir| match dir.names.insert(name.bytes().to_vec(), id) {
            Some(old) => {
                dir.names.insert(name.bytes().to_vec(), old);
                Err(Errno::EXIST.into())
            }
            None => Ok(()),
        })?;
        let now = now();
        let (mtime, nlink) = (now, if mode & 0o040_000 != 0 { 2 } else { 1 });
        let mode = mode & !cx.umask;
        let attr = Attr {
            ino: id,
            mode,
            nlink,
            uid: cx.uid,
            gid: cx.gid,
            atime: now,
            mtime,
            ctime: now,
            ..Attr::default()
        };
        self.nodes().insert(id, Node { attr, ..Node::default() });
        self.entry(id)
    }

    fn remove(&self, parent: NodeId, name: Name<'_>) -> Result<()> {
        let child = self.with(parent, |dir| Ok(*dir.names.get(name.bytes()).ok_or(Errno::NOENT)?))?;
        self.with(
            NodeId(child),
            |node| if node.names.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY.into()) },
        )?;
        self.with(parent, |dir| Ok(dir.names.remove(name.bytes())))?;
        self.with(NodeId(child), |node| {
            node.attr.nlink = 0;
            Ok(())
        })
    }
}

fn now() -> Timestamp {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp { secs: now.as_secs() as i64, nanos: now.subsec_nanos() }
}

impl Filesystem for Hello {
    fn lookup(&self, _: &Cx<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        let found = self.with(parent, |dir| Ok(dir.names.get(name.bytes()).copied()))?;
        found.map(|node| self.entry(node)).transpose()
    }
    fn forget(&self, _: NodeId, _: u64) {}
    fn getattr(&self, _: &Cx<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        self.with(node, |node| Ok(AttrReply { attr: node.attr, ttl: TTL }))
    }
    fn setattr(&self, _: &Cx<'_>, node: NodeId, _: Option<Handle>, set: &SetAttr) -> Result<AttrReply> {
        self.with(node, |node| {
            if let Some(size) = set.size {
                node.data.resize(size as usize, 0);
                node.attr.size = size;
            }
            node.attr.mode = set.mode.map_or(node.attr.mode, |mode| node.attr.mode & !0o7777 | mode);
            node.attr.uid = set.uid.unwrap_or(node.attr.uid);
            node.attr.gid = set.gid.unwrap_or(node.attr.gid);
            node.attr.mtime = match set.mtime {
                Some(SetTime::At(time)) => time,
                Some(SetTime::Now) => now(),
                None => node.attr.mtime,
            };
            node.attr.ctime = now();
            Ok(AttrReply { attr: node.attr, ttl: TTL })
        })
    }
    fn mknod(&self, cx: &Cx<'_>, parent: NodeId, name: Name<'_>, mode: u32, _: u64) -> Result<Entry> {
        self.make(cx, parent, name, mode)
    }
    fn mkdir(&self, cx: &Cx<'_>, parent: NodeId, name: Name<'_>, mode: u32) -> Result<Entry> {
        self.make(cx, parent, name, mode | 0o040_000)
    }
    fn unlink(&self, _: &Cx<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.remove(parent, name)
    }
    fn rmdir(&self, _: &Cx<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.remove(parent, name)
    }
    fn open(&self, _: &Cx<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        // Never ask again: reads and writes name the node, and no state is kept per open file.
        Err(Errno::NOSYS.into())
    }
    fn create(
        &self,
        cx: &Cx<'_>,
        dir: NodeId,
        name: Name<'_>,
        mode: u32,
        _: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        let entry = self.make(cx, dir, name, mode | 0o100_000)?;
        Ok((entry, OpenReply { handle: Handle(0), io: OpenIo::Cached { keep: true } }))
    }
    fn read(&self, _: &Cx<'_>, node: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(node, |node| {
            let rest = node.data.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
    }
    fn write(
        &self,
        _: &Cx<'_>,
        node: NodeId,
        _: Handle,
        at: u64,
        data: &[u8],
        _: WriteFlags,
    ) -> Result<usize> {
        self.with(node, |node| {
            let (start, end) = (at as usize, at as usize + data.len());
            node.data.resize(node.data.len().max(end), 0);
            node.data[start..end].copy_from_slice(data);
            node.attr.size = node.data.len() as u64;
            Ok(data.len())
        })
    }
    fn opendir(&self, _: &Cx<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        Err(Errno::NOSYS.into())
    }
    fn readdir(
        &self,
        _: &Cx<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.with(node, |node| {
            // A node's id serves as the offset: nodes are never renamed, so that it stays stable.
            let mut all: Vec<_> = node.names.iter().filter(|(_, id)| **id > offset).collect();
            all.sort_unstable_by_key(|(_, id)| **id);
            for (name, &id) in all {
                if !sink.fits(name.len()) {
                    break;
                }
                sink.push(DirEntry { ino: id, cookie: id, kind: None, name }, None);
            }
            Ok(())
        })
    }
    fn statfs(&self, _: &Cx<'_>, _: NodeId) -> Result<StatFs> {
        Ok(StatFs { frsize: 4096, bsize: 4096, namelen: 255, ..StatFs::default() })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: hello DIRECTORY")?;
    let mounted = mount(dir.as_ref(), &MountOptions { source: "hello".into(), ..MountOptions::default() })?;
    let session = Session::new(Arc::new(Hello::new()), mounted, SessionOptions::default())?;
    println!("{}", session.handle().negotiated());
    session.run()?;
    Ok(())
}
