//! For who reads files without asking: a number for each node slot, in shared memory, that changes before a file may become shorter.
//!
//! A client that has mapped a file would read zeros, or fault, beyond a new end. So it reads the number, then the mapping, then the
//! number again, and believes nothing if that has changed since the mapping was made. Clients map the numbers read-only; nothing here
//! depends on them. The memory outlives the process as the
//! [ledger](crate::nodes::recovery::ledger) does, and numbers only grow, also when a slot is given to another node.

use crate::nodes::ids::{CHUNK, MAX_CHUNKS, slot_of};
use crate::sync::{AtomicU32, AtomicU64, turn};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use vellum_sys::{MemoryKind, MemoryWord, PersistentMemory, memory};
use vellum_vfs::{Error, NodeId, Result};

/// Words before those of slots.
const HEADER: usize = PersistentMemory::HEADER;
/// What is added when all that was told of a node is over: to the upper half, which nothing else changes.
const LEFT: u64 = 1 << 32;
const WORDS: usize = HEADER + MAX_CHUNKS * CHUNK;

/// The numbers of all nodes of a tree.
pub struct Generations {
    words: PersistentMemory,
}

/// What a client must know to read a file through a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappable {
    /// Slot of the node: which word is its own.
    pub slot: u32,
    /// Serial number of the node.
    pub serial: u32,
    /// Value of the word, before the size was asked for.
    pub generation: u64,
    /// Which memory the word is in.
    pub memory: u64,
    /// Size of the file as the layer has it.
    pub size: u64,
}

/// What is noted with each file.
#[derive(Debug, Default)]
pub(crate) struct FileGeneration {
    /// Changes under way that may make the file shorter.
    pub(super) truncating: AtomicU32,
    /// Id of the node through which clients have mapped it; 0: none has.
    pub(super) through: AtomicU64,
}

impl Generations {
    pub const MEMORY: MemoryKind =
        MemoryKind { name: c"vellum-generations", magic: memory::GENERATIONS, words: WORDS..=WORDS };

    /// New memory.
    pub fn create() -> Result<Self> {
        let words = PersistentMemory::create(&Self::MEMORY, WORDS).map_err(unusable)?;
        let id = std::hash::RandomState::new().build_hasher().finish().max(1);
        words.store(memory::GENERATIONS_ID, id, SeqCst);
        Ok(Self { words })
    }

    /// A predecessor's. EBADMSG: it is none, or of another version.
    pub fn open(descriptor: OwnedFd) -> Result<Self> {
        PersistentMemory::open(&Self::MEMORY, descriptor).map(|words| Self { words }).map_err(unusable)
    }

    /// Which memory it is.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.words.load(memory::GENERATIONS_ID, Relaxed)
    }

    pub(super) fn word_of_node(&self, id: NodeId) -> Option<&MemoryWord> {
        turn();
        let (slot, _) = slot_of(id);
        (slot < MAX_CHUNKS * CHUNK).then(|| self.words.word(HEADER + slot)).flatten()
    }

    /// Whoever has mapped the file of a node must not believe his mapping any more.
    pub(crate) fn advance(&self, id: NodeId) {
        if let Some(word) = self.word_of_node(id) {
            word.change().fetch_add(1, SeqCst);
        }
    }

    /// A node has gone, or what was told of it: nothing of that holds for the next one in its slot, whatever that adds. Slots that
    /// nobody asked about cost no memory.
    pub(crate) fn leave(&self, id: NodeId) {
        if let Some(word) = self.word_of_node(id)
            && word.load(Relaxed) != 0
        {
            word.change().fetch_add(LEFT, SeqCst);
        }
    }
}

/// Its memory.
impl AsFd for Generations {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }
}

fn unusable(errno: vellum_vfs::Errno) -> Error {
    Error::new(errno, "memory for generations")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_sys::crash_point::{at_each, copy};

    #[test]
    fn numbers_outlive_their_writer_and_only_grow() {
        let one = Generations::create().unwrap();
        let (id, node) = (one.id(), NodeId(7 << 32 | 70_000));
        one.leave(node);
        assert_eq!(one.word_of_node(node).unwrap().load(SeqCst), 0);
        one.advance(node);
        one.leave(node);
        let other = Generations::open(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        drop(one);
        assert_eq!(other.word_of_node(node).unwrap().load(SeqCst), LEFT + 1);
        assert_eq!(other.id(), id);
        assert_ne!(id, Generations::create().unwrap().id());
    }

    #[test]
    fn generations_never_decrease_over_a_crash() {
        let generations = std::rc::Rc::new(Generations::create().unwrap());
        let (id, node) = (generations.id(), NodeId(7 << 32 | 70_000));
        let look = {
            let (generations, mut before) = (std::rc::Rc::clone(&generations), 0);
            move || {
                let left = Generations::open(copy(generations.as_fd(), c"copy").unwrap()).unwrap();
                let now = left.word_of_node(node).unwrap().load(SeqCst);
                assert!(now >= before && left.id() == id);
                before = now;
            }
        };
        let ((), points) = at_each(look, || {
            for _ in 0..3 {
                generations.advance(node);
                generations.leave(node);
            }
        });
        assert_eq!(points, 6);
    }

    #[test]
    fn foreign_memory_is_refused() {
        let other = crate::Ledger::create().unwrap();
        assert!(Generations::open(other.descriptor().try_clone_to_owned().unwrap()).is_err());
    }
}
