//! The one way to change a directory's names: with all that must be kept, recalled and written down for it.
//!
//! [`Core::lock_names`] takes a directory's names exclusively. A change is done in the layer, then noted with a
//! [`Change`] ([`LockedNames::change`]): the entries, the places of the node, the ledger, the
//! books of inodes, what the kernel believes. What the kernel has to hear is said when the lock has been given back.

use crate::coherence::Coherence;
use crate::nodes::node::{Body, Dentry, Dir, FileState, Node};
use crate::nodes::shared_name::SharedName;
use crate::sync::RwLockWriteGuard;
use crate::union::Core;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use vellum_vfs::{Errno, Error, FileKind, Name, NodeId, Result};

/// By whom names are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChanger {
    /// The kernel: it knows what it does, and believes it.
    Kernel,
    /// A client, past the kernel: what that believes of the directory is recalled.
    Client,
}

/// What the kernel must hear of a directory, and of a file in it, once no lock is held.
#[derive(Clone, Copy, Default)]
struct Notices {
    attributes: bool,
    names: bool,
    file: Option<NodeId>,
}

/// A directory whose names nobody else looks at or changes while this is held.
#[must_use]
pub(crate) struct LockedNames<'a> {
    core: &'a Core,
    node: &'a Arc<Node>,
    dir: &'a Dir,
    by: NameChanger,
    notices: Cell<Notices>,
    ops: Option<RwLockWriteGuard<'a, ()>>,
}

/// Several directories, locked in the order of their ids.
#[must_use]
pub(crate) struct LockedDirs<'a>(SmallVec<[LockedNames<'a>; 3]>);

/// Notes a change of a directory's names.
#[must_use]
pub(crate) struct Change<'g> {
    core: &'g Core,
    node: &'g Arc<Node>,
    dir: &'g Dir,
    by: NameChanger,
    notices: &'g Cell<Notices>,
}

impl Core {
    /// Takes a directory's names. ENOTDIR: it is none.
    pub(crate) fn lock_names<'a>(&'a self, node: &'a Arc<Node>, by: NameChanger) -> Result<LockedNames<'a>> {
        let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
        let ops = Some(dir.entries.lock());
        Ok(LockedNames { core: self, node, dir, by, notices: Cell::default(), ops })
    }

    /// Takes the names of several directories for the kernel. ENOTDIR: one is none.
    pub(crate) fn lock_many<'a>(
        &'a self,
        nodes: impl IntoIterator<Item = &'a Arc<Node>>,
    ) -> Result<LockedDirs<'a>> {
        let mut sorted: SmallVec<[&'a Arc<Node>; 3]> = nodes.into_iter().collect();
        sorted.sort_unstable_by_key(|node| node.id);
        sorted.dedup_by_key(|node| node.id);
        sorted
            .into_iter()
            .map(|node| self.lock_names(node, NameChanger::Kernel))
            .collect::<Result<_>>()
            .map(LockedDirs)
    }
}

impl Coherence {
    fn tell(&self, node: &Node, notices: Notices) -> bool {
        let Some(kernel) = self.kernel() else { return true };
        let has_heard = |told: Result<()>| match told {
            Ok(()) => true,
            Err(error) if error.errno() == Errno::NOENT => false,
            Err(error) => {
                tracing::warn!(%error, "the kernel was not told of a change");
                true
            }
        };
        if notices.names {
            has_heard(kernel.notifier.data_changed(node.id));
        } else if notices.attributes {
            has_heard(kernel.notifier.attributes_changed(node.id));
        }
        notices.file.is_none_or(|file| has_heard(kernel.notifier.attributes_changed(file)))
    }
}

impl<'a> LockedDirs<'a> {
    /// One of the directories.
    pub(crate) fn get(&self, node: &Arc<Node>) -> Result<&LockedNames<'a>> {
        let found = self.0.iter().find(|names| Arc::ptr_eq(names.node, node));
        found.ok_or(Error::new(Errno::IO, "a directory that was not locked"))
    }
}

impl<'a> LockedNames<'a> {
    pub(crate) fn dir(&self) -> &'a Dir {
        self.dir
    }

    pub(crate) fn node(&self) -> &'a Arc<Node> {
        self.node
    }

    /// ENOENT: the directory has been removed, and nothing can be made in it.
    pub(crate) fn check_present(&self) -> Result<()> {
        if self.dir.removed.load(Relaxed) {
            return Err(Error::new(Errno::NOENT, "the directory was removed"));
        }
        Ok(())
    }

    pub(crate) fn child(&self, name: Name<'_>) -> Result<Option<Arc<Node>>> {
        self.core.child(self.node, name)
    }

    /// A note of one change, for what is done next.
    pub(crate) fn change(&self) -> Change<'_> {
        let (core, node, dir, by) = (self.core, self.node, self.dir, self.by);
        Change { core, node, dir, by, notices: &self.notices }
    }

    /// The kernel must hear that a file's attributes are not to be believed any more.
    pub(crate) fn recalls_file(&self, id: NodeId) {
        self.notices.set(Notices { file: Some(id), ..self.notices.get() });
    }

    /// Gives the names back and says what there is to say. False: the kernel does not have a file yet of which it was told: that answer is
    /// on its way, and what was recalled is in it.
    pub(crate) fn tell(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        // The kernel may be waiting for an answer that takes the lock.
        drop(self.ops.take());
        self.core.coherence.tell(self.node, self.notices.take())
    }
}

impl Drop for LockedNames<'_> {
    fn drop(&mut self) {
        if self.ops.is_some() {
            self.end();
        }
    }
}

impl Change<'_> {
    /// A name, as those share it who keep it.
    pub(crate) fn shared(&self, name: Name<'_>) -> SharedName {
        self.dir.entries.name(name)
    }

    /// A new object of the upper layer has got a name; `raw`: its inode number there. `ino`: as the union shows it.
    pub(crate) fn note_new_object(
        &self,
        name: Name<'_>,
        (raw, ino, kind): (u64, u64, FileKind),
        body: Body,
    ) -> Result<Arc<Node>> {
        if let Body::Dir(dir) = &body {
            dir.lease.reset();
            dir.entries.none();
        }
        self.core.nodes.is_new_inode((0, raw));
        let node = self.core.nodes.enter(self.node, name, ino, body, None)?;
        self.names(name, Some(&node), ino, kind);
        Ok(node)
    }

    /// A new file of the upper layer has got a name, and no node as yet.
    pub(crate) fn note_new_file(&self, name: Name<'_>, raw: u64) {
        self.core.nodes.is_new_inode((0, raw));
        self.names(name, None, self.core.layers.shown_ino(0, raw), FileKind::Regular);
    }

    /// A file has one more name.
    pub(crate) fn links(&self, name: Name<'_>, node: &Arc<Node>, state: &mut FileState) {
        state.names.insert(self.node, name);
        self.core.nodes.write_names(node, state);
        self.names(name, Some(node), node.ino, node.kind());
    }

    /// A file has lost a name.
    pub(crate) fn unlinks(&self, name: Name<'_>, node: &Node, state: &mut FileState) {
        self.unlinks_for(name, node, state);
        self.unnames(name);
    }

    /// A file has lost a name to another object, of which that is noted next.
    pub(crate) fn unlinks_for(&self, name: Name<'_>, node: &Node, state: &mut FileState) {
        state.names.remove(self.node, name);
        self.core.nodes.write_names(node, state);
    }

    /// A directory has been removed.
    pub(crate) fn removes_dir(&self, name: Name<'_>, node: &Node, victim: &Dir) {
        self.removes_dir_for(node, victim);
        self.unnames(name);
    }

    /// A directory has lost its name to another object, of which that is noted next.
    pub(crate) fn removes_dir_for(&self, node: &Node, victim: &Dir) {
        // Nothing can be made in it any more.
        victim.removed.store(true, Relaxed);
        let place = victim.place.write().take();
        self.core.nodes.write_place(node, None);
        // Dropped after the lock: the parent may go with it.
        drop(place);
    }

    /// A directory has come here from `from`, which something else has now, if it was an exchange.
    pub(crate) fn moves_dir(&self, name: Name<'_>, node: &Arc<Node>, dir: &Dir, from: MoveSource<'_>) {
        *dir.place.write() = Some(Dentry::new(self.node, self.shared(name)));
        self.core.nodes.write_place(node, Some((self.node, name)));
        self.moves(name, node, &from);
    }

    /// A file has come here from `from`, which something else has now, if it was an exchange.
    pub(crate) fn moves_file(
        &self,
        name: Name<'_>,
        node: &Arc<Node>,
        state: &mut FileState,
        from: MoveSource<'_>,
    ) {
        state.names.remove(from.change.node, from.name);
        state.names.insert(self.node, name);
        self.core.nodes.write_names(node, state);
        self.moves(name, node, &from);
    }

    fn moves(&self, name: Name<'_>, node: &Arc<Node>, from: &MoveSource<'_>) {
        if !from.exchanged {
            from.change.unnames(from.name);
        }
        self.names(name, Some(node), node.ino, node.kind());
    }

    fn names(&self, name: Name<'_>, node: Option<&Arc<Node>>, ino: u64, kind: FileKind) {
        self.dir.entries.insert(name, node, ino, kind);
        match self.by {
            NameChanger::Kernel => self.forget_negative(name),
            NameChanger::Client => self.is_changed(),
        }
    }

    fn unnames(&self, name: Name<'_>) {
        self.dir.entries.remove(name);
        if self.by == NameChanger::Client {
            self.is_changed();
        }
    }

    /// The kernel does not believe any more that a name is not there for which it looked before.
    fn forget_negative(&self, name: Name<'_>) {
        if self.core.coherence.can_hand_out()
            && self.dir.lease.negative.remove(name)
            && let Some(ledger) = self.core.nodes.ledger()
        {
            ledger.set_negative(self.node.id, false);
        }
    }

    /// What the kernel believes of the directory is to be recalled.
    fn is_changed(&self) {
        let before = self.notices.get();
        let attributes = self.dir.lease.attributes.swap(false, SeqCst) || before.attributes;
        let names = self.dir.lease.recall_names() || before.names;
        self.notices.set(Notices { attributes, names, file: before.file });
    }
}

/// Where something was before it was moved.
pub(crate) struct MoveSource<'g> {
    pub(crate) change: &'g Change<'g>,
    pub(crate) name: Name<'g>,
    /// Something else has come there.
    pub(crate) exchanged: bool,
}
