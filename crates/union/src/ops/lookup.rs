//! A name becomes a node.

use crate::coherence::entries::{EntryLookup, EntryNode};
use crate::layers::data_source::LayerFile;
use crate::layers::layer::{InodeKey, LowerDir, c_string, join};
use crate::layers::merge::{LayerLookup, is_absent, lower_path};
use crate::nodes::Nodes;
use crate::nodes::inodes::{InodeEntry, prune};
use crate::nodes::names::Names;
use crate::nodes::node::{Body, Dentry, Dir, File, FileState, InodeLocation, LowerLocation, Node, UpperDir};
use crate::nodes::recovery::ledger::Flags;
use crate::nodes::shared_name::SharedName;
use crate::sync::RwLockWriteGuard;
use crate::union::{Core, path_of};
use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Weak};
use vellum_vfs::{Attr, BranchDir, Entry, Errno, Error, FileKind, Name, Result};

/// Fruitless searches in a directory after which all its names are listed: from then on they cost nothing.
const SEARCHES_MAX: u8 = 6;
/// Fruitless searches after which names are listed where a part lies on a cluster, for which a search is a round trip.
const FAR_SEARCHES_MAX: u8 = 2;

impl Core {
    /// The node of `name` in `parent`; None if there is no such name. The caller holds the parent's `ops`.
    pub(crate) fn child(&self, parent: &Arc<Node>, name: Name<'_>) -> Result<Option<Arc<Node>>> {
        Ok(self.child_with_attr(parent, name)?.map(|(node, _)| node))
    }

    /// The node of `name` in `parent`, with its attributes if they were read anyway; None if there is no such name. The caller holds the
    /// parent's `ops`.
    pub(crate) fn child_with_attr(
        &self,
        parent: &Arc<Node>,
        name: Name<'_>,
    ) -> Result<Option<(Arc<Node>, Option<Attr>)>> {
        let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
        if self.layers.is_maps(dir, name.bytes()) {
            return Ok(None);
        }
        match dir.entries.look(name) {
            EntryLookup::Node(node) => return Ok(Some((self.current(node)?, None))),
            EntryLookup::Absent if self.layers.is_current(dir) => return Ok(None),
            EntryLookup::Absent | EntryLookup::Unknown => {}
        }
        let found = self.search(parent, dir, name)?;
        if found.is_none() && dir.entries.count_search(self.searches_max(dir)) {
            self.layers.ensure_listing(dir)?;
        }
        match found {
            // As its predecessor left it, killed between a copy-up and its next lookup.
            Some((node, _)) if node.marks().stale.load(Relaxed) => Ok(Some((self.current(node)?, None))),
            found => Ok(found),
        }
    }

    fn searches_max(&self, dir: &Dir) -> u8 {
        let is_far = |part: &Arc<LowerDir>| {
            self.layers.layer(part.layer).is_some_and(|layer| layer.branch.directory().is_none())
        };
        if dir.lowers.iter().any(is_far) { FAR_SEARCHES_MAX } else { SEARCHES_MAX }
    }

    fn search(
        &self,
        parent: &Arc<Node>,
        dir: &Dir,
        name: Name<'_>,
    ) -> Result<Option<(Arc<Node>, Option<Attr>)>> {
        if let Some(handle) = self.layers.upper_of(dir)? {
            match handle.stat_at(name) {
                Ok(attr) => {
                    let marks = dir.upper.lock().as_ref().map(|u| (u.xwhiteouts, u.impure));
                    let (xwhiteouts, impure) = marks.unwrap_or_default();
                    if self.layers.is_hidden(&*handle, 0, xwhiteouts, name, &attr)? {
                        return Ok(None);
                    }
                    if attr.is_dir() {
                        return self.adopt_upper_dir(parent, dir, &*handle, name, &attr).map(Some);
                    }
                    let rest = &dir.lowers;
                    let at = LayerFile { layer: 0, handle: &*handle, name, attr, impure, rest };
                    return self
                        .adopt_file(parent, &dir.entries.name(name), at, InodeLocation::Upper)
                        .map(Some);
                }
                Err(e) if is_absent(&e) => {
                    let covers = !dir.lowers.is_empty();
                    if covers && self.upper.aufs && self.layers.has_aufs_whiteout(0, &*handle, name)? {
                        return Ok(None);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        match self.layers.find(&dir.lowers, name)? {
            LayerLookup::Nothing => Ok(None),
            LayerLookup::Dir(parts) => {
                let path = lower_path(dir.lower_path.as_deref(), name);
                self.adopt_dir(parent, name, parts, path, None).map(Some)
            }
            LayerLookup::File { dir: lower, name: stored, attr, rest } => {
                let handle = lower.open(&self.layers)?;
                let shared = dir.entries.name(name);
                let stored_as = if *stored == *shared { shared.clone() } else { SharedName::from(&*stored) };
                let at = InodeLocation::Lower(LowerLocation { dir: Arc::clone(&lower), name: stored_as });
                let stored = Name::new(&stored)?;
                let impure = lower.impure;
                let found = LayerFile {
                    layer: lower.layer,
                    handle: &*handle,
                    name: stored,
                    attr,
                    impure,
                    rest: &rest,
                };
                self.adopt_file(parent, &shared, found, at).map(Some)
            }
        }
    }

    fn adopt_upper_dir(
        &self,
        parent: &Arc<Node>,
        dir: &Dir,
        handle: &dyn BranchDir,
        name: Name<'_>,
        attr: &Attr,
    ) -> Result<(Arc<Node>, Option<Attr>)> {
        let child = handle.open_dir(name)?;
        let covers = !dir.lowers.is_empty();
        let marks = self.layers.all_dir_marks(0, &*child, covers)?;
        let mut path = None;
        let below = if marks.opaque {
            LayerLookup::Nothing
        } else if let Some(redirect) = &marks.redirect {
            path = Some(redirect_path(dir, redirect));
            self.layers.follow_redirect(redirect, 0, &dir.lowers)?
        } else if covers && self.upper.aufs && self.layers.has_aufs_whiteout(0, handle, name)? {
            // The whiteout hides what is below, and not the directory beside it.
            LayerLookup::Nothing
        } else {
            path = lower_path(dir.lower_path.as_deref(), name);
            self.layers.find(&dir.lowers, name)?
        };
        let parts = if let LayerLookup::Dir(parts) = below { parts } else { Vec::new() };
        let upper = UpperDir::new(attr.ino, child, &marks);
        self.adopt_dir(parent, name, parts, path, Some(upper))
    }

    /// Makes the node of a directory, unless another thread was faster.
    fn adopt_dir(
        &self,
        parent: &Arc<Node>,
        name: Name<'_>,
        parts: Vec<Arc<LowerDir>>,
        path: Option<Box<CStr>>,
        upper: Option<UpperDir>,
    ) -> Result<(Arc<Node>, Option<Attr>)> {
        // The number of the lowest part: it stays when further layers are put on top.
        let ino = match (parts.last(), &upper) {
            (Some(part), _) => part.ino,
            (None, Some(upper)) => self.layers.shown_ino(0, upper.ino),
            (None, None) => return Err(Error::new(Errno::IO, "a directory without parts")),
        };
        let path = if parts.is_empty() { None } else { path };
        let key = match (&upper, parts.first()) {
            (Some(upper), _) => Some((0, upper.ino)),
            (None, part) => part.map(|part| (part.layer, part.ino)),
        };
        let shared = parent.as_dir().map_or_else(|| name.into(), |dir| dir.entries.name(name));
        let same =
            |path: &CStr| parts.first().filter(|part| *part.path == *path).map(|part| part.path.clone());
        let path = path.map(|path| same(&path).unwrap_or_else(|| path.into()));
        let dir = Dir::new(Some(Dentry::new(parent, shared)), parts, path);
        if !self.nodes.is_recovering() {
            dir.lease.reset();
        }
        if let Some(upper) = upper {
            self.layers.set_upper(&dir, upper);
        }
        let node = self.nodes.enter(parent, name, ino, Body::Dir(Box::new(dir)), key)?;
        Ok((node, None))
    }

    /// Makes the node of something that is not a directory, or finds the node of the same inode.
    fn adopt_file(
        &self,
        parent: &Arc<Node>,
        shared: &SharedName,
        found: LayerFile<'_>,
        at: InodeLocation,
    ) -> Result<(Arc<Node>, Option<Attr>)> {
        if self.has_separate_nodes(&found) {
            return self.adopt_separate(parent, shared, &found, at);
        }
        let name = Name::new(shared)?;
        let key = (found.layer, found.attr.ino);
        let mut shard = self.nodes.shard(key).lock();
        if let Some((ino, (file, node))) = shard.get(&key).and_then(|known| Some((known.ino, known.get()?))) {
            drop(shard);
            let node = match node {
                Some(node) => self.current(node)?,
                None => self.successor_of(&file, ino, None)?,
            };
            self.nodes.add_name(&node, parent, name)?;
            return Ok((node, None));
        }
        let names = Names::one(Dentry::new(parent, shared.clone()));
        let (file, ino, attr) = self.file_in(&found, names, at)?;
        if found.attr.nlink > 1 {
            // Under the shard's lock, so that two names of one inode never become two nodes.
            let node = self.nodes.enter(parent, name, ino, Body::file(file), Some(key))?;
            self.nodes.write_flags(&node, Flags::LINKED);
            prune(&mut shard);
            shard.insert(key, InodeEntry::new(&node));
            return Ok((node, None));
        }
        drop(shard);
        let plain = {
            let state = file.state.read();
            !state.null_device && state.below.is_none()
        };
        let node = self.nodes.enter(parent, name, ino, Body::file(file), Some(key))?;
        Ok((node, plain.then_some(attr)))
    }

    /// Whether a lower file has more names than the upper layer gives to one.
    fn has_separate_nodes(&self, found: &LayerFile<'_>) -> bool {
        found.layer > 0 && self.upper.work().is_ok_and(|work| found.attr.nlink > work.links_max)
    }

    /// Makes the node of one name of a file that has too many. The kernel does not say by which name it changes a node, so each has one.
    fn adopt_separate(
        &self,
        parent: &Arc<Node>,
        shared: &SharedName,
        found: &LayerFile<'_>,
        at: InodeLocation,
    ) -> Result<(Arc<Node>, Option<Attr>)> {
        let mut hasher = DefaultHasher::new();
        if let InodeLocation::Lower(at) = &at {
            (&at.dir.path, &at.name).hash(&mut hasher);
        }
        let key = (found.layer, hasher.finish());
        let (file, ino, _) = self.file_in(found, Names::one(Dentry::new(parent, shared.clone())), at)?;
        {
            let mut state = file.state.write();
            (state.apart, state.inode) = (true, Some(key));
        }
        Ok((self.nodes.enter(parent, Name::new(shared)?, ino, Body::file(file), Some(key))?, None))
    }

    /// What is known of something that is not a directory and has no node yet; also its inode number and attributes.
    pub(crate) fn file_in(
        &self,
        found: &LayerFile<'_>,
        names: Names,
        at: InodeLocation,
    ) -> Result<(Arc<File>, u64, Attr)> {
        let key = (found.layer, found.attr.ino);
        let space = self.upper.work().ok().map(|work| work.space);
        let own = self.layers.own_mark_at(found.layer, found.handle, found.name)?;
        let marked = own.is_some_and(|o| o.below);
        let mut own = self.layers.end_cut(found, own, space)?;
        let mut below = self.layers.data_below(found, own.as_ref(), space, 0);
        if below.is_err() {
            // A passing error must not be taken for data that are lost; and a file of a lower layer may just have become whole.
            own = self.layers.own_mark_at(found.layer, found.handle, found.name)?;
            below = self.layers.data_below(found, own.as_ref(), space, 0);
        }
        let (below, lost_data) = match below {
            Ok(below) => (below, false),
            // It can be listed, moved and removed; reading it says EIO.
            Err(error) if error.errno() == Errno::IO => {
                tracing::error!(%error, "a file's data are lost");
                (None, true)
            }
            Err(e) => return Err(e),
        };
        let partial = own.is_some_and(|o| o.partial) && below.is_some();
        let unmarked = below.is_none() && !lost_data && marked;
        let attr = if unmarked { found.handle.stat_at(found.name)? } else { found.attr };
        let attr = self.present(found.layer, found.handle, found.name, attr)?;
        let null_device = own.is_some_and(|o| o.null_device) && attr.is_file() && attr.size == 0;
        let kind = if null_device { FileKind::CharDevice } else { attr.kind() };
        let ino = own.as_ref().and_then(|o| self.layers.origin_ino(o));
        let ino = ino.unwrap_or_else(|| self.layers.shown_ino(found.layer, found.attr.ino));
        let state =
            FileState { below, partial, lost_data, null_device, ..FileState::complete(names, at, key) };
        Ok((Arc::new(File::new(kind, state)), ino, attr))
    }

    /// The node that shows a file now: the node itself, or its successor if it was swapped.
    pub(crate) fn current(&self, node: Arc<Node>) -> Result<Arc<Node>> {
        if !node.marks().stale.load(Relaxed) {
            return Ok(node);
        }
        if let Some(next) = node.successor().filter(|next| !next.marks().stale.load(Relaxed)) {
            return Ok(next);
        }
        self.successor_of(node.as_file().ok_or(Errno::ISDIR)?, node.ino, Some(&node))
    }

    /// The node that shows a file whose first node was swapped, or dropped. `old`: that node, if it is there.
    pub(crate) fn successor_of(
        &self,
        file: &Arc<File>,
        ino: u64,
        old: Option<&Arc<Node>>,
    ) -> Result<Arc<Node>> {
        let is_now = |next: &Arc<Node>| !next.marks().stale.load(Relaxed);
        // At first without a look at the names: each of many leads here.
        let last = file.used().and_then(|used| used.successor.lock().upgrade());
        if let Some(next) = last.filter(is_now) {
            drop(old.and_then(|old| self.nodes.replace(old, &next)));
            return Ok(next);
        }
        let key = self.layers.key_of_file(file);
        // Its names stay as they are until they lead to the node.
        let state = file.state.read();
        // Dropped after the locks: a node's end takes its file's state.
        let (last, mut before);
        let next = {
            let mut successor = file.successor.lock();
            last = successor.upgrade();
            before = Vec::new();
            match last.clone().filter(is_now) {
                Some(next) => {
                    before.extend(old.and_then(|old| self.nodes.replace(old, &next)));
                    Ok(next)
                }
                None => {
                    let all = [old, last.as_ref()];
                    self.make_successor(&mut successor, (file, &state), (key, ino), (&all, &mut before))
                }
            }
        };
        if let (Some(key), Ok(next)) = (key, &next) {
            self.nodes.links(key, next);
        }
        drop(state);
        drop((last, before));
        if let Some(old) = old {
            // As after a swap, of which a predecessor may have died.
            let _ = self.coherence.recall_attributes(old.id);
        }
        next
    }

    /// Another node for a file, to which all its names lead, instead of those in `all`. `before`: what is to be dropped without any lock.
    fn make_successor(
        &self,
        successor: &mut Weak<Node>,
        (file, state): (&Arc<File>, &FileState),
        (key, ino): (Option<InodeKey>, u64),
        (all, before): (&[Option<&Arc<Node>>], &mut Vec<Arc<Node>>),
    ) -> Result<Arc<Node>> {
        let next = self.nodes.make(key, ino, Body::file(Arc::clone(file)))?;
        self.nodes.write_new(&next, &state.names);
        if state.names.is_empty() {
            self.record_descriptor(&next, state);
        }
        // Before anybody finds it: of two that the kernel knows, with none in the other's place, a successor would find one only.
        before.extend(all.iter().flatten().filter_map(|old| self.nodes.replace(old, &next)));
        for place in state.names.iter() {
            if let Some(dir) = place.parent.as_dir() {
                dir.entries.set_node(&place.name, &next);
            }
        }
        *successor = Arc::downgrade(&next);
        Ok(next)
    }

    /// Gives a file's node a successor; an open of the node itself will say ESTALE. `state`: the file's; `key`: its inode.
    pub(crate) fn swap_node(
        &self,
        state: RwLockWriteGuard<'_, FileState>,
        (node, file): (&Arc<Node>, &Arc<File>),
        key: Option<InodeKey>,
    ) {
        let (last, mut before) = (file.successor.lock().upgrade(), Vec::new());
        let all = [Some(node), last.as_ref()];
        let next = {
            let mut successor = file.successor.lock();
            self.make_successor(&mut successor, (file, &state), (key, node.ino), (&all, &mut before))
        };
        if let (Some(key), Ok(next)) = (key, &next) {
            self.nodes.links(key, next);
        }
        for old in all.into_iter().flatten() {
            if next.is_err() {
                // The next lookup makes one.
                self.nodes.write_flags(old, Flags::STALE);
            }
            old.marks().stale.store(true, SeqCst);
            self.coherence.recall_mapping(old.id);
        }
        // What the kernel remembers of the old node's attributes would never be corrected: changes come through the new
        // one. A kernel that is gone needs no word.
        let _ = self.coherence.recall_attributes(node.id);
        drop(state);
        // The successor so far: dropping a node locks the file's state.
        drop((last, next, before));
    }

    /// The entry that the kernel gets: one more lookup of the node, and its attributes.
    pub(crate) fn entry(&self, node: &Arc<Node>, attr: Option<Attr>) -> Result<Entry> {
        // From here on it is known: programs that change it past the mount tell the kernel.
        self.nodes.acquire(node);
        let is_told = self.coherence.note_attributes_sent(node);
        let has_writers = self.may_have_writers(node);
        // One that has ended before that was found out may have written since they were read. Where somebody writes they hold for no time.
        let again = is_told || !has_writers && self.coherence.was_written(node);
        let attr = match attr {
            Some(attr) if !again => Attr { ino: node.ino, ..attr },
            _ => self.attr_of(node).inspect_err(|e| {
                tracing::debug!(path = path_of(node), error = %e, "attributes");
                self.forget(node.id, 1);
            })?,
        };
        let attr_ttl = self.attr_ttl(node, &attr, has_writers);
        Ok(Entry { node: node.id, generation: 0, attr, entry_ttl: self.layers.config.ttl, attr_ttl })
    }
}

impl Nodes {
    /// Makes a node known under a name; if the name has one already, that one is returned. `key`: the object, which may
    /// have had a node before.
    pub(crate) fn enter(
        &self,
        parent: &Arc<Node>,
        name: Name<'_>,
        ino: u64,
        body: Body,
        key: Option<InodeKey>,
    ) -> Result<Arc<Node>> {
        let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
        let body = match body {
            body if self.is_recovering() => match self.enter_recovered(parent, name, ino, body) {
                Ok(node) => return Ok(node),
                Err(body) => body,
            },
            body => body,
        };
        let shared = body.name().unwrap_or_else(|| name.into());
        let node = self.make(key, ino, body)?;
        let entered = dir.entries.enter(&shared, || -> Result<_> {
            if let Some(ledger) = self.ledger() {
                ledger.enter(node.id, ino, Some((parent.id, name)), Flags::empty());
            }
            Ok(Arc::clone(&node))
        });
        // The node that is not needed is dropped after the lock: dropping a node takes it.
        match entered? {
            EntryNode::Before(first) => Ok(first),
            EntryNode::Now(node) => Ok(node),
        }
    }

    /// Notes another name of a file.
    pub(crate) fn add_name(&self, node: &Arc<Node>, parent: &Arc<Node>, name: Name<'_>) -> Result<()> {
        let file = node.as_file().ok_or(Errno::ISDIR)?;
        {
            let mut state = file.state.write();
            let is_first = state.names.is_empty();
            if state.names.insert(parent, name) {
                self.write_flags(node, Flags::LINKED);
                if is_first {
                    // Gone are only the names by which it was known so far.
                    self.write_names(node, &state);
                }
            }
        }
        parent.as_dir().ok_or(Errno::NOTDIR)?.entries.set_node(name.as_c_str(), node);
        Ok(())
    }
}

/// The path in the union of the lower layers that a redirect of a directory in `parent` means.
fn redirect_path(parent: &Dir, redirect: &[u8]) -> Box<CStr> {
    match redirect.strip_prefix(b"/") {
        Some(path) => c_string(path.to_vec()),
        None => {
            let name = c_string(redirect.to_vec());
            let parent = parent.lower_path.as_deref().unwrap_or(c"");
            Name::new(&name).map_or_else(|_| name.clone(), |name| join(parent, name))
        }
    }
}
