//! A filesystem in memory for the tests, with what they need to look behind the kernel's back: node ids that have
//! nothing to do with inode numbers, files backed by real ones that can be swapped, a gate that holds reads up.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests, each of which uses a part")]

mod filesystem;
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
use tree::{Content, Held, Inode, State};
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
    /// The end of an open passes the gate, once it was carried out.
    pub(crate) gated_releases: bool,
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
    /// Calls that wait at the gate.
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

    fn duties(&self) -> Duties {
        self.connection.get().unwrap().duties
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

    fn open_locked(&self, state: &mut State, node: NodeId, flags: OpenFlags) -> Result<OpenReply> {
        let ino = state.ino(node)?;
        let inode = state.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let Content::File(file) = &inode.content else {
            if flags.contains(OpenFlags::TRUNC) {
                inode.resize(0)?;
            }
            let io = if self.manner.direct { OpenIo::Direct } else { OpenIo::Cached { keep: true } };
            state.nodes.get_mut(&node.0).ok_or(Errno::STALE)?.opens += 1;
            return Ok(OpenReply { handle: Handle(node.0), io });
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
        if flags.contains(OpenFlags::TRUNC) {
            rustix::fs::ftruncate(&file, 0)?;
        }
        held.opens += 1;
        held.file = Some(Arc::clone(&file));
        Ok(OpenReply { handle: Handle(node.0), io: OpenIo::Passthrough(file) })
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
