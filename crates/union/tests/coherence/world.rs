//! One directory, what is true of it, and what the kernel believes.

use crate::service::{Life, Service};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use vellum_branch::MemoryBranch;
use vellum_sys::PersistentMemory;
use vellum_union::{Generations, Ledger};
use vellum_vfs::{
    ActiveOperations, Attr, Branch, BranchDir, Context, DirEntry, DirSink, Entry, Errno, Filesystem, Handle,
    Name, NodeId, Notifier, Object, OpenFlags, Result,
};

pub const USER: Context<'static> =
    Context { uid: 1000, gid: 1000, pid: 1, umask: 0, groups: &[], who: None, progress: &() };
pub const NO_HANDLE: Handle = Handle(0);
/// Names that the parties make and remove.
pub const NAMES: [&CStr; 3] = [c"a", c"b", c"c"];
/// A file of the upper layer that is there all the time, and is cut.
pub const FILE: &CStr = c"file";
/// A file of the lower layer, in a directory of its own, that is there all the time and comes to be copied.
pub const BELOW: &CStr = c"below";
/// The size of both at first.
pub const SIZE: u64 = 100;

/// A party that does not do its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deaf {
    /// The kernel is not told that lists of names do not hold.
    Data,
    /// It is not told that attributes do not hold.
    Attributes,
    /// Answers that are on their way are not waited for.
    Answers,
    /// Who reads from a mapping does not look whether it still holds.
    Cuts,
    /// Who makes names past the kernel does not look what the kernel has begun.
    Begun,
}

impl Deaf {
    pub const ALL: [Self; 5] = [Self::Data, Self::Attributes, Self::Answers, Self::Cuts, Self::Begun];
}

/// What the kernel believes of the directory, until that is recalled.
#[derive(Default)]
pub struct Beliefs {
    pub missing: HashSet<CString>,
    pub names: HashMap<CString, NodeId>,
    pub list: Option<BTreeSet<CString>>,
    pub attributes: HashMap<NodeId, Attr>,
    /// Nodes that it has heard of: of others nothing can be recalled.
    pub nodes: HashSet<NodeId>,
    /// How often attributes of a node were recalled: an answer to an older question is not believed.
    pub recalls: HashMap<NodeId, u64>,
    /// How often they were told: an answer to a question from before that is not believed either.
    pub tellings: HashMap<NodeId, u64>,
}

/// The kernel, as far as the union sees it.
pub struct Kernel {
    pub beliefs: Mutex<Beliefs>,
    /// Operations whose answers have not arrived.
    pub under_way: Mutex<BTreeMap<usize, u64>>,
    /// How many there have been: numbers are never used again.
    pub asked: AtomicU64,
    /// Workers with a request that cannot be carried out twice, and its name.
    pub begun: Mutex<BTreeMap<usize, &'static CStr>>,
    /// Those whose request was begun by a service that has died.
    pub again: Mutex<BTreeSet<usize>>,
    pub dir: Mutex<NodeId>,
    /// The lock of the directory: lookups and lists share it.
    pub lock: shuttle::sync::RwLock<()>,
    /// That of the file, and of the one below, for changes of attributes.
    pub file_lock: shuttle::sync::Mutex<()>,
    pub below_lock: shuttle::sync::Mutex<()>,
    deaf: Option<Deaf>,
}

pub struct World {
    service: Mutex<Arc<Service>>,
    /// Services that have died: whatever they hold stays, as with a process of which others have the descriptors.
    over: Mutex<Vec<Arc<Service>>>,
    disk: Arc<MemoryBranch>,
    generations: Arc<Generations>,
    pub kernel: Arc<Kernel>,
    /// The directory, as the union knows it and as it is on the disk.
    pub dir: NodeId,
    pub upper: Arc<dyn BranchDir>,
    pub file: NodeId,
    pub below: NodeId,
    /// The directory of the one below.
    pub lower: NodeId,
    pub words: PersistentMemory,
    pub deaf: Option<Deaf>,
    /// How often each name was made, by those who make it only where it is free, less how often it was removed. None: somebody cannot know
    /// whether he has made it.
    made: Mutex<HashMap<&'static CStr, Option<i64>>>,
    /// What happened, for those who have to find out why.
    notes: Mutex<Vec<String>>,
}

impl Kernel {
    /// Never held while another thread may go on.
    pub fn beliefs(&self) -> MutexGuard<'_, Beliefs> {
        self.beliefs.lock().unwrap()
    }
}

/// A service's way back, as long as it lives; it must not keep the kernel.
#[derive(Clone)]
pub struct Way(pub Weak<Kernel>, pub Arc<Life>);

impl Way {
    fn kernel(&self) -> Option<Arc<Kernel>> {
        self.0.upgrade().filter(|_| !self.1.is_finished())
    }
}

/// Requests that were under way: whose, and which of his.
struct InHand(Way, Vec<(usize, u64)>);

impl ActiveOperations for InHand {
    fn is_finished(&self) -> bool {
        let Some(kernel) = self.0.kernel() else { return true };
        let under_way = kernel.under_way.lock().unwrap();
        let is_under_way = |(worker, number): &(usize, u64)| under_way.get(worker) == Some(number);
        kernel.deaf == Some(Deaf::Answers) || !self.1.iter().any(is_under_way)
    }
}

impl Notifier for Way {
    fn active_operations(&self) -> Box<dyn ActiveOperations> {
        let Some(kernel) = self.kernel() else { return Box::new(()) };
        let now =
            kernel.under_way.lock().unwrap().iter().map(|(worker, number)| (*worker, *number)).collect();
        Box::new(InHand(self.clone(), now))
    }

    fn is_pending(&self, _: NodeId, what: Name<'_>) -> bool {
        let Some(kernel) = self.kernel() else { return false };
        let is_begun = kernel.begun.lock().unwrap().values().any(|begun| *begun == what.as_c_str());
        is_begun && kernel.deaf != Some(Deaf::Begun)
    }

    fn attributes_changed(&self, node: NodeId) -> Result<()> {
        shuttle::thread::yield_now();
        let Some(kernel) = self.kernel() else { return Ok(()) };
        if kernel.deaf == Some(Deaf::Attributes) {
            return Ok(());
        }
        let mut beliefs = kernel.beliefs();
        if !beliefs.nodes.contains(&node) {
            return Err(Errno::NOENT.into());
        }
        *beliefs.recalls.entry(node).or_default() += 1;
        beliefs.attributes.remove(&node);
        Ok(())
    }

    fn data_changed(&self, node: NodeId) -> Result<()> {
        shuttle::thread::yield_now();
        let Some(kernel) = self.kernel() else { return Ok(()) };
        let dir = *kernel.dir.lock().unwrap();
        let mut beliefs = kernel.beliefs();
        *beliefs.recalls.entry(node).or_default() += 1;
        beliefs.attributes.remove(&node);
        if node == dir && kernel.deaf != Some(Deaf::Data) {
            beliefs.list = None;
        }
        Ok(())
    }
}

/// Names of a directory.
#[derive(Default)]
pub struct Names(pub BTreeSet<CString>);

impl DirSink for Names {
    fn fits(&self, _: usize) -> bool {
        true
    }

    fn push(&mut self, entry: DirEntry<'_>, _: Option<&Entry>) {
        let name = CString::new(entry.name).unwrap();
        if !matches!(name.to_bytes(), b"." | b"..") {
            self.0.insert(name);
        }
    }
}

/// Makes the lower directory's file.
fn make_lower(dir: &dyn BranchDir) {
    let file = dir.create(name(BELOW), 0o644).unwrap();
    file.write_at(&[1; SIZE as usize], 0).unwrap();
    for object in [&*file as &dyn Object, dir] {
        object.set_owner(Some(USER.uid), Some(USER.gid)).unwrap();
    }
}

pub fn name(text: &CStr) -> Name<'_> {
    Name::new(text).unwrap()
}

impl World {
    pub fn new(deaf: Option<Deaf>) -> Arc<Self> {
        let disk = MemoryBranch::new();
        let part = |path: &str| disk.subtree(path).unwrap();
        let generations = Arc::new(Generations::create().unwrap());
        let words = generations.as_fd().try_clone_to_owned().unwrap();
        let words = PersistentMemory::open(&Generations::MEMORY, words).unwrap();
        part("upper").root().set_mode(0o777).unwrap();
        make_lower(&*part("lower/low").root());
        let kernel = Arc::new(Kernel {
            beliefs: Mutex::default(),
            under_way: Mutex::default(),
            asked: AtomicU64::new(0),
            begun: Mutex::default(),
            again: Mutex::default(),
            dir: Mutex::new(NodeId::ROOT),
            lock: shuttle::sync::RwLock::new(()),
            file_lock: shuttle::sync::Mutex::new(()),
            below_lock: shuttle::sync::Mutex::new(()),
            deaf,
        });
        let ledger = Arc::new(Ledger::create().unwrap());
        let service = Service::begin(&disk, &generations, ledger, &kernel);
        let dir = service.fs.mkdir(&USER, NodeId::ROOT, name(c"dir"), 0o755).unwrap().node;
        *kernel.dir.lock().unwrap() = dir;
        let (file, opened) =
            service.fs.create(&USER, dir, name(FILE), 0o644, OpenFlags::WRONLY | OpenFlags::EXCL).unwrap();
        service.fs.release(file.node, opened.handle);
        let upper = part("upper/dir").root();
        let content = upper.open_file(name(FILE), vellum_vfs::OpenMode::WRITE).unwrap();
        content.write_at(&[1; SIZE as usize], 0).unwrap();
        drop(content);
        let look = |parent, what| service.fs.lookup(&USER, parent, name(what)).unwrap().unwrap().node;
        let lower = look(NodeId::ROOT, c"low");
        let below = look(lower, BELOW);
        kernel.beliefs().names.insert(FILE.to_owned(), file.node);
        kernel.beliefs().nodes.extend([dir, file.node, lower, below]);
        service.is_entered(dir);
        Arc::new(Self {
            service: Mutex::new(Arc::new(service)),
            over: Mutex::default(),
            disk,
            generations,
            kernel,
            dir,
            upper,
            file: file.node,
            below,
            lower,
            words,
            deaf,
            made: Mutex::default(),
            notes: Mutex::default(),
        })
    }

    /// The service that there was last; it may have died.
    pub fn service(&self) -> Arc<Service> {
        Arc::clone(&self.service.lock().unwrap())
    }

    /// A service that is alive, once there is one.
    pub fn served(&self) -> Arc<Service> {
        loop {
            let service = self.service();
            if !service.life.is_finished() {
                return service;
            }
            shuttle::thread::yield_now();
        }
    }

    /// The service dies, whatever its threads are doing, and another goes on with what it leaves: the disk, the ledger, the generations,
    /// and requests that have not been answered.
    pub fn take_over(&self) {
        let before = self.service();
        let left = before.dies();
        self.kernel.under_way.lock().unwrap().clear();
        let begun = self.kernel.begun.lock().unwrap().clone();
        self.note(|| format!("the service dies; {begun:?} had begun"));
        self.kernel.again.lock().unwrap().extend(begun.into_keys());
        let ledger = Arc::new(Ledger::open(left).unwrap());
        let next = Service::begin(&self.disk, &self.generations, ledger, &self.kernel);
        next.is_entered(self.dir);
        self.note(|| "another goes on".into());
        let before = std::mem::replace(&mut *self.service.lock().unwrap(), Arc::new(next));
        self.over.lock().unwrap().push(before);
    }

    /// The node of one of the files that are there all the time.
    pub fn node(&self, what: &CStr) -> NodeId {
        if what == FILE { self.file } else { self.below }
    }

    /// A name was made where it was free, or removed.
    pub fn counts(&self, what: &'static CStr, made: i64) {
        if let Some(count) = self.made.lock().unwrap().entry(what).or_insert(Some(0)) {
            *count += made;
        }
    }

    /// Nobody knows whether a name was made.
    pub fn may_have_made(&self, what: &'static CStr) {
        self.made.lock().unwrap().insert(what, None);
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        self.notes.lock().unwrap().push(what());
    }

    /// Ends the test unless `holds`, and says how it came about.
    pub fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let notes = self.notes.lock().unwrap().join("\n");
            panic!("{}; before that:\n{notes}", what());
        }
    }

    /// Nobody does anything any more: whatever the kernel believes is so.
    pub fn check_beliefs(&self) {
        let mut found = Names::default();
        let fs = &self.service().fs;
        fs.readdir(&USER, self.dir, NO_HANDLE, 0, &mut found).unwrap();
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        let beliefs = std::mem::take(&mut *self.kernel.beliefs());
        for what in NAMES {
            let exists = self.upper.stat_at(name(what)).is_ok();
            self.check(found.0.contains(what) == exists, || format!("{what:?} is listed wrongly"));
            self.check(!(exists && beliefs.missing.contains(what)), || {
                format!("{what:?} is believed not to be there")
            });
            self.check(exists || !beliefs.names.contains_key(what), || {
                format!("{what:?} is believed to be there")
            });
            if let Some(times) = made.get(what).copied().unwrap_or(Some(0)) {
                self.check(times == i64::from(exists), || {
                    format!("{what:?} was made {times} times more than removed; it is there: {exists}")
                });
            }
        }
        if let Some(list) = beliefs.list {
            self.check(list == found.0, || format!("{list:?} is believed to be {:?}", found.0));
        }
        for (node, attr) in beliefs.attributes {
            let now = fs.getattr(&USER, node, None).unwrap().attr;
            // That of a directory a copy-up changes, without anybody having changed the tree.
            let ctime = |attr: &Attr| (!attr.is_dir()).then_some(attr.ctime);
            let shown = |attr: Attr| (attr.size, attr.mode, attr.nlink, attr.mtime, ctime(&attr), attr.uid);
            self.check(shown(attr) == shown(now), || {
                format!("{attr:?} of {node:?} is believed, and it is {now:?}")
            });
        }
    }
}
