//! What readers of mappings are told, and that a file is about to become shorter.

use crate::coherence::Coherence;
use crate::coherence::generations::{FileGeneration, Mappable};
use crate::nodes::Nodes;
use crate::nodes::ids::slot_of;
use crate::nodes::node::{File, Node};
use crate::union::{Core, Union};
use std::sync::atomic::Ordering::SeqCst;
use vellum_vfs::{Errno, Error, FileKind, NodeId, Result};

/// A change that may make a file shorter; it is under way until this is dropped.
#[must_use]
pub(crate) struct TruncateGuard<'a>(&'a FileGeneration);

impl Drop for TruncateGuard<'_> {
    fn drop(&mut self) {
        self.0.truncating.fetch_sub(1, SeqCst);
    }
}

impl Coherence {
    /// To be called before anything that may make a file shorter.
    pub(crate) fn truncates<'a>(&self, node: &Node, file: &'a File) -> Option<TruncateGuard<'a>> {
        let generations = self.generations.as_deref()?;
        // First that it is under way, then the words: who asks in between is told nothing, and who has asked before sees his word
        // change. `mappable` does it the other way round.
        file.watched.truncating.fetch_add(1, SeqCst);
        let under_way = TruncateGuard(&file.watched);
        generations.advance(node.id);
        let through = NodeId(file.watched.through.load(SeqCst));
        if through.0 != 0 && through != node.id {
            generations.advance(through);
        }
        Some(under_way)
    }
}

impl Core {
    fn mappable(&self, id: NodeId) -> Result<Option<Mappable>> {
        let Some(generations) = self.coherence.generations.as_deref() else { return Ok(None) };
        let node = self.node(id)?;
        let Some(file) = node.as_file().filter(|file| file.kind == FileKind::Regular) else {
            return Ok(None);
        };
        // A file is mapped through one node only, so that whoever truncates it through another knows whose word to change.
        if let Err(other) = file.watched.through.compare_exchange(0, id.0, SeqCst, SeqCst)
            && other != id.0
            && !self.nodes.replaces_mapping(file, other, id)
        {
            return Ok(None);
        }
        let Some(word) = generations.word_of_node(id) else { return Ok(None) };
        let _ = word.change().compare_exchange(0, 1, SeqCst, SeqCst);
        let generation = word.load(SeqCst);
        // After the word: a swap sets the mark first, then changes the word.
        if node.marks().stale.load(SeqCst) {
            return Ok(None);
        }
        if file.watched.truncating.load(SeqCst) != 0 {
            return Err(Error::new(Errno::AGAIN, "the file is being cut"));
        }
        // Who has been given the file itself may cut it at any time.
        if self.has_cutters(&node) {
            return Ok(None);
        }
        let size = self.attr_of(&node)?.size;
        let (slot, serial) = slot_of(id);
        let memory = generations.id();
        Ok(u32::try_from(slot).ok().map(|slot| Mappable { slot, serial, generation, memory, size }))
    }
}

impl Nodes {
    /// Whether a file may be mapped through another node from now on: the one so far is no more, or stale.
    fn replaces_mapping(&self, file: &File, before: u64, id: NodeId) -> bool {
        let gone = self.get(NodeId(before)).map_or(true, |node| node.marks().stale.load(SeqCst));
        gone && file.watched.through.compare_exchange(before, id.0, SeqCst, SeqCst).is_ok()
    }
}

impl Union {
    /// What a client must know to read a file through a mapping; None: it should not. EAGAIN: not now.
    pub fn mappable(&self, node: NodeId) -> Result<Option<Mappable>> {
        self.0.mappable(node)
    }
}
