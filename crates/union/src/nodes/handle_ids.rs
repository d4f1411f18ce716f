//! Ids of forgotten nodes, so that a handle (name_to_handle_at) outlives the kernel's caches.
//!
//! A handle names a node id. When the kernel has dropped the node and the handle is opened, the kernel asks for the
//! id, and takes no other for an answer. So the id of a forgotten node stays reserved for its object, with the place
//! where it is: whoever meets the object first, by name or by handle, gives it its old id again. There is a
//! limit to what is remembered; beyond it the oldest ids are given up, and their handles are stale.
//!
//! A file that has lost the names by which it was known, and has others in its layer, is found by no place: it is kept open.
//! When it is found by one of its other names it is let go, so that its space goes with its last name.

use crate::layers::layer::InodeKey;
use crate::nodes::limit::NodeLimit;
use crate::nodes::node::{Dentry, File, Node};
use crate::sync::Mutex;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::sync::{Arc, Weak};
use vellum_vfs::NodeId;

/// Most ids that are remembered; each takes about 200 bytes, and keeps the nodes of its parents.
const NOTES_MAX: usize = 4096;
/// With a limit of nodes, one in so many of it may be remembered.
const NOTES_PART: usize = 16;
/// Names of so many bytes lie in the note itself: memory of forgotten nodes is given back by the page, and a name in each would keep them.
const INLINE: usize = 32;
/// Most files that are kept open for the sake of their handles.
const KEPT_MAX: usize = 1024;

/// What is noted of a forgotten object.
pub(crate) struct Note {
    /// Where the object was. The directory may have moved since, but it is the same. None: by no name that is known.
    pub(crate) place: Option<Spot>,
    pub(crate) ino: u64,
    /// The object in its layer; None for a node that has a successor: its id is only for handles.
    pub(crate) key: Option<InodeKey>,
    /// The file, if another node shows it still.
    pub(crate) file: Weak<File>,
    /// The file, kept open, because it has a name that is not known.
    pub(crate) orphan: Option<Arc<File>>,
    /// The node has been dropped; its id is in nobody's hands but ours.
    pub(crate) dropped: bool,
}

/// Where an object was.
pub(crate) struct Spot {
    parent: Arc<Node>,
    name: SmallVec<[u8; INLINE]>,
}

impl From<&Dentry> for Spot {
    fn from(place: &Dentry) -> Self {
        let name = SmallVec::from_slice(place.name.to_bytes_with_nul());
        Self { parent: Arc::clone(&place.parent), name }
    }
}

impl Spot {
    fn place(&self) -> Option<Dentry> {
        let name = CStr::from_bytes_with_nul(&self.name).ok()?;
        Some(Dentry::new(&self.parent, name))
    }
}

/// What is remembered of a forgotten object.
pub(crate) struct ForgottenObject {
    pub(crate) place: Option<Dentry>,
    pub(crate) ino: u64,
    pub(crate) file: Option<Arc<File>>,
    pub(crate) orphan: bool,
}

#[derive(Default)]
struct Notes {
    by_id: HashMap<NodeId, Note>,
    by_key: HashMap<InodeKey, NodeId>,
    order: VecDeque<NodeId>,
    /// Ids of files that are kept open.
    orphan: VecDeque<NodeId>,
}

impl Notes {
    /// Takes the note of an id out; to be dropped after the lock.
    fn remove(&mut self, id: NodeId) -> Option<Note> {
        let note = self.by_id.remove(&id)?;
        if note.orphan.is_some() {
            self.orphan.retain(|other| *other != id);
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
pub(crate) struct HandleIds {
    notes: Mutex<Notes>,
    limit: Arc<NodeLimit>,
}

impl HandleIds {
    pub(crate) fn new(limit: Arc<NodeLimit>) -> Self {
        Self { notes: Mutex::default(), limit }
    }

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
        let orphan = note.orphan.take();
        if orphan.is_some() {
            notes.orphan.retain(|other| *other != id);
        }
        drop(guard);
        drop(orphan);
        Some(id)
    }

    /// A node is being dropped; false: nothing is remembered of it, so its id is free. `key`: the object as it is found now, if
    /// that is known; a directory may have come into the upper layer since the kernel forgot it.
    pub(crate) fn retain_id(&self, id: NodeId, key: Option<InodeKey>) -> bool {
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
    pub(crate) fn close_handles(&self) -> Vec<NodeId> {
        let mut notes = self.notes.lock();
        let orphan = std::mem::take(&mut notes.orphan);
        let gone: Vec<_> = orphan.into_iter().filter_map(|id| Some((id, notes.remove(id)?))).collect();
        drop(notes);
        gone.into_iter().filter(|(_, note)| note.dropped).map(|(id, _)| id).collect()
    }

    /// The object with this key is gone; another may get its number.
    pub(crate) fn drop_key(&self, key: InodeKey) {
        self.notes.lock().by_key.remove(&key);
    }

    /// Remembers a node; returns ids that are given up for it.
    pub(crate) fn note(&self, id: NodeId, note: Note) -> impl Iterator<Item = NodeId> {
        let mut guard = self.notes.lock();
        let notes = &mut *guard;
        let before = notes.remove(id);
        if let Some(key) = note.key {
            notes.by_key.insert(key, id);
        }
        if note.orphan.is_some() {
            notes.orphan.push_back(id);
        }
        notes.by_id.insert(id, note);
        if before.is_none() {
            notes.order.push_back(id);
        }
        // Two for one, where the limit has shrunk.
        let most = NOTES_MAX.min(self.limit.most() / NOTES_PART);
        let mut oldest = || if notes.order.len() > most { notes.order.pop_front() } else { None };
        let oldest = [oldest(), oldest()];
        let longest = if notes.orphan.len() > KEPT_MAX { notes.orphan.front().copied() } else { None };
        let [oldest, older] = oldest;
        let gone = [oldest, older, longest].map(|id| notes.remove(id?).map(|note| (id, note.dropped, note)));
        drop(guard);
        drop(before);
        gone.into_iter().flatten().filter_map(|(id, dropped, _)| id.filter(|_| dropped))
    }

    /// Where a forgotten object was, its inode number, and its file, if a node shows it or it is kept.
    pub(crate) fn find(&self, id: NodeId) -> Option<ForgottenObject> {
        let notes = self.notes.lock();
        let note = notes.by_id.get(&id)?;
        Some(ForgottenObject {
            place: note.place.as_ref().and_then(Spot::place),
            ino: note.ino,
            file: note.file.upgrade(),
            orphan: note.orphan.is_some(),
        })
    }

    /// Takes an id out; true if it is free to be used again.
    pub(crate) fn claim(&self, id: NodeId) -> bool {
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
