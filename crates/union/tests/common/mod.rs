//! What the tests of the union share: mounting layers that lie in memory, and looking at whole trees.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../../../branch/tests/support/fault/mod.rs"]
pub mod fault;
pub mod quiet;
pub mod tree;
pub mod watchdog;

use fault::{FaultBranch, FaultPlan};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_branch::{MemoryBranch, Writeback, WritebackLimits};
use vellum_union::{Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    ActiveOperations, Branch, Context, DirEntry, DirSink, Entry, Errno, FileKind, Filesystem, Handle, Name,
    NodeId, Notifier, Result,
};

/// The superuser, with no umask.
pub const ROOT: Context<'static> =
    Context { uid: 0, gid: 0, pid: 1, umask: 0, groups: &[], who: None, progress: &() };
/// No state per open.
pub const NO_HANDLE: Handle = Handle(0);

/// A name that is known to be one.
pub fn name(name: &CStr) -> Name<'_> {
    Name::new(name).expect("a name")
}

/// The errno alone, which is what can be compared.
pub fn errno_of<T>(result: Result<T>) -> Result<T, Errno> {
    result.map_err(|error| error.errno())
}

/// An upper layer and one lower in `disk`, where `plan` says what fails; nothing is done in the background.
pub fn faulty(disk: &MemoryBranch, plan: &Arc<FaultPlan>) -> UnionConfig {
    let branch =
        |path: &str| -> Arc<dyn Branch> { FaultBranch::new(disk.subtree(path).unwrap(), Arc::clone(plan)) };
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
    config.lowers = vec![branch("lower")];
    config.background = false;
    config
}

/// An upper that is written behind.
pub fn writeback(upper: UpperConfig) -> UpperConfig {
    let limits =
        WritebackLimits { bytes: WritebackLimits::BYTES_MIN, age: std::time::Duration::from_secs(3600) };
    let writeback = Writeback::create(upper.branch, upper.work, limits).expect("a log");
    let (branch, work) = writeback.branches();
    UpperConfig { branch, work }
}

/// The layers on one disk: `upper0` is the first upper, and each later one lies above those before it.
pub struct Layers {
    /// The disk with all uppers and their work directories.
    pub disk: Arc<MemoryBranch>,
    /// How many uppers there are; the last of them is written to.
    pub uppers: usize,
    /// Layers that were never uppers, uppermost first.
    pub base: Vec<Arc<dyn Branch>>,
}

impl Layers {
    /// The branch of an upper, on this disk or another state of it.
    pub fn upper(disk: &MemoryBranch, number: usize) -> Arc<dyn Branch> {
        Self::upper_of(disk, number)
    }

    pub fn upper_of(disk: &MemoryBranch, number: usize) -> Arc<MemoryBranch> {
        disk.subtree(&format!("upper{number}")).expect("a directory on the disk")
    }

    /// What the uppers below the last one, and the base, make: uppermost first.
    fn lowers(&self, disk: &MemoryBranch) -> Vec<Arc<dyn Branch>> {
        let former = (0..self.uppers - 1).rev().map(|number| Self::upper(disk, number));
        former.chain(self.base.iter().cloned()).collect()
    }

    /// A union that writes to the last upper, on `disk`.
    pub fn config_on(&self, disk: &MemoryBranch) -> UnionConfig {
        let top = self.uppers - 1;
        let work = disk.subtree(&format!("work{top}")).expect("a directory on the disk");
        let mut config = UnionConfig::new();
        config.upper = Some(UpperConfig { branch: Self::upper(disk, top), work });
        config.lowers = self.lowers(disk);
        config.background = false;
        config
    }

    /// A read-only union in which the last upper is one of the lowers.
    pub fn read_only_on(&self, disk: &MemoryBranch) -> UnionConfig {
        let mut config = UnionConfig::new();
        config.lowers = self.lowers(disk);
        config.lowers.insert(0, Self::upper(disk, self.uppers - 1));
        config.background = false;
        config
    }
}

/// A kernel that answers at once, and hears of changes what it likes.
#[derive(Default)]
pub struct Deaf {
    /// It has forgotten every file, and that has not been heard of yet.
    pub forgetful: bool,
}

impl Notifier for Deaf {
    fn is_pending(&self, _: NodeId, _: Name<'_>) -> bool {
        false
    }
    fn active_operations(&self) -> Box<dyn ActiveOperations> {
        Box::new(())
    }
    fn attributes_changed(&self, _: NodeId) -> Result<()> {
        if self.forgetful { Err(Errno::NOENT.into()) } else { Ok(()) }
    }
    fn data_changed(&self, _: NodeId) -> Result<()> {
        Ok(())
    }
}

/// One entry of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    pub cookie: u64,
    pub ino: u64,
    pub kind: Option<FileKind>,
    pub name: CString,
    /// From a listing with lookups.
    pub entry: Option<Entry>,
}

/// Takes a few entries at a time.
pub struct Sink {
    room: usize,
    pub entries: Vec<Listed>,
}

impl Sink {
    pub fn new(room: usize) -> Self {
        Self { room, entries: Vec::new() }
    }
}

impl DirSink for Sink {
    fn fits(&self, _: usize) -> bool {
        self.entries.len() < self.room
    }

    fn push(&mut self, dirent: DirEntry<'_>, entry: Option<&Entry>) {
        let DirEntry { ino, cookie, kind, name } = dirent;
        let name = CString::new(name).expect("a name without NUL");
        self.entries.push(Listed { cookie, ino, kind, name, entry: entry.copied() });
    }
}

/// Part of a listing, from an offset.
pub fn list_some(fs: &Union, node: NodeId, offset: u64, room: usize, plus: bool) -> Result<Vec<Listed>> {
    let mut sink = Sink::new(room);
    if plus {
        fs.readdirplus(&ROOT, node, NO_HANDLE, offset, &mut sink)?;
    } else {
        fs.readdir(&ROOT, node, NO_HANDLE, offset, &mut sink)?;
    }
    for (before, after) in sink.entries.iter().zip(sink.entries.iter().skip(1)) {
        assert!(before.cookie < after.cookie, "offsets must rise: {before:?}, {after:?}");
    }
    assert!(sink.entries.first().is_none_or(|first| first.cookie > offset), "an offset that goes back");
    Ok(sink.entries)
}

/// A whole listing without `.` and `..`, a few entries at a time. Lookups that came with it are given back.
pub fn list_all(fs: &Union, node: NodeId, plus: bool) -> Result<Vec<Listed>> {
    let mut all: Vec<Listed> = Vec::new();
    let mut offset = 0;
    loop {
        let some = list_some(fs, node, offset, 3, plus)?;
        let Some(last) = some.last() else { break };
        offset = last.cookie;
        all.extend(some);
    }
    for listed in &all {
        if let Some(entry) = &listed.entry {
            fs.forget(entry.node, 1);
        }
    }
    all.retain(|listed| !matches!(listed.name.to_bytes(), b"." | b".."));
    let mut names: Vec<&CStr> = all.iter().map(|listed| &*listed.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len(), "a name is listed twice: {all:?}");
    Ok(all)
}

/// Walks to a path (names joined by `/`); the lookups on the way are given back, the last one is the caller's.
pub fn walk(fs: &Union, path: &str) -> Result<Option<Entry>> {
    let mut held: Vec<NodeId> = Vec::new();
    let mut found = None;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let part = CString::new(part).expect("a name without NUL");
        let parent = held.last().copied().unwrap_or(NodeId::ROOT);
        found = fs.lookup(&ROOT, parent, name(&part))?;
        match &found {
            Some(entry) => held.push(entry.node),
            None => break,
        }
    }
    if found.is_some() {
        held.pop();
    }
    for node in held {
        fs.forget(node, 1);
    }
    Ok(found)
}
