//! The union and the plain tree side by side, and what a front would hold of both.

use crate::base::{self, Placed};
use crate::common::fault::ObjectExport;
use crate::common::tree::{self, Seen};
use crate::common::{self, Deaf, Layers, ROOT, errno_of, name};
use crate::handout::{Entered, Owned};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_branch::{MemoryBranch, MemoryOptions};
use vellum_union::Union;
use vellum_vfs::{
    Attr, Branch, BranchDir, Connection, Duties, Entry, Errno, FileKind, Filesystem, NodeId, Object, Profile,
    Result,
};

/// Names that things get. The longest leaves no room for a prefix.
const LONG: [u8; 255] = {
    let mut long = [b'x'; 255];
    long[254] = 0;
    long
};
const NAMES: [&CStr; 7] = [c"a", c"b", c"c", c"d", c".wh.a", c".wh..wh..opq", c".wh.b"];

/// A name by its index; the first four are those of the lower layers.
pub fn name_at(index: u8) -> &'static CStr {
    let at = usize::from(index) % 16;
    match at {
        15 => CStr::from_bytes_with_nul(&LONG).expect("one NUL at the end"),
        12..=14 => NAMES[at - 8],
        _ => NAMES[at % 4],
    }
}

/// What a sequence runs on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Lower layers, uppermost first.
    pub base: Vec<Vec<Placed>>,
    /// The lower layers lie on another disk than the upper.
    pub far: bool,
    pub metacopy: bool,
    pub passthrough: bool,
    /// The kernel is given programs of lower layers only, then.
    pub one_file: bool,
    /// The front may ask for handles.
    pub exports: bool,
    /// As few handles as can be.
    pub few_handles: bool,
    /// The upper is written behind. Not with handouts, which go past that.
    pub writeback: bool,
    /// Clients may go past the kernel; with `passthrough` only.
    pub handout: bool,
    pub disk: Abilities,
}

/// What the upper's disk can do.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    pub privileged: bool,
    pub unnamed: bool,
    pub rename_whiteout: bool,
    pub exchange: bool,
    pub reflink: bool,
}

/// Something that the front holds, in both trees.
pub struct Held {
    pub node: NodeId,
    pub count: u64,
    pub kind: FileKind,
    pub flat: Flat,
    pub flat_ino: u64,
    /// It has a successor.
    pub stale: bool,
}

/// An object of the plain tree that stands for one of the union.
#[derive(Clone)]
pub enum Flat {
    Dir(Arc<dyn BranchDir>),
    Other(Arc<dyn Object>),
}

impl Flat {
    pub fn object(&self) -> &dyn Object {
        match self {
            Self::Dir(dir) => &**dir,
            Self::Other(object) => &**object,
        }
    }

    pub fn attr(&self) -> Attr {
        self.object().stat().expect("attributes in the plain tree")
    }
}

/// A directory that is being listed.
pub struct Session {
    pub node: NodeId,
    pub flat: Arc<dyn BranchDir>,
    pub offset: u64,
    /// Names that were there all the time, and those that were there at some time.
    pub always: HashSet<CString>,
    pub ever: HashSet<CString>,
    pub seen: HashSet<CString>,
}

/// Makes an empty lower layer that is not in memory.
pub type Elsewhere<'a> = &'a dyn Fn() -> Arc<dyn Branch>;

pub struct World {
    pub setup: Setup,
    pub layers: Layers,
    union: Option<Union>,
    pub flat: Arc<MemoryBranch>,
    pub held: Vec<Held>,
    pub forgotten: Vec<(NodeId, u64)>,
    pub sessions: Vec<Session>,
    /// Directories and files that clients hold past the kernel.
    pub entered: Vec<Entered>,
    pub owned: Vec<Owned>,
    /// The union's inode number of each of the plain tree's inodes, once seen.
    inos: HashMap<u64, u64>,
    /// Files whose links in a lower layer are not all to be seen.
    vague: HashSet<u64>,
    /// Files that have, or had, several links.
    pub linked: HashSet<u64>,
}

impl World {
    /// `elsewhere` makes the empty lower layers; None: they are in memory.
    pub fn new(setup: Setup, elsewhere: Option<Elsewhere<'_>>) -> Self {
        let abilities = setup.disk;
        let disk = MemoryBranch::with_options(MemoryOptions {
            reflink: abilities.reflink,
            unnamed: abilities.unnamed,
            rename_whiteout: abilities.rename_whiteout,
            exchange: abilities.exchange,
            devices: abilities.privileged,
            trusted: abilities.privileged,
            ..MemoryOptions::default()
        });
        let base_disk =
            if setup.far || !abilities.privileged { MemoryBranch::new() } else { Arc::clone(&disk) };
        let base: Vec<Arc<dyn Branch>> = setup
            .base
            .iter()
            .enumerate()
            .map(|(number, items)| {
                let layer: Arc<dyn Branch> = match elsewhere {
                    Some(make) => make(),
                    None => base_disk.subtree(&format!("base{number}")).expect("a layer"),
                };
                base::build(&*layer, items, abilities.privileged);
                layer
            })
            .collect();
        let flat = MemoryBranch::with_options(MemoryOptions {
            exchange: abilities.exchange,
            ..MemoryOptions::default()
        });
        let vague = base::merge(&base, &*flat);
        let mut world = Self {
            setup,
            layers: Layers { disk, uppers: 1, base },
            union: None,
            flat,
            held: Vec::new(),
            forgotten: Vec::new(),
            sessions: Vec::new(),
            entered: Vec::new(),
            owned: Vec::new(),
            inos: HashMap::new(),
            vague,
            linked: HashSet::new(),
        };
        world.dress_first_upper();
        world.mount();
        world
    }

    /// The root shows the attributes of its uppermost part: the first upper gets those of the base.
    fn dress_first_upper(&self) {
        let upper = Layers::upper(&self.layers.disk, 0).root();
        let from = self.flat.root();
        let attr = from.stat().expect("the root");
        upper.set_owner(Some(attr.uid), Some(attr.gid)).expect("owner");
        upper.set_mode(attr.perm()).expect("mode");
    }

    pub fn mount(&mut self) {
        let mut config = self.layers.config_on(&self.layers.disk);
        self.configure(&mut config);
        if self.setup.handout {
            let upper = Layers::upper_of(&self.layers.disk, self.layers.uppers - 1);
            config.export = Some(ObjectExport::new(upper));
        }
        let union = Union::new(config).expect("mount");
        self.start(&union);
        self.union = Some(union);
        let root = Flat::Dir(self.flat.root());
        let flat_ino = root.attr().ino;
        self.held.push(Held {
            node: NodeId::ROOT,
            count: 1,
            kind: FileKind::Directory,
            flat: root,
            flat_ino,
            stale: false,
        });
    }

    fn configure(&self, config: &mut vellum_union::UnionConfig) {
        config.metacopy = self.setup.metacopy;
        if self.setup.passthrough {
            config.profile = Profile::Passthrough;
            config.passthrough_from = if self.setup.one_file { u64::MAX } else { 0 };
        }
        if self.setup.writeback {
            config.upper = config.upper.take().map(common::writeback);
        }
        if self.setup.few_handles {
            config.handles = Arc::new(vellum_union::Budget::new(0, u64::MAX));
        }
    }

    fn start(&self, union: &Union) {
        if self.setup.exports || self.setup.handout {
            let duties = if self.setup.handout { Duties::SERVES_FILES } else { Duties::empty() };
            union.start(Connection { duties, notifier: Arc::new(Deaf::default()) });
        }
    }

    pub fn remount(&mut self) {
        self.finish_sessions();
        self.end_of_handouts();
        self.held.clear();
        self.forgotten.clear();
        if let Some(union) = self.union.take() {
            union.stop();
        }
        self.mount();
    }

    /// Whether an object can say where it came from, and so keep its inode number. Without privilege only files and
    /// directories take attributes.
    pub fn is_numbered(&self, kind: FileKind) -> bool {
        self.setup.disk.privileged || matches!(kind, FileKind::Regular | FileKind::Directory)
    }

    pub fn commit(&mut self) {
        const UPPERS_MAX: usize = 5;
        if self.layers.uppers < UPPERS_MAX {
            // What the upper's root says of itself goes on in the next upper's.
            let attr = Layers::upper(&self.layers.disk, self.layers.uppers - 1).root().stat().expect("root");
            let next = Layers::upper(&self.layers.disk, self.layers.uppers).root();
            next.set_owner(Some(attr.uid), Some(attr.gid)).expect("owner");
            next.set_mode(attr.perm()).expect("mode");
            for (xattr, value) in
                tree::see_object(&*Layers::upper(&self.layers.disk, self.layers.uppers - 1).root()).xattrs
            {
                let private =
                    [&b"trusted.overlay."[..], b"user.overlay.", b"trusted.vellum.", b"user.vellum."];
                if !private.iter().any(|prefix| xattr.starts_with(prefix)) {
                    let xattr = CString::new(xattr).expect("no NUL");
                    next.set_xattr(&xattr, &value, 0).expect("attribute");
                }
            }
            let times = |time| Some(vellum_vfs::SetTime::At(time));
            next.set_times(times(attr.atime), times(attr.mtime)).expect("times");
            self.layers.uppers += 1;
            self.remount();
        }
    }

    pub fn fs(&self) -> &Union {
        self.union.as_ref().expect("mounted")
    }

    /// The held directory that an index means.
    pub fn dir(&self, index: u8) -> (NodeId, Arc<dyn BranchDir>) {
        let dirs: Vec<&Held> = self.held.iter().filter(|held| held.kind == FileKind::Directory).collect();
        let held = dirs[usize::from(index) % dirs.len()];
        let Flat::Dir(dir) = &held.flat else { unreachable!("a directory is held as one") };
        (held.node, Arc::clone(dir))
    }

    /// The held regular file that an index means, and its place among what is held.
    pub fn file(&self, index: u8) -> Option<usize> {
        let files: Vec<usize> =
            (0..self.held.len()).filter(|at| self.held[*at].kind == FileKind::Regular).collect();
        files.get(usize::from(index) % files.len().max(1)).copied()
    }

    /// The held object that an index means.
    pub fn any(&self, index: u8) -> usize {
        usize::from(index) % self.held.len()
    }

    /// Takes note of a lookup of something that is `flat` in the plain tree.
    pub fn hold(&mut self, entry: &Entry, flat: Flat) {
        let attr = flat.attr();
        self.check_attr(&entry.attr, &flat, "an entry");
        let current = self.held.iter().position(|held| held.flat_ino == attr.ino && !held.stale);
        if let Some(at) = current {
            if self.held[at].node == entry.node {
                self.held[at].count += 1;
                return;
            }
            // Only a file that had to change its way of I/O gets another node.
            let old = self.held[at].node;
            assert!(self.setup.passthrough, "one inode ({}), two nodes: {old:?}, {:?}", attr.ino, entry.node);
            assert!(self.fs().explain(old).expect("held").stale, "two nodes without need");
            self.held[at].stale = true;
        }
        if let Some(other) = self.held.iter_mut().find(|held| held.node == entry.node) {
            assert!(other.stale, "one node, two objects: {:?}", entry.node);
            assert_eq!(other.flat_ino, attr.ino, "one node, two objects: {:?}", entry.node);
            other.count += 1;
            return;
        }
        let kind = attr.kind();
        self.forgotten.retain(|(node, _)| *node != entry.node);
        self.held.push(Held { node: entry.node, count: 1, kind, flat, flat_ino: attr.ino, stale: false });
    }

    /// Gives lookups back; a directory that is being listed stays held.
    pub fn forget(&mut self, at: usize, count: u64) {
        let Some(held) = self.held.get_mut(at) else { return };
        if held.node == NodeId::ROOT || self.sessions.iter().any(|session| session.node == held.node) {
            return;
        }
        let node = held.node;
        held.count -= count;
        if held.count == 0 {
            let held = self.held.remove(at);
            if !held.stale {
                self.forgotten.push((node, held.flat_ino));
            }
        }
        self.fs().forget(node, count);
    }

    /// What is at a name in a directory of the plain tree.
    pub fn flat_at(dir: &dyn BranchDir, at: &CStr) -> Option<Flat> {
        if let Ok(inner) = dir.open_dir(name(at)) {
            return Some(Flat::Dir(inner));
        }
        dir.hold(name(at)).ok().map(Flat::Other)
    }

    /// Looks a name up in both trees.
    pub fn lookup(&mut self, node: NodeId, dir: &dyn BranchDir, at: &CStr) -> Option<usize> {
        let flat = Self::flat_at(dir, at);
        let found = self.fs().lookup(&ROOT, node, name(at)).unwrap_or_else(|e| panic!("lookup: {e}"));
        match (&found, flat) {
            (None, None) => None,
            (Some(entry), Some(flat)) => {
                let ino = flat.attr().ino;
                self.hold(entry, flat);
                self.held.iter().position(|held| held.flat_ino == ino && !held.stale)
            }
            (found, flat) => panic!("lookup of {at:?}: {found:?}, expected {:?}", flat.map(|f| f.attr())),
        }
    }

    /// Whether what the union shows is what the plain tree has.
    pub fn same(&self, flat: &Seen, seen: &Seen) -> bool {
        let mut expected = flat.clone();
        expected.ino = seen.ino;
        if self.vague.contains(&flat.ino) {
            expected.nlink = seen.nlink;
        }
        expected == *seen
    }

    pub fn check_attr(&mut self, seen: &Attr, flat: &Flat, what: &str) {
        let attr = flat.attr();
        let expected = Seen::of_attr(&attr);
        if !attr.is_dir() && attr.nlink > 1 {
            self.linked.insert(attr.ino);
        }
        let mut now = Seen::of_attr(seen);
        if attr.is_dir() && attr.nlink == 0 {
            // What a removed directory holds for the layers below is cleared away, at some time.
            (now.atime, now.mtime) = (expected.atime, expected.mtime);
        }
        assert!(self.same(&expected, &now), "{what}\nexpected: {expected:?}\n    seen: {now:?}");
        if attr.is_dir() && attr.nlink == 0 {
            assert_eq!(seen.nlink, 0, "{what}: a removed directory has no links");
        }
        self.check_ino(attr.ino, &now, what);
    }

    fn check_ino(&mut self, flat: u64, seen: &Seen, what: &str) {
        if !self.is_numbered(seen.kind) {
            return;
        }
        let seen = seen.ino;
        let first = *self.inos.entry(flat).or_insert(seen);
        assert_eq!(first, seen, "{what}: the inode number has changed");
    }

    /// Compares the attributes of everything that is held.
    pub fn check_held(&mut self) {
        self.check_owned();
        for at in 0..self.held.len() {
            let (node, flat) = (self.held[at].node, self.held[at].flat.clone());
            let reply =
                errno_of(self.fs().getattr(&ROOT, node, None)).unwrap_or_else(|e| panic!("getattr: {e}"));
            self.check_attr(&reply.attr, &flat, "getattr");
        }
    }

    /// Compares all there is to see: the trees, and what is only held.
    pub fn compare(&mut self, plus: bool) {
        self.check_held();
        let expected = tree::of_branch(&*self.flat.root());
        let seen = tree::of_union_with(self.fs(), plus, &mut |kind| self.is_numbered(kind));
        let text = tree::differences(&expected, &seen, |_, flat, seen| self.same(flat, seen));
        assert!(text.is_empty(), "first: expected, second: seen\n{text}");
        for (path, flat) in &expected {
            self.check_ino(flat.ino, &seen[path], path);
        }
        let mut numbers: HashMap<u64, u64> = HashMap::new();
        for (path, flat) in &expected {
            let other = *numbers.entry(seen[path].ino).or_insert(flat.ino);
            assert_eq!(other, flat.ino, "{path}: another file has the same inode number");
        }
        for at in 0..self.held.len() {
            let (node, flat) = (self.held[at].node, self.held[at].flat.clone());
            let expected = tree::see_object(flat.object());
            let attr = self.fs().getattr(&ROOT, node, None).expect("attributes").attr;
            let mut seen = tree::see_node(self.fs(), node, &attr, true);
            if attr.is_dir() && attr.nlink == 0 {
                // As in `check_attr`.
                (seen.atime, seen.mtime) = (expected.atime, expected.mtime);
            }
            assert!(
                self.same(&expected, &seen),
                "held\nexpected: {}\n    seen: {}",
                tree::brief(&expected),
                tree::brief(&seen)
            );
        }
        self.compare_others(&seen);
    }

    /// Compares what further mounts of the layers show: one after a crash, and one with the upper as a lower.
    fn compare_others(&self, seen: &tree::Tree) {
        let copy = self.layers.disk.fork().expect("a copy of the disk");
        let mut writable = self.layers.config_on(&copy);
        let mut read_only = self.layers.read_only_on(&copy);
        self.configure(&mut writable);
        self.configure(&mut read_only);
        for (what, config) in [("as a lower", read_only), ("after a crash", writable)] {
            let union = Union::new(config).unwrap_or_else(|e| panic!("mount {what}: {e}"));
            let other = tree::of_union(&union, false);
            let text = tree::differences(seen, &other, |_, now, then| {
                let mut now = now.clone();
                if !self.is_numbered(now.kind) {
                    now.ino = then.ino;
                }
                now == *then
            });
            assert!(text.is_empty(), "first: mounted, second: {what}\n{text}");
        }
    }

    /// Brings the sessions' knowledge up to date after each operation.
    pub fn follow_sessions(&mut self) {
        for session in &mut self.sessions {
            let now: HashSet<CString> = tree::entries(&*session.flat).into_iter().map(|(n, _)| n).collect();
            session.always.retain(|n| now.contains(n));
            session.ever.extend(now);
        }
    }

    pub fn finish_sessions(&mut self) {
        while let Some(session) = self.sessions.first() {
            let session = (session.node, session.offset);
            // Some hundred names at most, three at a time.
            if self.list_more(0, 3, session.1 % 2 == 0) {
                continue;
            }
        }
    }

    /// Lists some more of a directory; true if there may be more.
    pub fn list_more(&mut self, at: usize, room: usize, plus: bool) -> bool {
        let (node, offset) = (self.sessions[at].node, self.sessions[at].offset);
        let some = crate::common::list_some(self.fs(), node, offset, room, plus).expect("listing");
        for listed in &some {
            self.sessions[at].offset = listed.cookie;
            if matches!(listed.name.to_bytes(), b"." | b"..") {
                continue;
            }
            assert!(self.sessions[at].seen.insert(listed.name.clone()), "{:?} listed twice", listed.name);
            if let Some(entry) = &listed.entry {
                let flat = Self::flat_at(&*self.sessions[at].flat, &listed.name);
                let Some(flat) = flat else { panic!("{:?} is listed and not there", listed.name) };
                self.hold(entry, flat);
            }
        }
        if some.is_empty() {
            let session = self.sessions.remove(at);
            let missed: Vec<_> = session.always.difference(&session.seen).collect();
            let invented: Vec<_> = session.seen.difference(&session.ever).collect();
            assert!(missed.is_empty() && invented.is_empty(), "missed {missed:?}, invented {invented:?}");
            return false;
        }
        true
    }

    /// Paths of an inode of the plain tree.
    pub fn path_of(&self, flat_ino: u64) -> Option<String> {
        tree::of_branch(&*self.flat.root()).into_iter().find(|(_, s)| s.ino == flat_ino).map(|(path, _)| path)
    }
}

/// Whether both have succeeded. Panics unless both have, or both have failed with one error.
pub fn agree<A, B>(what: &str, expected: &Result<A, Errno>, seen: &Result<B, Errno>) -> bool {
    match (expected, seen) {
        (Ok(_), Ok(_)) => true,
        (Err(a), Err(b)) if a == b => false,
        _ => panic!("{what}: expected {:?}, seen {:?}", expected.as_ref().map(drop), seen.as_ref().map(drop)),
    }
}
