//! Going on where a predecessor of the process was killed: nodes are made again from the [ledger](crate::nodes::recovery::ledger) and the layers,
//! each when it is first asked for, under the id by which the kernel knows it.
//!
//! Also what the union writes into the ledger while it lives.

use crate::coherence::entries::EntryNode;
use crate::copyup::copy_metadata::restore_times;
use crate::copyup::partial_file;
use crate::layers::data_source::LayerFile;
use crate::layers::layer::{LowerDir, c_string};
use crate::layers::marks::{DirMarks, Space};
use crate::layers::orphans::orphan_name;
use crate::nodes::Nodes;
use crate::nodes::names::Names;
use crate::nodes::node::{Body, Dentry, Dir, File, FileState, InodeLocation, LowerData, LowerLocation, Node};
use crate::nodes::recovery::ledger::{Flags, HeldDescriptor, Ledger, Record};
use crate::union::Core;
use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use vellum_vfs::{AdoptedObject, Attr, Branch, BranchDir, Errno, Error, FileKind, Name, NodeId, Result};

/// Deepest tree whose directories are made again.
const DEPTH_MAX: usize = 1 << 20;

fn stale(what: &'static str) -> Error {
    Error::new(Errno::STALE, what)
}

impl Core {
    /// Takes the descriptors that hold what has no name, and makes the nodes at once that must be known before they are asked
    /// for: files with several names, and stale nodes, which hold the nodes that show their files. To be called before the kernel asks for
    /// anything.
    pub(crate) fn resume(&self, held: HashMap<RawFd, OwnedFd>) {
        *self.nodes.recovery.held.lock() = held;
        let Some(ledger) = self.nodes.ledger() else { return };
        self.resume_unfinished(ledger);
        for record in ledger.records() {
            let at_once = record.flags.intersects(Flags::LINKED | Flags::STALE) && record.lookups > 0;
            if at_once && let Err(error) = self.recover(record.id) {
                tracing::debug!(%error, node = record.id.0, "a file with several names or nodes is not found again");
            }
            if record.flags.contains(Flags::NAMING) {
                match self.resume_naming(record.id) {
                    Ok(()) => self.nodes.finish_naming(ledger, record.id),
                    Err(error) => {
                        tracing::warn!(%error, node = record.id.0, "names of a file may be those of two files now");
                    }
                }
            }
            if let Some(number) = record.orphan.filter(|_| !record.flags.contains(Flags::GONE)) {
                self.resume_removal(record.id, number);
            }
        }
    }

    /// Ends what must not be found half done: numbers that were changing, and nodes without a name of which the kernel has never heard, or
    /// will not again.
    fn resume_unfinished(&self, ledger: &Ledger) {
        for record in ledger.records() {
            if let Some(number) = record.number {
                let is_copied = self.has_copy(&record, number);
                ledger.renumber(record.id, is_copied.then_some(number));
                if is_copied {
                    self.nodes.recovery.renumber(&record, number);
                }
            }
            let is_useless = record.flags.contains(Flags::GONE)
                && record.successor.is_none()
                && record.lookups == 0
                && !self.nodes.recovery.is_successor(record.id);
            if is_useless {
                // The name in the work directory first: no other record leads to it.
                self.release_kept(record.orphan);
                self.nodes.release(record.id);
            }
        }
        // What others hold, too, is theirs.
        let named: HashSet<RawFd> = ledger.held_descriptors().into_iter().collect();
        let useless: Vec<_> =
            self.nodes.recovery.held.lock().extract_if(|number, _| !named.contains(number)).collect();
        drop(useless);
    }

    /// Whether the upper layer has a copy, under the name of a record, that shows a number.
    fn has_copy(&self, record: &Record, number: u64) -> bool {
        let Some((parent, name)) = record.places.first() else { return false };
        let look = || -> Result<bool> {
            let parent = self.node(*parent)?;
            let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
            let Some(upper) = self.layers.upper_of(dir)? else { return Ok(false) };
            Ok(self.layers.shown_ino(0, upper.stat_at(Name::new(name)?)?.ino) == number)
        };
        look().unwrap_or(false)
    }

    /// A predecessor died while it gave a copy the names of the original, the one in the record first: the copy gets the rest.
    fn resume_naming(&self, id: NodeId) -> Result<()> {
        let node = self.recover(id)?;
        let file = node.as_file().ok_or(stale("not a file"))?;
        let object = {
            let state = file.state.read();
            match &state.at {
                InodeLocation::Upper => self.layers.target_of(&state)?.1.hold()?,
                // It has none, and is made anew.
                InodeLocation::Lower(_) | InodeLocation::Orphan(_) => return Ok(()),
            }
        };
        let own = self.layers.own_mark_of(&*object).ok_or(stale("no mark"))?;
        self.nodes.links((0, object.stat()?.ino), &node);
        for path in self.layers.paths_to_origin(&own, self.nodes.ledger())? {
            let (above, name) =
                path.split_at(path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1));
            let (Some(parent), Some(other)) = (self.walk(above)?, self.walk(&path)?) else { continue };
            let Some(original) = other.as_file().filter(|_| other.id != id && other.ino == node.ino) else {
                continue;
            };
            let original = {
                let state = original.state.read();
                matches!(state.at, InodeLocation::Lower(_)).then_some(state.inode).flatten()
            };
            let Some(key) = original else { continue };
            let name = c_string(name.to_vec());
            let (name, dir) = (Name::new(&name)?, self.ensure_upper_dir(&parent)?);
            let before = dir.stat()?;
            dir.link_object(&*object, name)?;
            restore_times(&*dir, &before);
            self.nodes.forget_inode(key);
            self.nodes.add_name(&node, &parent, name)?;
        }
        Ok(())
    }

    /// A predecessor died while a file lost its last name, and the request will come again. If the file has not lost it, its other name is one
    /// too many.
    fn resume_removal(&self, id: NodeId, number: u64) {
        let Ok(node) = self.recover(id) else { return };
        let has_name = node.as_file().is_some_and(|file| file.state.read().orphan().is_none());
        if has_name {
            self.release_kept(Some(number));
        }
    }

    /// A record does not need a name in the work directory any more.
    pub(crate) fn release_kept(&self, number: Option<u64>) {
        if let Some(number) = number
            && let Ok(work) = self.upper.work()
            && let Some(orphan) = &work.orphan
        {
            orphan.release(number);
        }
    }

    /// A predecessor may have died between the end of a node, of which the kernel hears nothing any more, and the word of that.
    pub(crate) fn recall_replaced(&self) {
        let replaced = |record: &Record| record.successor.is_some() && record.lookups > 0;
        for record in self.nodes.ledger().into_iter().flat_map(Ledger::records).filter(replaced) {
            let _ = self.coherence.recall_attributes(record.id);
        }
    }

    /// A predecessor may have died between a change of names by a program and the word of it to the kernel: what that believes of those
    /// directories is taken back.
    pub(crate) fn recall_shared(&self) {
        if !self.coherence.can_hand_out() {
            return;
        }
        let (Some(ledger), Some(kernel)) = (self.nodes.ledger(), self.coherence.kernel()) else { return };
        let shared: Vec<NodeId> = ledger.shared().collect();
        if shared.is_empty() {
            return;
        }
        let notifier = Arc::clone(&kernel.notifier);
        let recall = move || {
            for dir in shared {
                if let Err(error) = notifier.data_changed(dir) {
                    tracing::warn!(%error, "the kernel was not told of a change");
                }
            }
        };
        // A page of a list may be held by somebody who waits for an answer.
        let is_aside = self.layers.config.background
            && std::thread::Builder::new().name("vellum-recall".into()).spawn(recall.clone()).is_ok();
        if !is_aside {
            recall();
        }
    }

    /// The node of an id that a predecessor gave out. ESTALE: it is not known.
    pub(crate) fn recover(&self, id: NodeId) -> Result<Arc<Node>> {
        let ledger = self.nodes.ledger().ok_or(stale("node"))?;
        // Up to what is there, then down again: without recursion, for a tree may be deeper than a stack.
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next.filter(|id| self.nodes.get(*id).is_err()) {
            let Some(record) = ledger.read(id) else {
                tracing::warn!(id = id.0, "an id that the last service did not know");
                return Err(stale("node"));
            };
            next = match record.successor {
                None if record.flags.contains(Flags::GONE) => None,
                None => record.places.first().map(|(parent, _)| *parent),
                successor => successor,
            };
            chain.push(record);
            if chain.len() > DEPTH_MAX {
                return Err(stale("a tree without a root"));
            }
        }
        let mut node: Option<Arc<Node>> = None;
        while let Some(record) = chain.pop() {
            // The one before, a parent or a successor, is held meanwhile: perhaps nobody else holds it.
            let next = node.as_ref().filter(|last| Some(last.id) == record.successor);
            let made = self.recover_one(&record, next.cloned()).inspect_err(|error| {
                tracing::warn!(%error, ?record, "an object that the last service knew is not found again");
            });
            node = Some(made?);
        }
        match node {
            Some(node) => Ok(node),
            None => self.nodes.get(id),
        }
    }

    /// `next`: its successor, where that had to be made again.
    fn recover_one(&self, record: &Record, next: Option<Arc<Node>>) -> Result<Arc<Node>> {
        if let Ok(node) = self.nodes.get(record.id) {
            return Ok(node);
        }
        if let Some(successor) = record.successor {
            let next = match next {
                Some(next) => next,
                None => self.nodes.get(successor)?,
            };
            return self.nodes.recover_second(record, &next);
        }
        if record.flags.contains(Flags::GONE) {
            return self.recover_gone(record);
        }
        for (parent, name) in &record.places {
            let Ok(parent) = self.node(*parent) else { continue };
            let Some(dir) = parent.as_dir() else { continue };
            let name = Name::new(name)?;
            let found = {
                let _names = dir.entries.share();
                self.child(&parent, name)?
            };
            // Another object may have the name by now.
            let Some(node) = found.filter(|node| node.ino == record.ino) else { continue };
            if record.flags.contains(Flags::STALE) {
                return self.nodes.recover_second(record, &node);
            }
            if node.id == record.id {
                return Ok(node);
            }
            // It has a successor, which is what the name leads to.
            if let Ok(node) = self.nodes.get(record.id) {
                return Ok(node);
            }
        }
        // Removed, and killed before it could be written down.
        if record.is_held() {
            return self.recover_gone(record);
        }
        Err(stale("node"))
    }

    /// The node of an object that has no name any more.
    fn recover_gone(&self, record: &Record) -> Result<Arc<Node>> {
        let parent = record.in_parent.map(|layer| self.parent_in(record, layer)).transpose()?;
        // One at a time: who comes second finds the node.
        let mut made = self.nodes.recovery.gone.lock();
        let before = made.get(&record.id).and_then(Weak::upgrade);
        if let Some(node) = before.or_else(|| self.nodes.get(record.id).ok()) {
            return Ok(node);
        }
        let body = match (record.held, record.orphan, parent) {
            (_, Some(number), _) => self.recover_orphan(number)?,
            (_, _, Some((layer, handle))) => self.recover_nameless_lower(record, layer, handle)?,
            (Some(holding), ..) if holding.in_dir => self.recover_nameless_lower(
                record,
                holding.layer,
                self.dir_by_descriptor(record.id, holding)?,
            )?,
            (Some(holding), ..) => {
                let (branch, descriptor) = self.take_descriptor(holding)?;
                self.recover_nameless_upper(record, branch.adopt(descriptor)?)?
            }
            (None, None, None) => return Err(stale("nothing holds the object")),
        };
        let is_copied = is_copied(&body);
        let node = Arc::new(Node::new(record.id, record.ino, body, &self.nodes.table));
        self.nodes.restore_state(&node, record, is_copied);
        // It may have got a name before that could be written down.
        if record.flags.contains(Flags::LINKED)
            && let Some(file) = node.as_file()
            && let Some(key) = self.layers.key_of_file(file).filter(|(layer, _)| *layer == 0)
        {
            self.nodes.links(key, &node);
        }
        made.insert(record.id, Arc::downgrade(&node));
        self.nodes.table.recovered(&node);
        Ok(node)
    }

    /// A descriptor that holds something, and the branch of what it holds.
    fn take_descriptor(&self, holding: HeldDescriptor) -> Result<(&dyn Branch, OwnedFd)> {
        let descriptor = self.nodes.recovery.held.lock().remove(&holding.descriptor);
        let layer = self.layers.layer(holding.layer).ok_or(stale("no such layer"))?;
        Ok((&*layer.branch, descriptor.ok_or(stale("the object is not held"))?))
    }

    /// A directory that is held for the time of an id.
    fn dir_by_descriptor(&self, id: NodeId, holding: HeldDescriptor) -> Result<Arc<dyn BranchDir>> {
        let (branch, descriptor) = self.take_descriptor(holding)?;
        let copy = descriptor.try_clone().map_err(|_| Errno::MFILE)?;
        // Under its number, which is written down.
        if let Some(ledger) = self.nodes.ledger() {
            ledger.keep(id, descriptor);
        }
        match branch.adopt(copy)? {
            AdoptedObject::Dir(dir) => Ok(dir),
            AdoptedObject::Other(_) => Err(stale("not a directory")),
        }
    }

    /// The directory of a layer in which an object is whose place in the union was there.
    fn parent_in(&self, record: &Record, layer: u16) -> Result<(u16, Arc<dyn BranchDir>)> {
        let (parent, _) = record.places.first().ok_or(stale("no place"))?;
        let parent = self.node(*parent)?;
        let mut parts = parent.as_dir().ok_or(Errno::NOTDIR)?.lowers.iter();
        let part = parts.find(|part| part.layer == layer).ok_or(stale("no such part"))?;
        Ok((layer, part.open(&self.layers)?))
    }

    /// What has a name in the work directory.
    fn recover_orphan(&self, number: u64) -> Result<Body> {
        let work = self.upper.work()?;
        let (attr, object) = work.orphan_of_predecessor(number)?;
        let name = orphan_name(number);
        let name = Name::new(&name)?;
        let found = LayerFile { layer: 0, handle: work.dir(), name, attr, impure: true, rest: &[] };
        let (file, ..) = self.file_in(&found, Names::default(), InodeLocation::Orphan(object))?;
        let mut state = file.state.write();
        state.set_orphan_name(work.adopt_orphan(number));
        self.layers.doom_sidecar(&file, &state, work.space);
        drop(state);
        Ok(Body::file(file))
    }

    /// What was in the upper layer.
    fn recover_nameless_upper(&self, record: &Record, adopted: AdoptedObject) -> Result<Body> {
        let AdoptedObject::Other(object) = adopted else { return Err(stale("a directory")) };
        let attr = object.stat()?;
        let mut own = self.layers.own_mark_of(&*object);
        if let Some(mark) = own.filter(|own| own.may_be_truncating(&attr)) {
            own = Some(partial_file::end_cut(&*object, self.upper.space(), mark, attr.size)?);
        }
        let null_device = own.is_some_and(|own| own.null_device) && attr.is_file() && attr.size == 0;
        let marked = |space: &Space| object.get_xattr(space.metacopy(), &mut []).is_ok();
        let is_below = attr.is_file()
            && (own.is_some_and(|own| own.below || own.partial)
                || self.layers.mark_spaces(0).iter().any(marked));
        let below = if is_below { self.data_of(record) } else { None };
        let state = FileState {
            partial: below.is_some() && own.is_some_and(|own| own.partial),
            // Of data in a chain of files only the first is held.
            lost_data: is_below && below.is_none(),
            below,
            null_device,
            ..FileState::complete(Names::default(), InodeLocation::Orphan(object), (0, attr.ino))
        };
        let kind = if null_device { FileKind::CharDevice } else { attr.kind() };
        Ok(Body::file(Arc::new(File::new(kind, state))))
    }

    /// Where the data are of a file without a name that has them not itself.
    fn data_of(&self, record: &Record) -> Option<Arc<LowerData>> {
        let (holding, name) = record.below.clone()?;
        let handle = self.dir_by_descriptor(record.id, holding).ok()?;
        let dir = Arc::new(LowerDir::from_handle(holding.layer, 0, handle));
        Some(Arc::new(LowerData { at: LowerLocation { dir, name: name.into() }, next: None }))
    }

    /// What was in a lower layer: `handle` is the directory in which it is, or the removed directory itself.
    fn recover_nameless_lower(
        &self,
        record: &Record,
        layer: u16,
        handle: Arc<dyn BranchDir>,
    ) -> Result<Body> {
        let lower = Arc::new(LowerDir::from_handle(layer, record.ino, Arc::clone(&handle)));
        let Some((_, name)) = record.places.first().filter(|_| !record.flags.contains(Flags::DIR)) else {
            let dir = Dir::new(None, vec![lower], None);
            dir.removed.store(true, Relaxed);
            return Ok(Body::Dir(Box::new(dir)));
        };
        let name = Name::new(name)?;
        let attr: Attr = handle.stat_at(name)?;
        let found = LayerFile { layer, handle: &*handle, name, attr, impure: true, rest: &[] };
        let at = InodeLocation::Lower(LowerLocation { dir: lower, name: name.into() });
        let (file, _, _) = self.file_in(&found, Names::default(), at)?;
        file.state.write().lost = 1;
        Ok(Body::file(file))
    }

    /// Before a file loses its last name: what holds it.
    pub(crate) fn record_descriptor(&self, node: &Node, state: &FileState) {
        let Some(ledger) = self.nodes.ledger() else { return };
        match &state.at {
            InodeLocation::Orphan(object) => {
                if let Some(below) = &state.below
                    && state.orphan().is_none()
                    && below.next.is_none()
                    && let Ok(handle) = below.at.dir.open(&self.layers)
                    && let Ok(name) = Name::new(&below.at.name)
                {
                    ledger.hold_below(node.id, handle.as_descriptor(), below.at.dir.layer, name);
                }
                match state.orphan() {
                    Some(orphan) => ledger.hold_orphan(node.id, orphan.number),
                    None => ledger.hold(node.id, object.as_descriptor()),
                }
            }
            InodeLocation::Lower(at) => {
                if let Ok(handle) = at.dir.open(&self.layers) {
                    match handle.as_descriptor() {
                        None => ledger.hold_in_parent(node.id, at.dir.layer),
                        dir => ledger.hold_dir(node.id, dir, at.dir.layer),
                    }
                }
            }
            InodeLocation::Upper => {}
        }
    }

    /// Before a directory is removed: what holds it.
    pub(crate) fn write_held_dir(&self, node: &Node, dir: &Dir) {
        let Some(ledger) = self.nodes.ledger() else { return };
        ledger.add(node.id, Flags::DIR);
        match self.layers.top_of(dir) {
            Ok((layer, handle)) => ledger.hold_dir(node.id, handle.as_descriptor(), layer),
            Err(error) => tracing::debug!(%error, "a removed directory is not held"),
        }
    }
}

impl Nodes {
    /// A node whose file another one, `next`, shows.
    fn recover_second(&self, record: &Record, next: &Arc<Node>) -> Result<Arc<Node>> {
        let mut made = self.recovery.gone.lock();
        let before = made.get(&record.id).and_then(Weak::upgrade);
        if let Some(node) = before.or_else(|| self.get(record.id).ok()) {
            return Ok(node);
        }
        let file = next.as_file().ok_or(stale("not a file"))?;
        let node = Arc::new(Node::new(record.id, record.ino, Body::file(Arc::clone(file)), &self.table));
        node.marks().stale.store(true, Relaxed);
        drop(self.replace(&node, next));
        file.cached_opens.fetch_add(record.cached_opens, Relaxed);
        made.insert(record.id, Arc::downgrade(&node));
        self.table.recovered(&node);
        Ok(node)
    }

    /// Gives a node that is being made the id of its predecessor, if the object had one; else the body comes back.
    pub(crate) fn enter_recovered(
        &self,
        parent: &Node,
        name: Name<'_>,
        ino: u64,
        body: Body,
    ) -> std::result::Result<Arc<Node>, Body> {
        let Some(dir) = parent.as_dir() else { return Err(body) };
        let shared = body.name().unwrap_or_else(|| name.into());
        let mut taken = None;
        let is_copied = is_copied(&body);
        // Under the lock of the names, so that of two who look one makes the node, and with this id.
        let entered = dir.entries.enter(&shared, || {
            let (Some(record), Some(ledger)) = (self.take_record(parent.id, name, ino), self.ledger()) else {
                return Err(body);
            };
            if let Body::Dir(dir) = &body
                && ledger.negative(record.id)
            {
                dir.lease.negative.set_unknown();
            }
            let node = Arc::new(Node::new(record.id, ino, body, &self.table));
            // Before anybody else sees it: whoever opens it must know what the kernel has open.
            self.restore_state(&node, &record, is_copied);
            taken = Some((record, ledger));
            Ok(node)
        });
        let node = match entered? {
            EntryNode::Before(first) => return Ok(first),
            EntryNode::Now(node) => node,
        };
        let Some((record, ledger)) = taken else { return Ok(node) };
        ledger.set_place(record.id, Some((parent.id, name)));
        self.table.recovered(&node);
        Ok(node)
    }

    /// What a predecessor has written down of the object at a place. Inode numbers are used again: what has been given up since, or
    /// was found at its other place, is another object.
    fn take_record(&self, parent: NodeId, name: Name<'_>, ino: u64) -> Option<Record> {
        let ledger = self.ledger()?;
        loop {
            let id = self.recovery.take(parent, name, ino)?;
            let record = ledger.read(id).filter(|record| !record.flags.contains(Flags::GONE));
            if record.is_some() && !self.table.has_node(id) {
                return record;
            }
        }
    }

    /// What a predecessor knew of a node that nobody else sees yet. `is_copied`: its file has data in the upper layer.
    fn restore_state(&self, node: &Node, record: &Record, is_copied: bool) {
        let Some(file) = node.as_file() else { return };
        // Of each node of the file there are its own.
        file.cached_opens.fetch_add(record.cached_opens, Relaxed);
        if record.flags.contains(Flags::LOWER_OPEN) {
            node.marks().lower_passthrough.store(true, Relaxed);
            // Killed between a copy-up and the word of it: the kernel has the lower file open through this node. It has no successor yet.
            node.marks().stale.store(is_copied, Relaxed);
        }
    }

    /// A node that has not been made again will not be asked for any more. The number by which its object has a name in the work
    /// directory, for this record.
    pub(crate) fn forget_unrecovered(&self, id: NodeId) -> Option<u64> {
        let ledger = self.ledger().filter(|_| self.is_recovering())?;
        if !self.table.is_forgotten(id) || self.recovery.is_recovered(id) {
            return None;
        }
        // The file of a stale node is found by it.
        if self.recovery.is_successor(id) && ledger.records().any(|other| other.successor == Some(id)) {
            return None;
        }
        let record = ledger.read(id)?;
        if record.flags.contains(Flags::STALE) {
            self.table.release(id);
            // Without a lookup of its own, the successor was there for this one.
            return self.forget_unrecovered(record.successor?);
        }
        if !record.flags.contains(Flags::GONE) {
            self.forget_named(ledger, record);
            return None;
        }
        let all = record.held.into_iter().chain(record.below.map(|(holding, _)| holding));
        let held: Vec<_> =
            all.filter_map(|holding| self.recovery.held.lock().remove(&holding.descriptor)).collect();
        self.table.release(id);
        // Not before: a closed number may be that of a connection in the next moment, and a successor would take it for what was held.
        drop(held);
        record.orphan
    }

    /// What has a name keeps its record as long as others may be found through it.
    fn forget_named(&self, ledger: &Ledger, mut record: Record) {
        // The last one in a directory may be what that was kept for.
        while record.id != NodeId::ROOT
            && self.table.is_forgotten(record.id)
            && self.recovery.abandon(&record)
        {
            self.table.release(record.id);
            let parent = record.places.first().and_then(|(parent, _)| ledger.read(*parent));
            let Some(parent) = parent.filter(|parent| !parent.flags.intersects(Flags::GONE | Flags::STALE))
            else {
                return;
            };
            record = parent;
        }
    }

    /// Whether programs have changed names of a directory past the kernel, and a successor may have to know.
    pub(crate) fn is_shared(&self, id: NodeId) -> bool {
        self.ledger().is_some_and(|ledger| ledger.is_shared(id))
    }

    /// Writes a node down that came to be without [`Nodes::enter`].
    pub(crate) fn write_new(&self, node: &Node, names: &[Dentry]) {
        let Some(ledger) = self.ledger() else { return };
        let place = first_of(names);
        let flags = if names.len() > 1 { Flags::LINKED } else { Flags::empty() };
        ledger.enter(node.id, node.ino, place, flags);
    }

    /// Before a copy gets its name: the number that the node shows afterwards.
    pub(crate) fn prepare_number(&self, node: &Node, ino: u64) {
        if let Some(ledger) = self.ledger() {
            ledger.prepare_number(node.id, ino);
        }
    }

    /// Writes down that a node shows another inode number; None: it does not.
    pub(crate) fn renumber(&self, node: &Node, ino: Option<u64>) {
        if let Some(ledger) = self.ledger() {
            ledger.renumber(node.id, ino);
        }
    }

    /// Writes down what has become of a node.
    pub(crate) fn write_flags(&self, node: &Node, flags: Flags) {
        if let Some(ledger) = self.ledger() {
            ledger.add(node.id, flags);
        }
    }

    /// Writes down where a file is, after its names have changed.
    pub(crate) fn write_names(&self, node: &Node, state: &FileState) {
        let Some(ledger) = self.ledger() else { return };
        ledger.set_place(node.id, first_of(&state.names));
        if state.names.len() > 1 {
            ledger.add(node.id, Flags::LINKED);
        }
    }

    /// Before a copy is given the names of the original: the first of them is the one by which a successor looks.
    pub(crate) fn begins_naming(&self, node: &Node, state: &FileState) {
        let Some(ledger) = self.ledger().filter(|_| state.names.len() > 1) else { return };
        ledger.set_place(node.id, first_of(&state.names));
        ledger.add(node.id, Flags::NAMING | Flags::LINKED);
    }

    /// The copy has all of them, or none.
    pub(crate) fn ends_naming(&self, node: &Node) {
        if let Some(ledger) = self.ledger() {
            self.finish_naming(ledger, node.id);
        }
    }

    fn finish_naming(&self, ledger: &Ledger, id: NodeId) {
        ledger.clear(id, Flags::NAMING);
        ledger.end_search();
    }

    /// Before a file loses one of several names: another one, by which it is found. By the one that is gone nothing would be found, and
    /// by the others a second node, beside the one that the kernel knows.
    pub(crate) fn write_leaves(
        &self,
        node: &Node,
        state: &FileState,
        (parent, name): (&Arc<Node>, Name<'_>),
    ) {
        let Some(ledger) = self.ledger() else { return };
        let other = state.names.iter().find(|place| !place.is(parent, name));
        if let Some(place) = other
            && let Ok(name) = Name::new(&place.name)
        {
            ledger.set_place(node.id, Some((place.parent.id, name)));
        }
    }

    /// Writes down where a directory is, after a rename; None: it has been removed.
    pub(crate) fn write_place(&self, node: &Node, place: Option<(&Node, Name<'_>)>) {
        if let Some(ledger) = self.ledger() {
            ledger.set_place(node.id, place.map(|(parent, name)| (parent.id, name)));
        }
    }

    /// Before a rename: where the object will be.
    pub(crate) fn write_move(&self, node: &Node, to: (&Arc<Node>, Name<'_>)) {
        if let Some(ledger) = self.ledger() {
            ledger.prepare_move(node.id, (to.0.id, to.1));
        }
    }
}

/// Whether a file has data in the upper layer, all or some blocks.
fn is_copied(body: &Body) -> bool {
    let Body::File(file) = body else { return false };
    let state = file.state.read();
    !matches!(state.at, InodeLocation::Lower(_)) && (state.below.is_none() || state.partial)
}

/// The place that a record says: the first name of a file.
fn first_of(names: &[Dentry]) -> Option<(NodeId, Name<'_>)> {
    names.first().and_then(|place| Some((place.parent.id, Name::new(&place.name).ok()?)))
}

impl LowerDir {
    /// A directory that cannot be found by its path any more, or need not be.
    pub(crate) fn from_handle(layer: u16, ino: u64, handle: Arc<dyn BranchDir>) -> Self {
        let marks = DirMarks { xwhiteouts: false, impure: true, ..DirMarks::default() };
        let dir = Self::new(layer, c"", ino, &marks);
        dir.pin(handle);
        dir
    }
}
