//! A union whose process is replaced, and what a front holds of it.
#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../../../branch/tests/support/fault/mod.rs"]
mod fault;

use fault::{FaultBranch, FaultPlan};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsString};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use vellum_branch::LocalBranch;
use vellum_sys::crash_point::{at_each, copy};
use vellum_union::{Budget, Ledger, Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    ActiveOperations, Branch, BranchDir, Connection, Context, Duties, Entry, Errno, Error, Filesystem,
    Handle, Name, NodeId, Notifier, OpenFlags, Profile, StatFs,
};

pub const ROOT: Context<'static> =
    Context { uid: 0, gid: 0, pid: 1, umask: 0, groups: &[], who: None, progress: &() };
pub const NO_HANDLE: Handle = Handle(0);
pub const O_EXCL: OpenFlags = OpenFlags::EXCL;
pub const O_RDONLY: OpenFlags = OpenFlags::empty();
pub const O_RDWR: OpenFlags = OpenFlags::RDWR;
pub const O_TRUNC: OpenFlags = OpenFlags::TRUNC;

/// What a front holds: an id, how often it has looked it up, and what it has seen of the object.
pub struct Held {
    pub node: NodeId,
    pub lookups: u64,
    pub opens: Vec<Handle>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub size: u64,
    pub contents: Option<Vec<u8>>,
}

/// What the upper layer lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Local,
    /// The kernel opens the layers' files itself, those of the lower layer until they are copied up.
    Passthrough,
    /// Objects have no descriptors.
    Far,
    /// Nor can two names change places, as on CephFS.
    FarPlain,
    /// The kernel opens files itself, and the process can be killed at a change.
    FarPassthrough,
    /// As that, and a file can have few names only.
    FewLinks,
}

pub const STORAGES: [Storage; 5] =
    [Storage::Local, Storage::Passthrough, Storage::Far, Storage::FarPlain, Storage::FarPassthrough];

impl Storage {
    pub fn is_passthrough(self) -> bool {
        matches!(self, Self::Passthrough | Self::FarPassthrough | Self::FewLinks)
    }

    pub fn is_remote(self) -> bool {
        self != Self::Local && self != Self::Passthrough
    }
}

pub struct World {
    pub storage: Storage,
    /// What goes wrong on a far storage.
    pub plan: Arc<FaultPlan>,
    pub dir: tempfile::TempDir,
    pub union: Arc<Union>,
    pub ledger: Arc<Ledger>,
    pub held: Vec<Held>,
    /// What it hears, once it does.
    pub kernel: Option<Arc<Kernel>>,
    /// Processes that are gone: what they had open stays open as long as the world is there.
    dead: Vec<(Arc<Union>, Arc<Ledger>)>,
}

/// A kernel that believes attributes until it is told better.
#[derive(Default)]
pub struct Kernel {
    recalled: Mutex<HashSet<NodeId>>,
    /// What happens before it hears anything.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Kernel {
    /// Calls `act` before it is told anything the next time, in the thread that does.
    pub fn before_next_notification(&self, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(act));
    }

    pub fn is_told(&self, node: NodeId) -> bool {
        self.recalled.lock().unwrap().contains(&node)
    }
}

impl Notifier for Kernel {
    fn attributes_changed(&self, node: NodeId) -> Result<(), Error> {
        let act = self.meanwhile.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
        self.recalled.lock().unwrap().insert(node);
        Ok(())
    }
    fn data_changed(&self, node: NodeId) -> Result<(), Error> {
        self.attributes_changed(node)
    }
    fn active_operations(&self) -> Box<dyn ActiveOperations> {
        Box::new(())
    }
    fn is_pending(&self, _: NodeId, _: Name<'_>) -> bool {
        false
    }
}

/// A branch that says it is of a filesystem on which a file can have 1024 names.
struct FewLinks(Arc<FaultBranch>);

impl Branch for FewLinks {
    fn inner(&self) -> Result<&dyn Branch, Error> {
        Ok(&*self.0)
    }

    fn root(&self) -> Arc<dyn BranchDir> {
        self.0.root()
    }
    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>, Error> {
        self.0.open_dir_path(path)
    }
    fn statfs(&self) -> Result<StatFs, Error> {
        const NTFS3: u64 = 0x7366_746e;
        Ok(StatFs { fstype: NTFS3, ..self.0.statfs()? })
    }
}

pub fn make_layers(dir: &Path) {
    for layer in ["lower", "upper", "work"] {
        std::fs::create_dir(dir.join(layer)).unwrap();
    }
    let lower = dir.join("lower");
    for sub in ["a", "b", "a/c"] {
        std::fs::create_dir(lower.join(sub)).unwrap();
        for number in 0..3 {
            std::fs::write(lower.join(sub).join(format!("f{number}")), format!("{sub} {number}")).unwrap();
        }
    }
    std::fs::hard_link(lower.join("a/f0"), lower.join("b/twin")).unwrap();
    std::fs::write(lower.join("a/large"), vec![b'l'; 200 << 10]).unwrap();
}

pub fn open(dir: &Path, ledger: &Arc<Ledger>, storage: Storage, plan: &Arc<FaultPlan>) -> Union {
    let far = storage.is_remote();
    let branch = |name: &str| -> Arc<dyn Branch> {
        let local = LocalBranch::open(dir.join(name)).unwrap();
        match storage {
            Storage::FewLinks => Arc::new(FewLinks(FaultBranch::new(local, Arc::clone(plan)))),
            _ if far => FaultBranch::new(local, Arc::clone(plan)),
            _ => local,
        }
    };
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
    config.lowers = vec![branch("lower")];
    config.background = false;
    if storage.is_passthrough() {
        config.profile = Profile::Passthrough;
    }
    config.sidecars = far;
    config.run = Some([1; 16]);
    // What was forgotten stays open, so little is kept open for speed.
    config.handles = Arc::new(Budget::new(16, u64::MAX));
    config.ledger = Some(Arc::clone(ledger));
    Union::new(config).unwrap()
}

impl World {
    pub fn new(storage: Storage) -> Self {
        // What a killed process had open stays open here.
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let limit = rustix::process::Rlimit { current: most, maximum: most };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
        let dir = tempfile::tempdir().unwrap();
        make_layers(dir.path());
        let ledger = Arc::new(Ledger::create().unwrap());
        let plan = FaultPlan::new();
        if storage == Storage::FarPlain {
            plan.set_plain_renames();
        }
        let union = Arc::new(open(dir.path(), &ledger, storage, &plan));
        let held = vec![Held { node: NodeId::ROOT, lookups: 0, opens: Vec::new() }];
        Self { storage, plan, dir, union, ledger, held, kernel: None, dead: Vec::new() }
    }

    /// From now on a kernel hears what is said to it.
    pub fn serve(&mut self, kernel: Arc<Kernel>) {
        self.union.start(Connection { duties: Duties::SERVES_FILES, notifier: Arc::clone(&kernel) as _ });
        self.kernel = Some(kernel);
    }

    pub fn hold(&mut self, entry: &Entry) {
        match self.held.iter_mut().find(|held| held.node == entry.node) {
            Some(held) => held.lookups += 1,
            None => self.held.push(Held { node: entry.node, lookups: 1, opens: Vec::new() }),
        }
    }

    pub fn see(&self, node: NodeId) -> Result<Seen, vellum_vfs::Errno> {
        let reply = self.union.getattr(&ROOT, node, None).map_err(|e| e.errno())?;
        let attr = reply.attr;
        let mut contents = None;
        if attr.is_file() {
            let mut data = vec![0; attr.size as usize + 1];
            let len = self.union.read(&ROOT, node, NO_HANDLE, 0, &mut data).map_err(|e| e.errno())?;
            data.truncate(len);
            contents = Some(data);
        }
        Ok(Seen { ino: attr.ino, mode: attr.mode, nlink: attr.nlink, size: attr.size, contents })
    }

    /// Opens a file as the kernel does: one that says ESTALE is looked up again, and opened by the node that it has now.
    pub fn open(&mut self, at: usize, flags: OpenFlags) -> Option<Errno> {
        let node = self.held[at].node;
        match self.union.open(&ROOT, node, flags) {
            Ok(opened) => {
                self.held[at].opens.push(opened.handle);
                None
            }
            Err(error) => Some(error.errno()),
        }
    }

    /// Nodes that show one number show one file: what is done by one of them shows in the others.
    pub fn check_nodes(&self) {
        let mut by_number: HashMap<u64, (NodeId, Seen)> = HashMap::new();
        for held in &self.held {
            let Ok(seen) = self.see(held.node) else { continue };
            let (first, expected) = by_number.entry(seen.ino).or_insert((held.node, seen.clone()));
            assert_eq!(&seen, expected, "{:?} and {first:?} are nodes of one file", held.node);
        }
    }

    /// The process is gone, and another begins: what is held is the same.
    pub fn restart(&mut self) {
        let ids: Vec<NodeId> = self.held.iter().map(|held| held.node).collect();
        let before: Vec<_> = ids.iter().map(|node| self.see(*node)).collect();
        self.replace();
        for (node, before) in ids.iter().zip(before) {
            let after = self.see(*node);
            // Nothing holds a directory there that has no name.
            let is_removed_dir = before.as_ref().is_ok_and(|seen| seen.nlink == 0 && seen.contents.is_none());
            if !(self.storage.is_remote() && is_removed_dir && after == Err(Errno::STALE)) {
                assert_eq!(after, before, "{node:?} after a restart");
            }
        }
    }

    /// Kills the process before a change of its ledger. The ledger that it leaves; None: `work` ended before.
    pub fn kill_at_store<T>(
        &mut self,
        store: usize,
        work: impl FnOnce(&mut Self) -> T,
    ) -> (T, Option<OwnedFd>) {
        let left = Rc::new(RefCell::new(None));
        let look = {
            let (left, plan, ledger) = (Rc::clone(&left), Arc::clone(&self.plan), Arc::clone(&self.ledger));
            let mut stores = 0..store;
            move || {
                if stores.next().is_none() && !plan.is_dead() {
                    plan.kill_at_step(0);
                    *left.borrow_mut() = Some(copy(ledger.descriptor(), c"copy").unwrap());
                }
            }
        };
        let (done, _) = at_each(look, || work(self));
        (done, left.take())
    }

    /// The process is gone, and another begins.
    pub fn replace(&mut self) {
        self.replace_by(self.ledger.descriptor().try_clone_to_owned().unwrap());
    }

    /// The process is gone, and another begins with the ledger that it has left.
    pub fn replace_by(&mut self, memory: OwnedFd) {
        let ledger = Arc::new(Ledger::open(memory).unwrap());
        let union = Arc::new(open(self.dir.path(), &ledger, self.storage, &self.plan));
        let dead = std::mem::replace(&mut self.union, union);
        self.dead.push((dead, std::mem::replace(&mut self.ledger, Arc::clone(&ledger))));
        // Other descriptors of the same objects: those of the first process are still its own here.
        let again = |fd: RawFd| -> Option<(RawFd, OwnedFd)> {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            let path = format!("/proc/self/fd/{fd}");
            Some((fd, rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?))
        };
        let held: HashMap<RawFd, OwnedFd> = ledger.held_descriptors().into_iter().filter_map(again).collect();
        assert!(held.values().all(|fd| fd.as_fd().try_clone_to_owned().is_ok()));
        self.union.resume(held);
        if let Some(kernel) = self.kernel.take() {
            self.serve(kernel);
        }
    }

    /// Names of removed files.
    pub fn orphan_names(&self) -> Vec<OsString> {
        let names = std::fs::read_dir(self.dir.path().join("work/work")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.as_encoded_bytes().starts_with(b"@")).collect()
    }

    /// All is forgotten, and the union ends: nothing is left of what was removed.
    pub fn leave(mut self) {
        for held in self.held.drain(..).skip(1) {
            held.opens.iter().for_each(|open| self.union.release(held.node, *open));
            self.union.forget(held.node, held.lookups);
        }
        let left = self.orphan_names();
        assert!(left.is_empty(), "{left:?}");
    }

    pub fn forget(&mut self, at: usize) {
        if at > 0 && at < self.held.len() {
            // A front holds the parents of what it holds; what is a directory is kept.
            let held = &self.held[at];
            if self.see(held.node).is_ok_and(|seen| seen.contents.is_some()) {
                let held = self.held.swap_remove(at);
                held.opens.iter().for_each(|open| self.union.release(held.node, *open));
                self.union.forget(held.node, held.lookups);
            }
        }
    }
}
