//! The union itself: its layers, and the state that its operations share.

use crate::coherence::ctimes::Ctimes;
use crate::coherence::mapped::Mapped;
use crate::coherence::writers::Handouts;
use crate::config::{Profile, Squash, UnionConfig};
use crate::copyup::unfinished::Unfinished;
use crate::layers::layer::{Layer, LowerDir};
use crate::layers::links::{Inodes, LayerLinks};
use crate::layers::maps;
use crate::layers::marks::{self, DirMarks, Marking, Own, Space};
use crate::layers::overrides::Format;
use crate::layers::work::{Whiteouts, Work};
use crate::layers::handles::Share;
use crate::nodes::ino;
use crate::nodes::node::{Body, Dir, Node, Place, UpperDir};
use crate::nodes::table::Table;
use crate::nodes::recovery::pending::Recovery;
use crate::sync::AtomicBool;
use crate::sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Branch, BranchDir, Connection, Errno, Error, IdMap, Name, NodeId, Result};

/// A writable (or read-only) tree made of layers; a [`vellum_vfs::Filesystem`].
pub struct Union(pub(crate) Core);

/// What the union's operations share.
pub(crate) struct Core {
    pub(crate) config: UnionConfig,
    /// All layers, uppermost first; the writable one, if any, is number 0.
    pub(crate) layers: Vec<Layer>,
    /// Roots of the lower layers, uppermost first.
    pub(crate) lower_roots: Vec<Arc<LowerDir>>,
    /// Hard links inside each layer.
    pub(crate) links: Vec<LayerLinks>,
    /// The work directory; None: read-only.
    pub(crate) work: Option<Work>,
    /// The upper may hold whiteouts in the AUFS format.
    pub(crate) upper_aufs: bool,
    /// Some layer has a directory of block maps.
    pub(crate) has_maps: bool,
    /// The upper's root says which layers are below it, or cannot.
    pub(crate) lowers_recorded: AtomicBool,
    /// Partial files that were opened for writing and may be completed when there is time.
    pub(crate) partials: Mutex<VecDeque<Unfinished>>,
    pub(crate) table: Arc<Table>,
    pub(crate) inodes: Inodes,
    pub(crate) budget: Share,
    /// Nodes of a predecessor that have not been made again yet.
    pub(crate) recovery: Recovery,
    pub(crate) root: OnceLock<Arc<Node>>,
    pub(crate) kernel: OnceLock<Connection>,
    /// Files are handed out to programs.
    pub(crate) handouts: Option<Handouts>,
    /// Files that may be mapped past the mount; None: the kernel serves none itself.
    pub(crate) mapped: Option<Mapped>,
    /// When files were changed; None: nobody states it.
    pub(crate) ctimes: Option<Ctimes>,
}

impl Union {
    /// Opens the layers and prepares the work directory.
    ///
    /// EINVAL: no layers, or too many; otherwise the errno of what could not be read, with its path.
    pub fn new(config: UnionConfig) -> Result<Self> {
        let invalid = |what| Err(Error::new(Errno::INVAL, what));
        if config.lowers.is_empty() && config.upper.is_none() {
            return invalid("a union needs at least one layer");
        }
        if config.lowers.len() > UnionConfig::MAX_LOWERS {
            return invalid("too many lower layers");
        }
        let mut layers = Vec::with_capacity(config.lowers.len() + 1);
        let mut devices = Vec::new();
        let first_lower = u16::from(config.upper.is_some());
        let uppers = config.upper.iter().map(|u| &u.branch);
        for branch in uppers.chain(&config.lowers) {
            layers.push(open_layer(branch, &mut devices)?);
        }
        if let (Some(wanted), Some(_), Some(layer)) =
            (config.override_stat, &config.upper, layers.first_mut())
        {
            let empty = is_empty(&*layer.branch.root())?;
            let settled = layer.overrides.wanted(wanted, layer.marking, empty);
            layer.overrides = settled.map_err(|e| e.at(layer.branch.describe()))?;
        }
        let (work, upper_aufs) = match &config.upper {
            Some(upper) if !upper.branch.exchanges() => {
                let error = Error::new(Errno::INVAL, "an upper layer where two names cannot change places");
                return Err(error.at(upper.branch.describe()));
            }
            Some(upper) => {
                let mut work = Work::open(upper, config.background)?;
                let adopted = adopt_upper(&*upper.branch.root(), &mut work, &mut layers)?;
                let aufs = adopted || work.whiteouts == Whiteouts::Aufs;
                (Some(work), aufs)
            }
            None => (None, false),
        };
        if let (Some(_), Some(_), Some(layer)) = (config.override_stat, &config.upper, layers.first()) {
            layer.overrides.mark(&*layer.branch.root())?;
        }
        if config.sidecars
            && config.upper.is_some()
            && let Some(layer) = layers.first_mut()
            && layer.maps.is_none()
            && layer.marking.own.is_some()
        {
            layer.maps = Some(maps::make(&*layer.branch.root())?);
        }
        let lower_roots = lower_roots(&layers, first_lower)?;
        let links = layers.iter().map(|_| LayerLinks::default()).collect();
        let recovery = Recovery::of(config.ledger.as_deref());
        // Only where a file is in the upper layer what the union shows of it.
        let hands_out = config.profile == Profile::Passthrough
            && config.uid_map == IdMap::default()
            && config.gid_map == IdMap::default()
            && config.squash == Squash::default()
            && work.is_some()
            && layers.first().is_some_and(|layer| {
                layer.fs == 0 && layer.overrides.xattr().is_none() && layer.marking.may_be_handed_out()
            });
        let export = config.export.clone().filter(|_| hands_out);
        let handouts = export.map(|export| Handouts::new(export, recovery.is_active()));
        let mapped = (config.profile == Profile::Passthrough && work.is_some())
            .then(|| Mapped::new(recovery.is_active()));
        let ctimes = (config.profile == Profile::Cached && work.is_some()).then(Ctimes::new);
        let core = Core {
            budget: Share::of(&config.handles),
            has_maps: layers.iter().any(|layer| layer.maps.is_some()),
            lowers_recorded: AtomicBool::new(false),
            partials: Mutex::default(),
            recovery,
            table: Arc::new(Table::new(config.ledger.clone(), config.generations.clone())),
            config,
            layers,
            lower_roots,
            links,
            work,
            upper_aufs,
            inodes: Inodes::new(),
            root: OnceLock::new(),
            kernel: OnceLock::new(),
            handouts,
            mapped,
            ctimes,
        };
        core.make_root()?;
        Ok(Self(core))
    }

    /// Goes on with what a predecessor has left in [`UnionConfig::ledger`]; `held`: the descriptors that it names
    /// ([`crate::Ledger::held`]). To be called before the kernel asks for anything.
    pub fn resume(&self, held: HashMap<RawFd, OwnedFd>) {
        self.0.resume(held);
    }
}

fn open_layer(branch: &Arc<dyn Branch>, devices: &mut Vec<u64>) -> Result<Layer> {
    let name = branch.describe();
    let root = branch.root();
    let attr = root.stat().map_err(|e| e.doing("reading a layer").at(&name))?;
    let fsid = branch.statfs().map_err(|e| e.doing("reading a layer").at(&name))?.fsid;
    let fs = devices.iter().position(|d| *d == attr.dev).unwrap_or_else(|| {
        devices.push(attr.dev);
        devices.len() - 1
    });
    let marking = Marking::read(&*root);
    Ok(Layer {
        branch: Arc::clone(branch),
        fs: u8::try_from(fs).unwrap_or(u8::MAX),
        fsid: marks::fold_fsid(fsid),
        marking,
        maps: maps::open(&*root, marking.own),
        overrides: Format::detect(&*root),
    })
}

/// Marks the upper as one of ours; true if it held something that others may have put there.
fn adopt_upper(root: &dyn BranchDir, work: &mut Work, layers: &mut [Layer]) -> Result<bool> {
    let Some(layer) = layers.first_mut() else { return Ok(false) };
    if layer.marking.own == Some(work.space) {
        return Ok(layer.marking.adopted);
    }
    let empty = is_empty(root)?;
    match layer.marking.own {
        // One of an ordinary user's, in the hands of root: what is marked in one namespace is not found in the other.
        Some(space) => work.space = space,
        None => match Marking::write(root, work.space, !empty) {
            Ok(marking) => layer.marking = marking,
            Err(error) => tracing::warn!(%error, "the upper layer takes no extended attributes"),
        },
    }
    Ok(!empty)
}

fn is_empty(root: &dyn BranchDir) -> Result<bool> {
    let mut empty = true;
    root.list(&mut |_| {
        empty = false;
        Ok(())
    })?;
    Ok(empty)
}

fn lower_roots(layers: &[Layer], first: u16) -> Result<Vec<Arc<LowerDir>>> {
    let mut roots = Vec::with_capacity(layers.len());
    for (at, layer) in layers.iter().enumerate().skip(usize::from(first)) {
        let root = layer.branch.root();
        let attr = root.stat()?;
        let marks = marks::read_dir_marks(&*root, layer.marking.spaces)?;
        let at = u16::try_from(at).map_err(|_| Error::new(Errno::INVAL, "too many layers"))?;
        roots.push(Arc::new(LowerDir::new(at, c"".into(), ino::shown(layer.fs, attr.ino), &marks)));
    }
    Ok(roots)
}

impl Core {
    /// Drops all nodes; for the end of a mount.
    pub(crate) fn forget_all(&self) {
        // They hold nodes, too.
        let noted = std::mem::take(&mut *self.partials.lock());
        drop(noted);
        self.table.clear();
    }

    fn make_root(&self) -> Result<()> {
        let dir = Dir::new(None, self.lower_roots.clone(), Some(c"".into()));
        let mut ino = self.lower_roots.last().map(|root| root.ino);
        if self.config.upper.is_some()
            && let Some(layer) = self.layers.first()
        {
            let handle = layer.branch.root();
            let attr = handle.stat()?;
            let marks = marks::read_dir_marks(&*handle, layer.marking.spaces)?;
            ino = ino.or(Some(self.shown_ino(0, attr.ino)));
            let upper = UpperDir::new(attr.ino, handle, &marks);
            upper.slot.pin();
            *dir.upper.lock() = Some(upper);
        }
        if self.table.ledger.as_ref().is_some_and(|ledger| ledger.negative(NodeId::ROOT)) {
            dir.lease.negative.may_be_anything();
        }
        let root = Arc::new(Node::new(NodeId::ROOT, ino.unwrap_or(1), Body::Dir(Box::new(dir)), &self.table));
        self.table.acquire(&root);
        let _ = self.root.set(root);
        Ok(())
    }

    /// The node that the kernel means.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        if id == NodeId::ROOT
            && let Some(root) = self.root.get()
        {
            return Ok(Arc::clone(root));
        }
        match self.table.get(id) {
            Err(_) if self.recovery.is_active() => self.recover(id),
            found => found,
        }
    }

    /// The work directory. EROFS: there is none, the union is read-only.
    pub(crate) fn work(&self) -> Result<&Work> {
        self.work.as_ref().ok_or(Error::new(Errno::ROFS, "read-only union"))
    }

    /// An inode number of a layer as the union shows it.
    pub(crate) fn shown_ino(&self, layer: u16, raw: u64) -> u64 {
        ino::shown(self.layers.get(usize::from(layer)).map_or(0, |l| l.fs), raw)
    }

    /// The inode number that a file shows whose mark names an origin; None if the origin's filesystem is not here.
    pub(crate) fn origin_ino(&self, own: &Own) -> Option<u64> {
        let layer = self.layers.iter().find(|l| own.origin && l.fsid == own.fsid)?;
        Some(ino::shown(layer.fs, own.ino))
    }

    /// Our own mark on an entry of a layer's directory; None if the layer's files carry none.
    pub(crate) fn own_mark_at(&self, layer: u16, dir: &dyn BranchDir, name: Name<'_>) -> Result<Option<Own>> {
        let Some(space) = self.layers.get(usize::from(layer)).and_then(|l| l.marking.own) else {
            return Ok(None);
        };
        let mut value = [0u8; 64];
        match dir.get_xattr_at(name, space.own(), &mut value) {
            Ok(n) => Own::decode(value.get(..n).unwrap_or_default()).map(Some).map_err(|e| {
                tracing::error!(layer, name = %name, "damaged vellum.o attribute");
                e.at(name.bytes())
            }),
            Err(e) if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Our own mark on an object of the upper layer, if it has a good one.
    pub(crate) fn own_mark_of(&self, object: &dyn vellum_vfs::Object) -> Option<Own> {
        let space = self.layers.first()?.marking.own?;
        let mut value = [0u8; 64];
        let len = object.get_xattr(space.own(), &mut value).ok()?;
        Own::decode(value.get(..len)?).ok()
    }

    /// Where marks are written in the upper.
    pub(crate) fn space(&self) -> Space {
        self.work.as_ref().map_or(Space::Trusted, |w| w.space)
    }

    /// Whether regular files are handed to the kernel.
    pub(crate) fn is_passthrough(&self) -> bool {
        self.config.profile == Profile::Passthrough
    }

    /// Opens a directory in the upper layer again after its handle was given back. Its path may be changing at the
    /// same time, so what is found is checked and the search repeated.
    fn reopen_upper(&self, dir: &Dir) -> Result<Arc<dyn BranchDir>> {
        const TRIES: usize = 64;
        for _ in 0..TRIES {
            // Up to the first parent that is open (the root always is), then down again: without recursion, for a
            // tree may be deeper than a stack.
            let mut chain: Vec<Place> = Vec::new();
            let mut next = dir.place.read().clone();
            let mut handle = None;
            while let Some(place) = next {
                let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
                let open = parent.upper.lock().as_ref().and_then(|upper| upper.slot.get());
                next = if open.is_some() { None } else { parent.place.read().clone() };
                handle = open;
                chain.push(place);
            }
            let Some(mut handle) = handle else { break };
            let mut found = false;
            while let Some(place) = chain.pop() {
                let below = chain.last().map(|place| Arc::clone(&place.parent));
                let target = below.as_ref().and_then(|node| node.as_dir()).unwrap_or(dir);
                match self.open_upper_child(&*handle, &place.name, target) {
                    Some(open) => handle = open,
                    None => {
                        found = false;
                        break;
                    }
                }
                found = true;
            }
            if found {
                return Ok(handle);
            }
            std::thread::yield_now();
        }
        Err(Error::new(Errno::STALE, "a directory of the upper layer has gone"))
    }

    /// Opens `name` in `parent` if it is `dir`'s directory in the upper layer, and keeps it open there.
    fn open_upper_child(&self, parent: &dyn BranchDir, name: &CStr, dir: &Dir) -> Option<Arc<dyn BranchDir>> {
        let upper = dir.upper.lock().clone()?;
        let handle = parent.open_dir(Name::new(name).ok()?).ok()?;
        if handle.stat().ok()?.ino != upper.ino {
            return None;
        }
        let (handle, filled) = upper.slot.fill(handle);
        if filled {
            self.budget.watch(crate::layers::handles::weak_slot(&upper.slot), handle.as_descriptor());
        }
        Some(handle)
    }

    /// A directory's handle in the upper layer; None: it is not there.
    pub(crate) fn upper_of(&self, dir: &Dir) -> Result<Option<Arc<dyn BranchDir>>> {
        let Some(upper) = dir.upper.lock().clone() else { return Ok(None) };
        match upper.slot.get() {
            Some(handle) => Ok(Some(handle)),
            None => self.reopen_upper(dir).map(Some),
        }
    }

    /// Notes that a directory is in the upper layer now.
    pub(crate) fn set_upper(&self, dir: &Dir, upper: UpperDir) {
        let handle = upper.slot.get();
        let descriptor = handle.as_ref().and_then(|handle| handle.as_descriptor());
        self.budget.watch(crate::layers::handles::weak_slot(&upper.slot), descriptor);
        *dir.upper.lock() = Some(upper);
    }
}

impl UpperDir {
    pub(crate) fn new(ino: u64, handle: Arc<dyn BranchDir>, marks: &DirMarks) -> Self {
        let slot = crate::layers::handles::Slot::empty();
        slot.fill(handle);
        Self { ino, slot: Arc::new(slot), xwhiteouts: marks.xwhiteouts, impure: marks.impure }
    }
}

/// The path of a node in the mount, for messages; the names of removed parents are left out.
pub(crate) fn path_of(node: &Node) -> String {
    let mut names: Vec<Box<CStr>> = Vec::new();
    let place_of = |node: &Node| match &node.body {
        Body::Dir(dir) => dir.place.read().clone(),
        Body::File(file) => file.state.read().names.first().cloned(),
    };
    let mut place = place_of(node);
    while let Some(at) = place {
        names.push(at.name);
        place = place_of(&at.parent);
    }
    names.iter().rev().fold(String::new(), |path, name| path + "/" + &name.to_string_lossy())
}
