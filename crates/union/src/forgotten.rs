//! Where forgotten nodes were, so that a handle (name_to_handle_at) outlives the front's caches.
//!
//! A handle names a node id. When the front has dropped the node and a handle is opened, it asks for the id; the
//! path and inode number noted here lead to the object again, under a new id. The oldest notes are dropped when
//! there are too many, and a note whose path has come to mean something else is not believed.

use crate::node::Node;
use crate::union::{Core, path_of};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use vellum_vfs::{Errno, Error, NodeId, Result};

/// Most notes; each takes about 100 bytes and a path.
const NOTES_MAX: usize = 16_384;

struct Note {
    path: Box<str>,
    ino: u64,
}

/// Notes of forgotten nodes.
#[derive(Default)]
pub(crate) struct Forgotten {
    notes: Mutex<(HashMap<NodeId, Note>, VecDeque<NodeId>)>,
}

impl Core {
    /// Takes back `count` lookups of a node by the front.
    pub(crate) fn forget(&self, id: NodeId, count: u64) {
        if let Some(node) = self.table.forget(id, count) {
            self.note_forgotten(&node);
        }
    }

    fn note_forgotten(&self, node: &Node) {
        let path = path_of(node);
        if path.is_empty() {
            return;
        }
        let note = Note { path: path.into(), ino: node.ino };
        let mut notes = self.forgotten.notes.lock();
        let (map, order) = &mut *notes;
        if map.insert(node.id, note).is_none() {
            order.push_back(node.id);
        }
        while order.len() > NOTES_MAX {
            if let Some(oldest) = order.pop_front() {
                map.remove(&oldest);
            }
        }
    }

    /// The node that a forgotten id stood for. ESTALE: not known, or not there any more.
    pub(crate) fn recall(&self, id: NodeId) -> Result<Arc<Node>> {
        if let Ok(node) = self.node(id) {
            return self.current(node);
        }
        let stale = || Error::new(Errno::STALE, "handle");
        let (path, ino) = {
            let notes = self.forgotten.notes.lock();
            let note = notes.0.get(&id).ok_or_else(stale)?;
            (note.path.clone(), note.ino)
        };
        let node = self.walk(path.as_bytes())?.ok_or_else(stale)?;
        if node.ino == ino { Ok(node) } else { Err(stale()) }
    }
}
