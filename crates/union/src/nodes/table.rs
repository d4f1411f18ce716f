//! Node ids and what they stand for.
//!
//! A node id is a slot and a serial number that is never given twice, so a stale id is noticed. Finding a node
//! takes the lock of its own slot only; making and dropping nodes takes the allocator's.

use crate::coherence::generations::Generations;
use crate::layers::layer::InodeKey;
use crate::nodes::handle_ids::HandleIds;
use crate::nodes::ids::{CHUNK, MAX_CHUNKS, id_of, slot_of};
use crate::nodes::limit::NodeLimit;
use crate::nodes::node::{IdSource, Node, Origin};
use crate::nodes::recovery::ledger::Ledger;
use crate::sync::Mutex;
use arc_swap::ArcSwapOption;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Errno, Error, NodeId, Result};

/// Forgotten nodes after which memory is worth being given back to the system: the allocator keeps it otherwise, and the kernel
/// forgets by the hundred thousand when it needs memory itself.
const MANY_FORGOTTEN: u32 = 4096;

/// Places for chunks that are made together, when the first of them is needed.
const GROUP: usize = 256;

/// Places for chunks.
type Group = Box<[ArcSwapOption<Chunk>]>;

struct Slot {
    serial: u32,
    counts: Counts,
    node: Option<Arc<Node>>,
}

/// How often the kernel has looked an id up, as far as that can be counted: what has been looked up more often is forgotten all at once. And
/// whether the id is a predecessor's, of which no node has been made again: a bit that would otherwise cost a word of each node.
#[derive(Clone, Copy, Default)]
struct Counts(u32);

impl Counts {
    const PENDING: u32 = 1 << 31;

    /// Of a predecessor's id.
    fn pending(lookups: u64) -> Self {
        Self(number(lookups) | Self::PENDING)
    }

    const fn is_pending(self) -> bool {
        self.0 & Self::PENDING != 0
    }

    const fn lookups(self) -> u32 {
        self.0 & !Self::PENDING
    }

    const fn with_node(self) -> Self {
        Self(self.lookups())
    }

    fn more(self) -> Self {
        Self((self.lookups() + 1).min(Self::PENDING - 1))
    }

    fn less(self, count: u64) -> Self {
        Self(self.lookups().saturating_sub(number(count)) | self.0 & Self::PENDING)
    }
}

fn number(lookups: u64) -> u32 {
    u32::try_from(lookups).map_or(Counts::PENDING - 1, |count| count.min(Counts::PENDING - 1))
}

struct Chunk {
    slots: Box<[Mutex<Slot>]>,
}

/// How far apart slots are that are given out one after the other.
const STRIDE: usize = 37;

/// The slots of a chunk in the order in which they are given out: neighbours are on different cache lines, for files that are made
/// at the same time are often those of different clients.
fn order() -> impl DoubleEndedIterator<Item = u16> {
    (0..CHUNK).map(|number| (number * STRIDE % CHUNK) as u16)
}

/// Which slots are free.
struct Allocator {
    /// Free slots of each chunk that exists; None: the chunk does not exist.
    chunks: Vec<Option<Vec<u16>>>,
    /// Chunks that may have a free slot; may name some that do not.
    roomy: Vec<u16>,
    serial: u32,
    /// Slots that are taken.
    taken: usize,
    /// From so many on, somebody wants to know.
    alarm: usize,
}

/// The table of all nodes that the kernel holds.
pub(crate) struct Table {
    groups: Box<[OnceLock<Group>]>,
    allocator: Mutex<Allocator>,
    /// Ids of nodes that the kernel has forgotten.
    pub(crate) handle_ids: HandleIds,
    /// Where a successor of the process finds what is here.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Where clients see that a slot has another node.
    generations: Option<Arc<Generations>>,
    limit: Arc<NodeLimit>,
    /// Calls of [`Table::forget`] since the limit was told that many nodes are gone.
    forgotten: AtomicU32,
    origin: OnceLock<Arc<Origin>>,
}

impl Table {
    /// A table in which slots 0 (no node) and 1 (the root) are taken.
    pub(crate) fn new(
        ledger: Option<Arc<Ledger>>,
        generations: Option<Arc<Generations>>,
        limit: Arc<NodeLimit>,
    ) -> Self {
        let table = Self {
            groups: (0..MAX_CHUNKS / GROUP).map(|_| OnceLock::new()).collect(),
            allocator: Mutex::new(Allocator {
                chunks: Vec::new(),
                roomy: Vec::new(),
                serial: 0,
                taken: 2,
                alarm: usize::MAX,
            }),
            handle_ids: HandleIds::new(Arc::clone(&limit)),
            ledger,
            generations,
            limit,
            forgotten: AtomicU32::new(0),
            origin: OnceLock::new(),
        };
        {
            let mut allocator = table.allocator.lock();
            // Of a new ledger nothing is looked at: what is looked at takes memory.
            let inherited = table.ledger.as_ref().filter(|ledger| ledger.chunks().next().is_some()).cloned();
            table.add_chunk(&mut allocator, 0);
            if let Some(Some(free)) = allocator.chunks.first_mut() {
                free.retain(|slot| *slot > 1);
            }
            if let Some(ledger) = inherited {
                table.restore(&mut allocator, &ledger);
            }
        }
        table
    }

    /// Takes the ids that a predecessor has given out. Their nodes are made again when somebody asks for them.
    fn restore(&self, allocator: &mut Allocator, ledger: &Ledger) {
        allocator.serial = ledger.serial();
        for chunk in ledger.chunks() {
            if self.place(chunk).and_then(ArcSwapOption::load_full).is_none() {
                self.add_chunk(allocator, chunk);
            }
        }
        let mut taken: HashMap<usize, HashSet<u16>> = HashMap::new();
        for record in ledger.records() {
            let (index, serial) = slot_of(record.id);
            allocator.serial = allocator.serial.max(serial);
            taken.entry(index / CHUNK).or_default().insert((index % CHUNK) as u16);
            if let Some(chunk) = self.place(index / CHUNK).and_then(ArcSwapOption::load_full)
                && let Some(slot) = chunk.slots.get(index % CHUNK)
            {
                *slot.lock() = Slot { serial, counts: Counts::pending(record.lookups), node: None };
            }
        }
        for (chunk, taken) in taken {
            if let Some(Some(free)) = allocator.chunks.get_mut(chunk) {
                let before = free.len();
                free.retain(|slot| !taken.contains(slot));
                allocator.taken += before - free.len();
            }
        }
    }

    /// The place of a chunk, if its group has been made.
    fn place(&self, chunk: usize) -> Option<&ArcSwapOption<Chunk>> {
        self.groups.get(chunk / GROUP)?.get()?.get(chunk % GROUP)
    }

    /// Makes a chunk. False: there are as many as there may be.
    fn add_chunk(&self, allocator: &mut Allocator, at: usize) -> bool {
        let Some(group) = self.groups.get(at / GROUP) else { return false };
        let group = group.get_or_init(|| (0..GROUP).map(|_| ArcSwapOption::empty()).collect());
        let Some(place) = group.get(at % GROUP) else { return false };
        let slots = (0..CHUNK)
            .map(|_| Mutex::new(Slot { serial: 0, counts: Counts::default(), node: None }))
            .collect();
        place.store(Some(Arc::new(Chunk { slots })));
        if allocator.chunks.len() <= at {
            allocator.chunks.resize_with(at + 1, || None);
        }
        allocator.chunks[at] = Some(order().rev().collect());
        allocator.roomy.push(at as u16);
        if let Some(ledger) = &self.ledger {
            ledger.chunk_begins(at);
        }
        true
    }

    /// Takes a free id. ENFILE: there are too many nodes.
    pub(crate) fn reserve(&self) -> Result<NodeId> {
        let full = || Error::new(Errno::NFILE, "too many nodes");
        let mut allocator = self.allocator.lock();
        loop {
            let Some(&chunk) = allocator.roomy.last() else {
                let unused = allocator.chunks.iter().position(Option::is_none);
                let unused = unused.unwrap_or(allocator.chunks.len());
                if self.add_chunk(&mut allocator, unused) {
                    continue;
                }
                return Err(full());
            };
            let slot = allocator.chunks.get_mut(usize::from(chunk)).and_then(|c| c.as_mut()?.pop());
            let Some(slot) = slot else {
                allocator.roomy.pop();
                continue;
            };
            allocator.taken += 1;
            if allocator.taken >= allocator.alarm {
                allocator.alarm = usize::MAX;
                self.limit.is_crowded();
            }
            allocator.serial = allocator.serial.wrapping_add(1).max(1);
            let serial = allocator.serial;
            let index = usize::from(chunk) * CHUNK + usize::from(slot);
            if let Some(chunk) = self.place(usize::from(chunk)).and_then(ArcSwapOption::load_full) {
                *chunk.slots[usize::from(slot)].lock() =
                    Slot { serial, counts: Counts::default(), node: None };
            }
            if let Some(ledger) = &self.ledger {
                ledger.set_serial(serial);
            }
            return Ok(id_of(index, serial));
        }
    }

    /// Gives an id back, when its node is dropped.
    pub(crate) fn release(&self, id: NodeId) {
        if id == NodeId::ROOT {
            return;
        }
        let (index, serial) = slot_of(id);
        let (chunk, slot) = (index / CHUNK, index % CHUNK);
        if let Some(ledger) = &self.ledger {
            ledger.leave(id);
        }
        self.advance_generation(id);
        let mut allocator = self.allocator.lock();
        let Some(Some(free)) = allocator.chunks.get_mut(chunk) else { return };
        let place = self.place(chunk);
        if let Some(chunk) = place.and_then(ArcSwapOption::load_full) {
            let mut slot = chunk.slots[slot].lock();
            debug_assert!(slot.serial == serial && slot.node.is_none(), "an id is given back twice");
            if slot.serial != serial {
                return;
            }
            slot.serial = 0;
        }
        free.push(slot as u16);
        let count = free.len();
        allocator.taken -= 1;
        if count == CHUNK && chunk != 0 {
            allocator.chunks[chunk] = None;
            if let Some(place) = place {
                place.store(None);
            }
            if let Some(ledger) = &self.ledger {
                ledger.chunk_ends(chunk);
            }
            allocator.roomy.retain(|c| usize::from(*c) != chunk);
            while allocator.chunks.last().is_some_and(Option::is_none) {
                allocator.chunks.pop();
            }
        } else if count == 1 || !allocator.roomy.contains(&(chunk as u16)) {
            allocator.roomy.push(chunk as u16);
        }
    }

    fn with<R>(&self, id: NodeId, act: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        let (index, serial) = slot_of(id);
        let chunk = self.place(index / CHUNK)?.load();
        let mut slot = chunk.as_ref()?.slots.get(index % CHUNK)?.lock();
        (slot.serial == serial).then(|| act(&mut slot))
    }

    /// The node of an id. ESTALE: the kernel does not hold it.
    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>> {
        self.with(id, |slot| slot.node.clone()).flatten().ok_or(Error::new(Errno::STALE, "node"))
    }

    /// A node goes of which programs may have been told something that holds for a while: a mapping.
    pub(crate) fn advance_generation(&self, id: NodeId) {
        if let Some(generations) = &self.generations {
            generations.leave(id);
        }
    }

    /// Counts one lookup of a node by the kernel.
    pub(crate) fn acquire(&self, node: &Arc<Node>) {
        self.with(node.id, |slot| {
            slot.counts = slot.counts.more();
            self.write_down(node.id, slot.counts.lookups().into());
            if slot.node.is_none() {
                slot.node = Some(Arc::clone(node));
            }
        });
    }

    fn write_down(&self, id: NodeId, lookups: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.set_lookups(id, lookups);
        }
    }

    /// The node of an id that a predecessor has given out has been made again.
    pub(crate) fn recovered(&self, node: &Arc<Node>) {
        self.with(node.id, |slot| {
            slot.counts = slot.counts.with_node();
            if slot.counts.lookups() > 0 && slot.node.is_none() {
                slot.node = Some(Arc::clone(node));
            }
        });
    }

    /// Whether an id has a node that the kernel holds.
    pub(crate) fn has_node(&self, id: NodeId) -> bool {
        self.with(id, |slot| slot.node.is_some()).unwrap_or(false)
    }

    /// How often the kernel has been told of a node and not forgotten it.
    pub(crate) fn lookups(&self, id: NodeId) -> u64 {
        if id == NodeId::ROOT {
            return 1;
        }
        self.with(id, |slot| slot.counts.lookups().into()).unwrap_or(0)
    }

    /// Whether the kernel has forgotten an id of a predecessor before its node was made again.
    pub(crate) fn is_forgotten(&self, id: NodeId) -> bool {
        self.with(id, |slot| slot.counts.is_pending() && slot.counts.lookups() == 0 && slot.node.is_none())
            .unwrap_or(false)
    }

    /// Takes `count` lookups back. If none are left, the node is returned, to be dropped by the caller: that releases
    /// its id and may drop its parents, which must not happen under the slot's lock. Under it `at_end` is called, before the id can be looked
    /// up again.
    pub(crate) fn forget(
        &self,
        id: NodeId,
        count: u64,
        at_end: impl FnOnce(Option<&Arc<Node>>),
    ) -> Option<Arc<Node>> {
        if id == NodeId::ROOT {
            return None;
        }
        if self.forgotten.fetch_add(1, Relaxed) == MANY_FORGOTTEN {
            self.forgotten.store(0, Relaxed);
            self.limit.has_forgotten();
        }
        self.with(id, |slot| {
            slot.counts = slot.counts.less(count);
            self.write_down(id, slot.counts.lookups().into());
            if slot.counts.lookups() > 0 {
                return None;
            }
            at_end(slot.node.as_ref());
            slot.node.take()
        })
        .flatten()
    }

    /// Empties the table; for the end of a mount.
    pub(crate) fn clear(&self) {
        self.handle_ids.clear();
        for chunk in self.groups.iter().filter_map(OnceLock::get).flatten() {
            if let Some(chunk) = chunk.load_full() {
                for slot in &chunk.slots {
                    let node = slot.lock().node.take();
                    drop(node);
                }
            }
        }
    }

    /// How many ids are taken.
    pub(crate) fn len(&self) -> usize {
        self.allocator.lock().taken
    }

    /// From so many taken ids on, [`NodeLimit`]'s bell is rung, once.
    pub(crate) fn set_alarm(&self, at: usize) {
        let mut allocator = self.allocator.lock();
        allocator.alarm = at;
        if allocator.taken >= at {
            allocator.alarm = usize::MAX;
            self.limit.is_crowded();
        }
    }

    /// Up to `most` nodes that the kernel knows, from a slot on; and the slot where to go on, 0 at the end.
    pub(crate) fn kernel_nodes(&self, from: usize, most: usize) -> (Vec<NodeId>, usize) {
        let mut found = Vec::new();
        let last = self.allocator.lock().chunks.len() * CHUNK;
        let mut at = from.max(2);
        while at < last {
            let Some(chunk) = self.place(at / CHUNK).and_then(ArcSwapOption::load_full) else {
                at = (at / CHUNK + 1) * CHUNK;
                continue;
            };
            for slot in chunk.slots.iter().skip(at % CHUNK) {
                let slot = slot.lock();
                if slot.counts.lookups() > 0 {
                    found.push(id_of(at, slot.serial));
                }
                at += 1;
            }
            if found.len() >= most {
                return (found, at);
            }
        }
        (found, 0)
    }

    /// Gives memory back that only free slots take: pages of the ledger among records that are in use.
    pub(crate) fn trim(&self) {
        let Some(ledger) = &self.ledger else { return };
        let chunks = self.allocator.lock().chunks.len();
        for chunk in 0..chunks {
            // With the allocator held: what is free stays free, and what is given out has not been written to.
            let allocator = self.allocator.lock();
            let Some(Some(free)) = allocator.chunks.get(chunk) else { continue };
            if free.len() < Ledger::FEWEST_FREE {
                continue;
            }
            let mut is_free = [false; CHUNK];
            for slot in free {
                if let Some(is) = is_free.get_mut(usize::from(*slot)) {
                    *is = true;
                }
            }
            ledger.clear_free(chunk, &is_free);
        }
    }
}

impl IdSource for Table {
    fn origin(&self) -> &OnceLock<Arc<Origin>> {
        &self.origin
    }

    fn ended(&self, id: NodeId, key: Option<InodeKey>) {
        if !self.handle_ids.retain_id(id, key) {
            self.release(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_empty_chunks_are_freed() {
        let table = Table::new(None, None, Arc::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..3 {
            let ids: Vec<_> = (0..5 * CHUNK).map(|_| table.reserve().unwrap()).collect();
            for id in &ids {
                assert!(seen.insert(*id), "{id:?} given twice");
                assert!(id.0 > 1);
            }
            for id in ids {
                table.release(id);
            }
            let chunks = table.groups.iter().filter_map(OnceLock::get).flatten();
            let chunks = chunks.filter(|c| c.load().is_some()).count();
            assert_eq!(chunks, 1);
        }
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn all_slots_are_allocated_on_distinct_cache_lines() {
        let order: Vec<u16> = order().collect();
        let all: std::collections::BTreeSet<u16> = order.iter().copied().collect();
        assert_eq!(all.len(), CHUNK);
        let line = |slot: u16| usize::from(slot) * size_of::<Mutex<Slot>>() / 128;
        assert!(order.windows(2).all(|pair| line(pair[0]) != line(pair[1])));
    }

    #[test]
    fn an_id_is_pending_until_its_node_is_recovered() {
        assert!(Counts::pending(3).is_pending() && Counts::pending(3).lookups() == 3);
        assert!(Counts::pending(3).less(3).is_pending() && Counts::pending(3).less(9).lookups() == 0);
        for made in [Counts::pending(3).with_node(), Counts::pending(3).more(), Counts::default().more()] {
            assert!(!made.is_pending() && !made.less(9).is_pending(), "{}", made.0);
        }
        let most = Counts::pending(u64::MAX).more();
        assert_eq!((most.lookups(), most.is_pending()), (Counts::PENDING - 1, false));
    }

    #[test]
    fn a_stale_id_is_detected() {
        let table = Table::new(None, None, Arc::default());
        let id = table.reserve().unwrap();
        table.release(id);
        let again = table.reserve().unwrap();
        assert_ne!(id, again);
        assert!(table.get(id).is_err());
        assert!(table.get(NodeId(u64::MAX)).is_err());
    }
}
