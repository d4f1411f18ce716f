//! Nodes are forgotten by the kernel, and found again by handles.

use crate::layers::Layers;
use crate::layers::layer::InodeKey;
use crate::nodes::handle_ids::{ForgottenObject, Note, Spot};
use crate::nodes::node::{Body, Dentry, File, InodeLocation, Node};
use crate::union::Core;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use vellum_vfs::{Errno, Error, Name, NodeId, Result};

impl Core {
    /// Takes back `count` lookups of a node by the kernel.
    pub(crate) fn forget(&self, id: NodeId, count: u64) {
        match self.nodes.forget(id, count) {
            // Others may hold it still: its id is given back when it is dropped.
            // A front that holds nothing can ask for nothing by a handle.
            Some(node) => {
                if self.coherence.kernel().is_some() {
                    self.note_forgotten(&node);
                }
            }
            None => self.release_kept(self.nodes.forget_unrecovered(id)),
        }
    }

    /// Whether a client may have another object held for as long as it likes ([`crate::Budget`]). What is kept open for handles that
    /// nobody may ever use goes first.
    pub(crate) fn room_to_hold(&self, like: Option<BorrowedFd<'_>>) -> Result<()> {
        self.layers.has_room(like).or_else(|_| {
            self.nodes.close_handles();
            self.layers.has_room(like)
        })
    }

    fn note_forgotten(&self, node: &Node) {
        let (place, file, orphan) = match &node.body {
            Body::Dir(dir) => {
                dir.entries.forget_list();
                (dir.place.read().as_ref().map(Spot::from), Weak::new(), None)
            }
            Body::File(file) => {
                let place = file.state.read().names.first().map(Spot::from);
                let orphan = (place.is_none() && !is_gone(file)).then(|| Arc::clone(file));
                // By another node, or by whoever is just using it. A reference that holds nothing keeps the memory all the same.
                let others = Arc::strong_count(file) > 1;
                (place, if others { Arc::downgrade(file) } else { Weak::new() }, orphan)
            }
        };
        if place.is_none() && orphan.is_none() {
            return;
        }
        let only_for_handles = node.marks().alias || node.marks().stale.load(Relaxed);
        let key = if only_for_handles { None } else { self.layers.key_of(node) };
        self.nodes.remember(node.id, Note { place, ino: node.ino, key, file, orphan, dropped: false });
    }

    /// The node that a forgotten id stands for. ESTALE: not known, or not there any more.
    pub(crate) fn recall(&self, id: NodeId) -> Result<Arc<Node>> {
        if let Ok(node) = self.node(id) {
            // The kernel holds no inode for it, or it would not ask. What has no name is gone, then; and what was handed
            // to the kernel through this node is closed, so that the node can be used again.
            let gone = match &node.body {
                Body::Dir(dir) => dir.removed.load(Relaxed),
                Body::File(file) => is_gone(file),
            };
            if gone {
                return Err(Error::new(Errno::STALE, "handle"));
            }
            if node.marks().stale.swap(false, Relaxed) {
                node.marks().lower_passthrough.store(false, Relaxed);
            }
            return Ok(node);
        }
        let stale = || Error::new(Errno::STALE, "handle");
        let ForgottenObject { place, ino, file, orphan } = self.nodes.remembered(id).ok_or_else(stale)?;
        let alias = |current: Arc<Node>| {
            // The kernel holds the file through two nodes, and serves it itself through both.
            let passthrough = self.layers.is_passthrough();
            passthrough.then(|| self.nodes.make_alias(id, &current)).flatten().ok_or_else(stale)
        };
        if let Some(file) = file {
            let node = self.node_of(&file, ino)?;
            if orphan && node.id == id {
                return Ok(node);
            }
            return alias(node);
        }
        let place = place.ok_or_else(stale)?;
        let node = {
            let dir = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
            let _names = dir.entries.share();
            self.child(&place.parent, Name::new(&place.name)?)?.ok_or_else(stale)?
        };
        if node.ino != ino {
            return Err(stale());
        }
        if node.id == id {
            return Ok(node);
        }
        alias(node)
    }

    /// The node that shows a file: the one to which a name of it leads, or another one.
    fn node_of(&self, file: &Arc<File>, ino: u64) -> Result<Arc<Node>> {
        let place = file.state.read().names.first().cloned();
        if let Some(Dentry { parent, name }) = place
            && let Some(dir) = parent.as_dir()
        {
            let _names = dir.entries.share();
            if let Some(node) = self.child(&parent, Name::new(&name)?)?
                && node.as_file().is_some_and(|found| Arc::ptr_eq(found, file))
            {
                return Ok(node);
            }
        }
        self.successor_of(file, ino, None)
    }
}

impl Layers {
    /// The object that a node shows, in the layer where it is found first.
    fn key_of(&self, node: &Node) -> Option<InodeKey> {
        match &node.body {
            Body::Dir(dir) => dir.key(),
            Body::File(file) => self.key_of_file(file),
        }
    }

    pub(crate) fn key_of_file(&self, file: &File) -> Option<InodeKey> {
        let state = file.state.read();
        match state.inode {
            Some(key) => Some(key),
            None => Some((0, self.target_of(&state).ok()?.1.stat().ok()?.ino)),
        }
    }
}

/// Whether a file has no name left, be it one that is known or another.
pub(crate) fn is_gone(file: &File) -> bool {
    let state = file.state.read();
    if !state.names.is_empty() {
        return false;
    }
    match &state.at {
        InodeLocation::Orphan(object) => !object.stat().is_ok_and(|attr| state.links(attr.nlink) > 0),
        InodeLocation::Lower(_) | InodeLocation::Upper => true,
    }
}
