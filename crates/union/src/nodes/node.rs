//! What a kernel holds: nodes. A node is a directory, or it shows a file; several nodes may show one file.

use crate::coherence::entries::Entries;
use crate::coherence::generations::FileGeneration;
use crate::coherence::leases::DirLease;
use crate::copyup::privileges::NoCapability;
use crate::copyup::unsynced_metadata::UnsyncedMetadata;
use crate::extents::PartialFile;
use crate::layers::handles::{Evict, EvictOutcome, Slot};
use crate::layers::layer::{InodeKey, LowerDir, described};
use crate::layers::orphans::OrphanName;
use crate::layers::sidecar::DoomedSidecar;
use crate::nodes::names::Names;
use crate::nodes::shared_name::SharedName;
use crate::sync::{AtomicBool, AtomicU32};
use crate::sync::{Mutex, RwLock};
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use vellum_vfs::{BranchDir, BranchFile, FileKind, Name, NodeId, Object, Timestamp};

#[cfg(test)]
thread_local! {
    /// How often this thread has compared a name with a place.
    pub(crate) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Where a name is: a directory and the name in it.
#[derive(Clone)]
pub(crate) struct Dentry {
    pub(crate) parent: Arc<Node>,
    pub(crate) name: SharedName,
}

impl Dentry {
    pub(crate) fn new(parent: &Arc<Node>, name: impl Into<SharedName>) -> Self {
        Self { parent: Arc::clone(parent), name: name.into() }
    }

    pub(crate) fn is(&self, parent: &Arc<Node>, name: Name<'_>) -> bool {
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        Arc::ptr_eq(&self.parent, parent) && *self.name == *name.as_c_str()
    }
}

/// An object that the kernel holds by its id.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Inode number as the union shows it; stable over copy-up and remount.
    pub(crate) ino: u64,
    pub(crate) body: Body,
    origin: Arc<Origin>,
}

pub(crate) trait IdSource: Send + Sync {
    /// A node has ended, `key` being its object as it is found now.
    fn ended(&self, id: NodeId, key: Option<InodeKey>);
    /// By which nodes find it.
    fn origin(&self) -> &OnceLock<Arc<Origin>>;
}

/// One for all nodes of a keeper, so that each has a thin reference.
pub(crate) struct Origin(Weak<dyn IdSource>);

/// What a node is.
pub(crate) enum Body {
    Dir(Box<Dir>),
    /// Anything else.
    File(NodeFile),
}

/// The file that a node shows.
pub(crate) struct NodeFile {
    file: Arc<File>,
    marks: Marks,
}

/// What a node of a file is to the kernel. A directory has one node, and nothing of this.
pub(crate) struct Marks {
    /// The file now has another node: an open of this one must be told to look the name up again.
    pub(crate) stale: AtomicBool,
    /// The kernel was given the lower file for passthrough through this node.
    pub(crate) lower_passthrough: AtomicBool,
    /// The file has another node, through which changes are made that the kernel does not connect with this one.
    pub(crate) alias: bool,
}

impl Marks {
    const fn new(alias: bool) -> Self {
        Self { stale: AtomicBool::new(false), lower_passthrough: AtomicBool::new(false), alias }
    }
}

impl Deref for NodeFile {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

pub(crate) struct Dir {
    /// Its entries, as far as they are known, and the lock of its names.
    pub(crate) entries: Entries,
    /// One copy-up at a time; also taken by what moves or removes the directory.
    pub(crate) copy: Mutex<()>,
    /// Where it is; None for the root and when it has been removed.
    pub(crate) place: RwLock<Option<Dentry>>,
    /// Its directory in the upper layer.
    pub(crate) upper: Mutex<Option<UpperDir>>,
    /// Its directories in lower layers, uppermost first. Never changes.
    pub(crate) lowers: Box<[Arc<LowerDir>]>,
    /// Its path in the union of the lower layers alone; what a redirect records. None without lowers.
    pub(crate) lower_path: Option<SharedName>,
    /// What new entries inherit; None: not read yet.
    pub(crate) inherit: Mutex<Option<Inherit>>,
    /// It has been removed: nothing can be made in it.
    pub(crate) removed: AtomicBool,
    /// What the kernel may believe of it.
    pub(crate) lease: DirLease,
}

/// A directory in the upper layer.
#[derive(Clone)]
pub(crate) struct UpperDir {
    /// Its own inode number, to recognise it when it is opened again.
    pub(crate) ino: u64,
    /// A handle to it.
    pub(crate) slot: Arc<Slot<dyn BranchDir>>,
    /// Empty files in it may be whiteouts by attribute.
    pub(crate) xwhiteouts: bool,
    /// Files in it may be without data, in the kernel's format.
    pub(crate) impure: bool,
}

/// Owner, group and mode of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Type and permission bits.
    pub(crate) mode: u32,
}

/// What a directory hands down to what is made in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherit {
    /// Owner and mode, as the mount shows them.
    pub(crate) owner: Owner,
    /// It has a default ACL, so the umask does not act.
    pub(crate) default_acl: bool,
    /// It has an ACL of its own, which says more than its mode.
    pub(crate) acl: bool,
}

/// Everything that is not a directory. Most of them are only looked at, and have nothing but this.
pub(crate) struct File {
    pub(crate) kind: FileKind,
    /// Where it lives.
    pub(crate) state: RwLock<FileState>,
    in_use: OnceLock<Arc<OpenState>>,
}

/// What a file has once somebody has opened, changed or replaced it.
pub(crate) struct OpenState {
    /// One copy-up at a time.
    pub(crate) copy: Mutex<()>,
    /// The partial file behind it while somebody uses it: there is only one, for it knows which blocks are whose.
    pub(crate) partial: Mutex<Weak<PartialFile>>,
    /// Its sidecar, once the file has no name any more.
    pub(crate) doomed: Mutex<Option<Box<DoomedSidecar>>>,
    /// Opens that go through the kernel's page cache, where others are handed to the kernel: the two exclude each other.
    pub(crate) cached_opens: AtomicU32,
    /// Opens by which it can be mapped to write, of those that were handed to the kernel.
    pub(crate) mappable: AtomicU32,
    /// When the kernel last said that it was changed ([`crate::coherence::ctime_cache`]).
    pub(crate) kernel_ctime: Mutex<Option<Timestamp>>,
    /// The open file behind a regular file. Reading and writing takes this slot's lock and no other.
    pub(crate) io: Slot<Io>,
    /// The node that shows the file since its last node was swapped.
    pub(crate) successor: Mutex<Weak<Node>>,
    /// By the id of each node that was replaced, the node that shows the file instead. It lives as long as that one does, so that names lead
    /// to it.
    replaced: Mutex<Vec<(NodeId, Arc<Node>)>>,
    /// Who may have mapped it.
    pub(crate) watched: FileGeneration,
    /// Held shared by what writes to it and then gives back what that takes: times, set-id bits, its capability. Exclusively by what sets
    /// those.
    pub(crate) times: RwLock<()>,
    /// Whether it is known to have no capability.
    pub(crate) no_capability: NoCapability,
    /// Whether a sync of its data is enough.
    pub(crate) unsynced: UnsyncedMetadata,
}

impl OpenState {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            copy: Mutex::new(()),
            partial: Mutex::new(Weak::new()),
            doomed: Mutex::default(),
            cached_opens: AtomicU32::new(0),
            mappable: AtomicU32::new(0),
            kernel_ctime: Mutex::default(),
            io: Slot::empty(),
            successor: Mutex::new(Weak::new()),
            replaced: Mutex::default(),
            watched: FileGeneration::default(),
            times: RwLock::new(()),
            no_capability: NoCapability::default(),
            unsynced: UnsyncedMetadata::new(),
        })
    }
}

impl OpenState {
    /// To be dropped without any lock.
    fn take_successor(&self, id: NodeId) -> Option<Arc<Node>> {
        let mut replaced = self.replaced.lock();
        let at = replaced.iter().position(|(replaced, _)| *replaced == id)?;
        Some(replaced.swap_remove(at).1)
    }
}

impl Evict for OpenState {
    fn evict(&self) -> EvictOutcome {
        self.io.evict()
    }
}

/// Whoever asks for any of it begins to use the file; [`File::used`] only looks.
impl Deref for File {
    type Target = Arc<OpenState>;

    fn deref(&self) -> &Arc<OpenState> {
        self.in_use.get_or_init(OpenState::new)
    }
}

/// An open file in a branch.
pub(crate) struct Io {
    pub(crate) file: Arc<dyn BranchFile>,
    /// It is the file's own in the upper, opened for reading and writing.
    pub(crate) writable: bool,
    /// The file with its map of blocks, if it is partial.
    pub(crate) partial: Option<Arc<PartialFile>>,
    /// In `passthrough`: the kernel is not given it to read.
    pub(crate) through_cache: bool,
}

impl Io {
    pub(crate) const fn new(file: Arc<dyn BranchFile>, writable: bool) -> Self {
        Self { file, writable, partial: None, through_cache: false }
    }
}

/// Where a file lives.
pub(crate) struct FileState {
    /// Names by which it is known here; there may be more in the layer.
    pub(crate) names: Names,
    pub(crate) at: InodeLocation,
    /// Which inode that is; None after a copy-up, until somebody needs to know.
    pub(crate) inode: Option<InodeKey>,
    /// Where its data are, as long as they are not all in the inode.
    pub(crate) below: Option<Arc<LowerData>>,
    /// Some blocks are in the inode; the others are below. Without it, all data are below.
    pub(crate) partial: bool,
    /// Its data were below, and are not there any more, or not the same.
    pub(crate) lost_data: bool,
    /// What only few files have, most of them without a name.
    pub(crate) rare: Option<Box<RareState>>,
    /// Names of a lower file that were removed since it is known.
    pub(crate) lost: u32,
    /// A user's own character device 0:0, stored as an empty file.
    pub(crate) null_device: bool,
    /// It has more names in its lower layer than the upper one gives to a file: each of them is a file of its own, and shows a number of
    /// its own once it is copied up.
    pub(crate) apart: bool,
}

/// What only few files have.
#[derive(Default)]
pub(crate) struct RareState {
    /// Its name in the work directory, if it needs one there.
    pub(crate) orphan: Option<Arc<OrphanName>>,
    /// Times set on a lower file that has no name any more; they end with it.
    pub(crate) orphan_times: Option<(Timestamp, Timestamp)>,
}

pub(crate) enum InodeLocation {
    /// In a lower layer.
    Lower(LowerLocation),
    /// In the upper layer, under each of its names.
    Upper,
    /// In the upper layer, possibly without any name.
    Orphan(Arc<dyn Object>),
}

/// A file in a lower layer.
#[derive(Clone)]
pub(crate) struct LowerLocation {
    pub(crate) dir: Arc<LowerDir>,
    pub(crate) name: SharedName,
}

/// Where data are that a file does not have itself.
pub(crate) struct LowerData {
    /// A file with data.
    pub(crate) at: LowerLocation,
    /// Where the rest is, if that file is partial.
    pub(crate) next: Option<Arc<LowerData>>,
}

/// Directories are not replaced.
#[cfg(not(shuttle))]
fn marks_of_directories() -> &'static Marks {
    static ALL: OnceLock<Marks> = OnceLock::new();
    ALL.get_or_init(|| Marks::new(false))
}

/// The model checker runs several tests at a time, and its atomics are of one thread.
#[cfg(shuttle)]
fn marks_of_directories() -> &'static Marks {
    thread_local! {
        static ALL: &'static Marks = Box::leak(Box::new(Marks::new(false)));
    }
    ALL.with(|all| *all)
}

impl Node {
    pub(crate) fn new(id: NodeId, ino: u64, body: Body, keeper: &Arc<impl IdSource + 'static>) -> Self {
        let new = || {
            let keeper = Arc::downgrade(keeper);
            Arc::new(Origin(keeper))
        };
        Self { id, ino, body, origin: Arc::clone(keeper.origin().get_or_init(new)) }
    }

    /// A second node of a file, for a handle with an id that the file had before.
    pub(crate) fn alias(
        id: NodeId,
        ino: u64,
        file: Arc<File>,
        keeper: &Arc<impl IdSource + 'static>,
    ) -> Self {
        Self::new(id, ino, Body::File(NodeFile { file, marks: Marks::new(true) }), keeper)
    }

    /// What it is to the kernel.
    pub(crate) fn marks(&self) -> &Marks {
        match &self.body {
            Body::Dir(_) => marks_of_directories(),
            Body::File(shown) => &shown.marks,
        }
    }

    /// The node that shows the file instead of this one, if that is known.
    pub(crate) fn successor(&self) -> Option<Arc<Self>> {
        let replaced = self.as_file()?.used()?.replaced.lock();
        replaced.iter().find(|(id, _)| *id == self.id).map(|(_, next)| Arc::clone(next))
    }

    /// Another node shows the file from now on. The one that did before is to be dropped without any lock.
    #[must_use]
    pub(crate) fn set_successor(&self, next: &Arc<Self>) -> Option<Arc<Self>> {
        let file = self.as_file()?;
        let before = file.used().and_then(|used| used.take_successor(self.id));
        // A node that held itself would never end.
        if self.id != next.id {
            file.replaced.lock().push((self.id, Arc::clone(next)));
        }
        before
    }

    /// The directory that this node is, if it is one.
    pub(crate) const fn as_dir(&self) -> Option<&Dir> {
        match &self.body {
            Body::Dir(dir) => Some(dir),
            Body::File(_) => None,
        }
    }

    /// The file that this node shows, if it is no directory.
    pub(crate) fn as_file(&self) -> Option<&Arc<File>> {
        match &self.body {
            Body::Dir(_) => None,
            Body::File(file) => Some(file),
        }
    }

    /// Kind of the object.
    pub(crate) fn kind(&self) -> FileKind {
        match &self.body {
            Body::Dir(_) => FileKind::Directory,
            Body::File(file) => file.kind,
        }
    }
}

impl Drop for Node {
    /// Takes the node out of its parents' tables and gives its id back.
    fn drop(&mut self) {
        let this: *const Self = self;
        let unlist = |place: &Dentry| {
            if let Some(dir) = place.parent.as_dir() {
                dir.entries.forget(&place.name, this);
            }
        };
        let key = self.as_dir().and_then(Dir::key);
        match &self.body {
            Body::Dir(dir) => {
                if let Some(place) = dir.place.write().take() {
                    unlist(&place);
                    drop_parent(place.parent);
                }
            }
            Body::File(file) => {
                file.state.read().names.iter().for_each(unlist);
                drop(file.used().and_then(|used| used.take_successor(self.id)));
            }
        }
        if let Some(keeper) = self.origin.0.upgrade() {
            keeper.ended(self.id, key);
        }
    }
}

thread_local! {
    /// Parents to be dropped by the outermost drop of this thread.
    static PARENTS: RefCell<Option<Vec<Arc<Node>>>> = const { RefCell::new(None) };
}

/// Drops a parent without recursion: the last node of a deep tree would otherwise end all its parents on one stack.
fn drop_parent(parent: Arc<Node>) {
    let mut mine = Some(parent);
    let outermost = PARENTS.with_borrow_mut(|parents| match parents {
        Some(parents) => {
            parents.extend(mine.take());
            false
        }
        None => {
            *parents = Some(Vec::new());
            true
        }
    });
    while let Some(next) = mine.take() {
        drop(next);
        mine = PARENTS.with_borrow_mut(|parents| parents.as_mut().and_then(Vec::pop));
    }
    if outermost {
        PARENTS.with_borrow_mut(|parents| *parents = None);
    }
}

impl Dir {
    /// Whether it is the root: what has been removed has no place either, and says so before it loses that.
    pub(crate) fn is_root(&self) -> bool {
        self.place.read().is_none() && !self.removed.load(Relaxed)
    }

    /// The directory in the layer where it is found first.
    pub(crate) fn key(&self) -> Option<InodeKey> {
        match &*self.upper.lock() {
            Some(upper) => Some((0, upper.ino)),
            None => self.lowers.first().map(|part| (part.layer, part.ino)),
        }
    }

    /// The uppermost part in a lower layer that says something of the directory itself.
    pub(crate) fn described(&self) -> Option<&Arc<LowerDir>> {
        described(&self.lowers)
    }

    pub(crate) fn new(
        place: Option<Dentry>,
        lowers: Vec<Arc<LowerDir>>,
        lower_path: Option<SharedName>,
    ) -> Self {
        Self {
            entries: Entries::default(),
            copy: Mutex::new(()),
            place: RwLock::new(place),
            upper: Mutex::new(None),
            lowers: lowers.into_boxed_slice(),
            lower_path,
            inherit: Mutex::new(None),
            removed: AtomicBool::new(false),
            lease: DirLease::everything(),
        }
    }
}

impl Inherit {
    /// The group, and in directories the bit, are inherited.
    pub(crate) const fn is_setgid(&self) -> bool {
        const S_ISGID: u32 = 0o2000;
        self.owner.mode & S_ISGID != 0
    }
}

impl FileState {
    /// Of a file that has its data itself.
    pub(crate) fn complete(names: Names, at: InodeLocation, inode: InodeKey) -> Self {
        Self {
            names,
            at,
            inode: Some(inode),
            below: None,
            partial: false,
            lost_data: false,
            rare: None,
            lost: 0,
            null_device: false,
            apart: false,
        }
    }

    /// Its name in the work directory.
    pub(crate) fn orphan(&self) -> Option<&Arc<OrphanName>> {
        self.rare.as_ref()?.orphan.as_ref()
    }

    /// Gives it a name there, or takes that away; the one that it had.
    pub(crate) fn set_orphan_name(&mut self, orphan: Option<Arc<OrphanName>>) -> Option<Arc<OrphanName>> {
        if orphan.is_none() {
            return self.rare.as_mut()?.orphan.take();
        }
        std::mem::replace(&mut self.rare.get_or_insert_default().orphan, orphan)
    }

    /// Times that it was given when it had no name any more.
    pub(crate) fn orphan_times(&self) -> Option<(Timestamp, Timestamp)> {
        self.rare.as_ref()?.orphan_times
    }

    /// Gives it such times, or takes them away.
    pub(crate) fn set_orphan_times(&mut self, times: Option<(Timestamp, Timestamp)>) {
        if times.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().orphan_times = times;
        }
    }
}

impl File {
    pub(crate) fn new(kind: FileKind, state: FileState) -> Self {
        Self { kind, state: RwLock::new(state), in_use: OnceLock::new() }
    }

    /// What it has of being used, if it has been.
    pub(crate) fn used(&self) -> Option<&Arc<OpenState>> {
        self.in_use.get()
    }

    /// The open file, if it is open.
    pub(crate) fn open_io(&self) -> Option<Arc<Io>> {
        self.used()?.io.get()
    }

    /// Opens through the kernel's page cache.
    pub(crate) fn count_of_cached_opens(&self) -> u32 {
        self.used().map_or(0, |used| used.cached_opens.load(Relaxed))
    }
}

impl Body {
    /// A file, by its only node so far.
    pub(crate) const fn file(file: Arc<File>) -> Self {
        Self::File(NodeFile { file, marks: Marks::new(false) })
    }

    /// The name by which it was found.
    pub(crate) fn name(&self) -> Option<SharedName> {
        match self {
            Self::Dir(dir) => dir.place.read().as_ref().map(|place| place.name.clone()),
            Self::File(file) => file.state.read().names.first().map(|place| place.name.clone()),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// What is kept of each file that the kernel knows: the allocator adds 8 bytes, and rounds up to 16.
    #[test]
    fn looked_up_nodes_are_small() {
        const COUNTS: usize = 2 * size_of::<usize>();
        assert!(size_of::<Node>() + COUNTS <= 56, "{}", size_of::<Node>());
        assert!(size_of::<File>() + COUNTS <= 136, "{}", size_of::<File>());
        assert!(size_of::<Dir>() <= 280, "{}", size_of::<Dir>());
    }
}
