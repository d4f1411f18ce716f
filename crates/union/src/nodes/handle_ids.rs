//! Ids of forgotten nodes, so that a handle (name_to_handle_at) outlives the kernel's caches.
//!
//! A handle names a node id. When the kernel has dropped the node and the handle is opened, the kernel asks for the
//! id, and takes no other for an answer. So the id of a forgotten node stays reserved for its object, with the place
//! where it is: whoever meets the object first, by name or by handle, gives it its old id again. There is a
//! limit to what is remembered; beyond it the oldest ids are given up, and their handles are stale.
//!
//! A file that has lost the names by which it was known, and has others in its layer, is found by no place: it is kept open.
//! When it is found by one of its other names it is let go, so that its space goes with its last name.

use crate::layers::links::InodeKey;
use crate::nodes::node::{At, Body, File, Node, Place};
use crate::recovery::ledger::Flags;
use crate::sync::Mutex;
use crate::union::Core;
use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use vellum_vfs::{Errno, Error, Name, NodeId, Result};

/// Most ids that are remembered; each takes about 200 bytes, and keeps the nodes of its parents.
const NOTES_MAX: usize = 16_384;
/// Most files that are kept open for the sake of their handles.
const KEPT_MAX: usize = 1024;

struct Note {
    /// Where the object was. The directory may have moved since, but it is the same. None: by no name that is known.
    place: Option<Place>,
    ino: u64,
    /// The object in its layer; None for a node that has a successor: its id is only for handles.
    key: Option<InodeKey>,
    /// The file, if another node shows it still.
    file: Weak<File>,
    /// The same, kept open, because it has a name that is not known.
    kept: Option<Arc<File>>,
    /// The node has been dropped; its id is in nobody's hands but ours.
    dropped: bool,
}

/// What is remembered of a forgotten object.
struct Remembered {
    place: Option<Place>,
    ino: u64,
    file: Option<Arc<File>>,
    kept: bool,
}

#[derive(Default)]
struct Notes {
    by_id: HashMap<NodeId, Note>,
    by_key: HashMap<InodeKey, NodeId>,
    order: VecDeque<NodeId>,
    /// Ids of files that are kept open.
    kept: VecDeque<NodeId>,
}

impl Notes {
    /// Takes the note of an id out; to be dropped after the lock.
    fn remove(&mut self, id: NodeId) -> Option<Note> {
        let note = self.by_id.remove(&id)?;
        if note.kept.is_some() {
            self.kept.retain(|other| *other != id);
        }
        if let Some(key) = note.key
            && self.by_key.get(&key) == Some(&id)
        {
            self.by_key.remove(&key);
        }
        Some(note)
    }
}

/// What is remembered of forgotten nodes. A note holds a directory's node, and dropping that comes back here: notes
/// are dropped after the lock.
#[derive(Default)]
pub(crate) struct HandleIds {
    notes: Mutex<Notes>,
}

impl HandleIds {
    /// The id that an object had; the caller gives it to the object's new node. The note stays: the node may be
    /// dropped again without the kernel having heard of it.
    pub(crate) fn take(&self, key: InodeKey) -> Option<NodeId> {
        let mut guard = self.notes.lock();
        let notes = &mut *guard;
        let id = *notes.by_key.get(&key)?;
        let note = notes.by_id.get_mut(&id)?;
        // A node that is still there has its id itself.
        if !std::mem::replace(&mut note.dropped, false) {
            return None;
        }
        let kept = note.kept.take();
        if kept.is_some() {
            notes.kept.retain(|other| *other != id);
        }
        drop(guard);
        drop(kept);
        Some(id)
    }

    /// A node is being dropped; false: nothing is remembered of it, so its id is free. `key`: the object as it is found now, if
    /// that is known; a directory may have come into the upper layer since the kernel forgot it.
    pub(crate) fn keep_id(&self, id: NodeId, key: Option<InodeKey>) -> bool {
        let mut guard = self.notes.lock();
        let notes = &mut *guard;
        let Some(note) = notes.by_id.get_mut(&id) else { return false };
        note.dropped = true;
        if let (Some(new), Some(old)) = (key, note.key)
            && new != old
        {
            note.key = Some(new);
            if notes.by_key.get(&old) == Some(&id) {
                notes.by_key.remove(&old);
            }
            notes.by_key.insert(new, id);
        }
        true
    }

    /// Lets all files go that are kept open; returns ids that are given up for it.
    fn let_go(&self) -> Vec<NodeId> {
        let mut notes = self.notes.lock();
        let kept = std::mem::take(&mut notes.kept);
        let gone: Vec<_> = kept.into_iter().filter_map(|id| Some((id, notes.remove(id)?))).collect();
        drop(notes);
        gone.into_iter().filter(|(_, note)| note.dropped).map(|(id, _)| id).collect()
    }

    /// The object with this key is gone; another may get its number.
    pub(crate) fn drop_key(&self, key: InodeKey) {
        self.notes.lock().by_key.remove(&key);
    }

    /// Remembers a node; returns ids that are given up for it.
    fn note(&self, id: NodeId, note: Note) -> impl Iterator<Item = NodeId> {
        let mut guard = self.notes.lock();
        let notes = &mut *guard;
        let before = notes.remove(id);
        if let Some(key) = note.key {
            notes.by_key.insert(key, id);
        }
        if note.kept.is_some() {
            notes.kept.push_back(id);
        }
        notes.by_id.insert(id, note);
        if before.is_none() {
            notes.order.push_back(id);
        }
        let oldest = if notes.order.len() > NOTES_MAX { notes.order.pop_front() } else { None };
        let longest = if notes.kept.len() > KEPT_MAX { notes.kept.front().copied() } else { None };
        let gone = [oldest, longest].map(|id| notes.remove(id?).map(|note| (id, note.dropped, note)));
        drop(guard);
        drop(before);
        gone.into_iter().flatten().filter_map(|(id, dropped, _)| id.filter(|_| dropped))
    }

    /// Where a forgotten object was, its inode number, and its file, if a node shows it or it is kept.
    fn find(&self, id: NodeId) -> Option<Remembered> {
        let notes = self.notes.lock();
        let note = notes.by_id.get(&id)?;
        Some(Remembered {
            place: note.place.clone(),
            ino: note.ino,
            file: note.file.upgrade(),
            kept: note.kept.is_some(),
        })
    }

    /// Takes an id out; true if it is free to be used again.
    fn claim(&self, id: NodeId) -> bool {
        let note = {
            let mut notes = self.notes.lock();
            if !notes.by_id.get(&id).is_some_and(|note| note.dropped) {
                return false;
            }
            notes.remove(id)
        };
        note.is_some()
    }

    /// Forgets everything; for the end of a mount.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.notes.lock());
        drop(all);
    }
}

impl Core {
    /// Takes back `count` lookups of a node by the kernel.
    pub(crate) fn forget(&self, id: NodeId, count: u64) {
        match self.table.forget(id, count) {
            // Others may hold it still: its id is given back when it is dropped.
            Some(node) if self.exports() => self.note_forgotten(&node),
            Some(_) => {}
            None => self.forget_unrecovered(id),
        }
    }

    /// Whether handles may be asked for: a front that holds nothing can ask for nothing.
    fn exports(&self) -> bool {
        self.kernel.get().is_some()
    }

    /// Whether a client may have another object held for as long as it likes ([`crate::Budget`]). What is kept open for handles that
    /// nobody may ever use goes first.
    pub(crate) fn room_to_hold(&self, like: Option<BorrowedFd<'_>>) -> Result<()> {
        self.budget.room_to_hold(like).or_else(|_| {
            for free in self.table.handle_ids.let_go() {
                self.table.release(free);
            }
            self.budget.room_to_hold(like)
        })
    }

    fn note_forgotten(&self, node: &Node) {
        let (place, file, kept) = match &node.body {
            Body::Dir(dir) => (dir.place.read().clone(), Weak::new(), None),
            Body::File(file) => {
                let place = file.state.read().names.first().cloned();
                let kept = (place.is_none() && !is_gone(file)).then(|| Arc::clone(file));
                (place, Arc::downgrade(file), kept)
            }
        };
        if place.is_none() && kept.is_none() {
            return;
        }
        let only_for_handles = node.alias || node.stale.load(Relaxed);
        let key = if only_for_handles { None } else { self.key_of(node) };
        let note = Note { place, ino: node.ino, key, file, kept, dropped: false };
        for free in self.table.handle_ids.note(node.id, note) {
            self.table.release(free);
        }
    }

    /// The object that a node shows, in the layer where it is found first.
    fn key_of(&self, node: &Node) -> Option<InodeKey> {
        match &node.body {
            Body::Dir(dir) => dir.key(),
            Body::File(file) => self.key_of_file(file),
        }
    }

    /// The inode of a file.
    pub(crate) fn key_of_file(&self, file: &File) -> Option<InodeKey> {
        let state = file.state.read();
        match state.inode {
            Some(key) => Some(key),
            None => Some((0, self.target_of(&state).ok()?.1.stat().ok()?.ino)),
        }
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
            if node.stale.swap(false, Relaxed) {
                node.lower_passthrough.store(false, Relaxed);
            }
            return Ok(node);
        }
        let stale = || Error::new(Errno::STALE, "handle");
        let Remembered { place, ino, file, kept } = self.table.handle_ids.find(id).ok_or_else(stale)?;
        let alias = |file: Arc<File>| {
            // The kernel holds the file through two nodes, and serves it itself through both.
            let free = self.is_passthrough() && self.table.handle_ids.claim(id);
            if !free {
                return Err(stale());
            }
            let node = Arc::new(Node::alias(id, ino, file, &self.table));
            if let Some(file) = node.as_file() {
                self.write_new(&node, &file.state.read().names);
                self.write_flags(&node, Flags::STALE);
            }
            Ok(node)
        };
        if let Some(file) = file {
            if kept {
                let node = self.successor_of(&file, ino)?;
                if node.id == id {
                    return Ok(node);
                }
            }
            return alias(file);
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
        alias(Arc::clone(node.as_file().ok_or_else(stale)?))
    }
}

/// Whether a file has no name left, be it one that is known or another.
fn is_gone(file: &File) -> bool {
    let state = file.state.read();
    if !state.names.is_empty() {
        return false;
    }
    match &state.at {
        At::Held(object) => !object.stat().is_ok_and(|attr| attr.nlink > 0),
        At::Lower(_) | At::Upper => true,
    }
}
