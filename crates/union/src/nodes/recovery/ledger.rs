//! What a kernel holds, written down in memory that outlives the process: so that a successor can go on with the same node ids.
//!
//! Each id has a record: where its object is (a parent and a name), its inode number, how often the kernel has looked it up, and,
//! once it has no name any more, the number of a descriptor that holds it. Descriptors outlive the process as well, for a
//! supervisor shares the table of them. From this and the layers a successor makes the node again when it is first asked for.
//!
//! A process may be killed between any two stores. What belongs together is therefore written to a part of the record that is not
//! in use, and then put into use by a store of one word. Before a rename the new place is written beside the old one; a successor
//! finds the object at one of the two.
//!
//! Records are in the order of the slots of the [table](crate::nodes::table). The memory of a chunk of slots is given back with it.

use crate::nodes::ids::{CHUNK, MAX_CHUNKS, slot_of};
use crate::nodes::recovery::search;
use crate::sync::{Mutex, turn};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use vellum_sys::{MemoryKind, MemoryWord, PersistentMemory};
use vellum_vfs::{Errno, Error, Name, NodeId, OwnOpens, Result};

/// Words before the bits of chunks; a page, as is everything here.
const HEADER: usize = PersistentMemory::HEADER;
/// Word of the header with the last serial number.
const SERIAL: usize = 1;
/// Words with a bit for each chunk that has records.
const CHUNK_BITS: usize = MAX_CHUNKS / 64;
/// Where records begin.
const RECORDS: usize = HEADER + CHUNK_BITS;
/// Words of a page.
const PAGE: usize = 512;
/// Words of a record that every id has.
const RECORD: usize = 11;
/// Where the other words begin, which few ids have: what was never written takes no memory.
const FEW: usize = RECORDS + MAX_CHUNKS * CHUNK * RECORD;
/// Words of those of a record.
const FEW_RECORD: usize = 15;
/// Where long names begin.
const LONG: usize = FEW + MAX_CHUNKS * CHUNK * FEW_RECORD;
/// Words for the long names of a record: two of 256 bytes.
const LONG_RECORD: usize = 64;
/// Where a [search] begins.
const SEARCH: usize = LONG + MAX_CHUNKS * CHUNK * LONG_RECORD;
const WORDS: usize = SEARCH + search::WORDS;

const _: () = assert!((RECORDS | FEW | LONG | SEARCH | WORDS).is_multiple_of(PAGE), "parts begin at pages");
const _: () = assert!(CHUNK.is_multiple_of(PAGE), "so do the records of a chunk");

/// Words of a record.
mod word {
    /// Serial number (low half) and flags.
    pub(super) const HEAD: usize = 0;
    pub(super) const LOOKUPS: usize = 1;
    pub(super) const INO: usize = 2;
    /// The first of two places, of which HEAD says which one is in use.
    pub(super) const PLACE: usize = 3;
    /// From here on words that few ids have.
    pub(super) const FEW: usize = super::RECORD;
    /// Opens of this id through the kernel's cache.
    pub(super) const CACHED_OPENS: usize = FEW;
    /// Opens that the kernel serves itself, then two words of their file, which count while there are any.
    pub(super) const OWN_OPENS: usize = FEW + 1;
    /// As HELD: the directory in which the data are of an object that has no name any more, under the name in the place that is not
    /// in use.
    pub(super) const BELOW: usize = FEW + 4;
    /// Of a directory: what the kernel believes of its names ([`NEGATIVE`](super::NEGATIVE), [`SHARED`](super::SHARED)).
    pub(super) const NAMES: usize = FEW + 5;
    /// Of a node that is stale: the id of the node that shows its file.
    pub(super) const SUCCESSOR: usize = NAMES;
    /// A descriptor that holds the object (low half, plus one; 0: none) and a layer.
    pub(super) const HELD: usize = FEW + 6;
    /// The second place.
    pub(super) const OTHER_PLACE: usize = FEW + 7;
    pub(super) const END: usize = FEW + super::FEW_RECORD;

    /// One of the two places.
    pub(super) const fn place(second: bool) -> usize {
        if second { OTHER_PLACE } else { PLACE }
    }
}

const _: () = assert!(word::PLACE + PLACE == RECORD && word::OTHER_PLACE + PLACE == word::END);

/// The kernel believes of some name that it is not in the directory.
const NEGATIVE: u64 = 1;
/// Programs have changed names past the kernel, which may not have heard of the last change.
const SHARED: u64 = 2;

/// In HELD: the rest is the number by which the object has a name in the work directory.
const KEPT: u64 = 1 << 63;
/// In HELD: the rest is the layer in which the object is, in the directory of its place.
const IN_PARENT: u64 = 1 << 62;

/// Words of a place: the parent's id, then the name's length (a byte) and the name.
const PLACE: usize = 8;
/// Longest name that a place holds itself, in bytes.
const SHORT_NAME: usize = (PLACE - 1) * 8 - 1;
/// Words for a long name.
const LONG_NAME: usize = 32;

bitflags::bitflags! {
    /// What is known of an id.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u64 {
        /// The second place is the one in use.
        const SECOND = 1 << 32;
        /// A rename is under way: the object is at the other place, or still at the one in use.
        const MOVING = 1 << 33;
        /// The object has no name any more: it is what the descriptor holds.
        const GONE = 1 << 34;
        /// A copy of it is being given its names: it may have some of them, beside a file of a lower layer that has the others.
        const NAMING = 1 << 35;
        /// The object may have other names, and must be found before they are.
        const LINKED = 1 << 36;
        /// The kernel has the lower file open through this id.
        const LOWER_OPEN = 1 << 37;
        /// The file has another node: its successor says where the file is.
        const STALE = 1 << 38;
        /// It is a directory: the descriptor is its own.
        const DIR = 1 << 39;
        /// Some of the words that few ids have may be other than 0. Without it nobody looks: memory that is looked at is memory.
        const FEW = 1 << 40;
        /// A copy of it is being given its name, and will show another number, which stands in the place that is not in use.
        const RENUMBERING = 1 << 41;
    }
}

/// Where an object is: its parent's id and its name there.
pub(crate) type Spot = (NodeId, Box<CStr>);

/// What a predecessor has written down of an id.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: NodeId,
    pub(crate) flags: Flags,
    pub(crate) lookups: u64,
    pub(crate) ino: u64,
    /// Where it is, and where it may be instead.
    pub(crate) places: Vec<Spot>,
    /// What holds it.
    pub(crate) held: Option<HeldDescriptor>,
    /// What holds the directory in which its data are, and their name there.
    pub(crate) below: Option<(HeldDescriptor, Box<CStr>)>,
    /// Its number, if it has a name in the work directory by that.
    pub(crate) orphan: Option<u64>,
    /// Its layer, if it is still there in its parent, below.
    pub(crate) in_parent: Option<u16>,
    pub(crate) cached_opens: u32,
    /// The node that shows the file of a stale one.
    pub(crate) successor: Option<NodeId>,
    /// The number that it shows if its copy has the name.
    pub(crate) number: Option<u64>,
}

impl Record {
    /// Whether the object can be found without a name.
    pub(crate) const fn is_held(&self) -> bool {
        self.held.is_some() || self.orphan.is_some() || self.in_parent.is_some()
    }
}

/// The records of all ids of a tree.
pub struct Ledger {
    words: PersistentMemory,
    /// Descriptors that are held for a successor alone.
    orphan: Mutex<HashMap<usize, SmallVec<[OwnedFd; 1]>>>,
    /// Held by who searches for names of an inode by this memory.
    pub(super) search: Mutex<()>,
    /// A predecessor was killed while it searched: searches go on in this memory.
    pub(super) is_search_kept: AtomicBool,
}

impl Ledger {
    pub const MEMORY: MemoryKind =
        MemoryKind { name: c"vellum-ledger", magic: 0x7665_6c6c_756d_0005, words: WORDS..=WORDS };

    /// An empty one.
    pub fn create() -> Result<Self> {
        PersistentMemory::create(&Self::MEMORY, WORDS).map(Self::of).map_err(unusable)
    }

    /// A predecessor's. EBADMSG: it is none, or of another version.
    pub fn open(descriptor: OwnedFd) -> Result<Self> {
        let ledger = PersistentMemory::open(&Self::MEMORY, descriptor).map(Self::of).map_err(unusable)?;
        ledger.is_search_kept.store(ledger.had_interrupted_search(), Relaxed);
        Ok(ledger)
    }

    fn of(words: PersistentMemory) -> Self {
        Self {
            words,
            orphan: Mutex::default(),
            search: Mutex::default(),
            is_search_kept: AtomicBool::new(false),
        }
    }

    /// A word of a search; None beyond its end.
    pub(super) fn search_word(&self, at: usize) -> Option<&MemoryWord> {
        (at < search::WORDS).then(|| self.words.word(SEARCH + at)).flatten()
    }

    /// Gives the memory of a search back, but for its first words.
    pub(super) fn release_search(&self) {
        if let Err(error) = self.words.clear(SEARCH + PAGE, search::WORDS - PAGE) {
            tracing::debug!(%error, "memory of the ledger stays");
        }
    }

    /// Its memory, for a successor.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Descriptors that the predecessor held and a successor needs.
    #[must_use]
    pub fn held_descriptors(&self) -> Vec<RawFd> {
        let of = |record: Record| {
            let below = record.below.map(|(holding, _)| holding);
            record.held.into_iter().chain(below).map(|holding| holding.descriptor)
        };
        self.records().flat_map(of).collect()
    }

    /// A word of the record of an id; None if the id is none.
    fn at(&self, id: NodeId, word: usize) -> Option<&MemoryWord> {
        let (slot, _) = slot_of(id);
        let at = match word.checked_sub(word::FEW) {
            None => RECORDS + slot * RECORD + word,
            Some(word) => FEW + slot * FEW_RECORD + word,
        };
        (slot < MAX_CHUNKS * CHUNK).then(|| self.words.word(at)).flatten()
    }

    /// A word of the record of an id, to be looked at; None: it is 0.
    fn look(&self, id: NodeId, word: usize) -> Option<&MemoryWord> {
        if word >= word::FEW && !self.head(id).is_some_and(|(_, flags)| flags.contains(Flags::FEW)) {
            return None;
        }
        self.at(id, word)
    }

    /// A word of the record of an id, to be written.
    fn touch(&self, id: NodeId, word: usize) -> Option<&MemoryWord> {
        if word >= word::FEW {
            let (head, flags) = self.head(id)?;
            if !flags.contains(Flags::FEW) {
                head.change().fetch_or(Flags::FEW.bits(), Relaxed);
            }
        }
        self.at(id, word)
    }

    fn set(&self, id: NodeId, word: usize, value: u64) {
        let at = if value == 0 { self.look(id, word) } else { self.touch(id, word) };
        if let Some(at) = at {
            at.change().store(value, Relaxed);
        }
    }

    fn get(&self, id: NodeId, word: usize) -> u64 {
        self.look(id, word).map_or(0, |at| at.load(Relaxed))
    }

    /// Words that few ids have are 0 in what is not in use.
    fn clear_few(&self, id: NodeId) {
        for word in word::FEW..word::OTHER_PLACE {
            self.set(id, word, 0);
        }
    }

    /// The head of an id's record, if it has one.
    fn head(&self, id: NodeId) -> Option<(&MemoryWord, Flags)> {
        turn();
        let at = self.at(id, word::HEAD)?;
        let value = at.load(Acquire);
        (value as u32 == slot_of(id).1).then_some((at, Flags::from_bits_truncate(value)))
    }

    fn change(&self, id: NodeId, change: impl FnOnce(Flags) -> Flags) {
        if let Some((at, flags)) = self.head(id) {
            // Others may find at the same time that it has one of the words that few have.
            let (before, after) = (flags.bits(), change(flags).bits());
            let _ = at.change().fetch_update(Release, Relaxed, |now| Some(now & !(before & !after) | after));
        }
    }

    /// A chunk of slots has come into use.
    pub(crate) fn chunk_begins(&self, chunk: usize) {
        if let Some(bits) = self.words.word(HEADER + chunk / 64) {
            bits.change().fetch_or(1 << (chunk % 64), Relaxed);
        }
    }

    /// A chunk has no more ids: its memory is given back.
    pub(crate) fn chunk_ends(&self, chunk: usize) {
        if let Some(bits) = self.words.word(HEADER + chunk / 64) {
            bits.change().fetch_and(!(1 << (chunk % 64)), Relaxed);
        }
        let first = chunk * CHUNK;
        for (base, size) in [(RECORDS, RECORD), (FEW, FEW_RECORD), (LONG, LONG_RECORD)] {
            if let Err(error) = self.words.clear(base + first * size, CHUNK * size) {
                tracing::debug!(%error, "memory of the ledger stays");
            }
        }
    }

    /// So many free records of a chunk may be worth a look at its pages.
    pub(crate) const FEWEST_FREE: usize = CHUNK / 4;

    /// Gives back the pages of a chunk that hold nothing but free records, none of which is given out meanwhile.
    pub(crate) fn clear_free(&self, chunk: usize, is_free: &[bool; CHUNK]) {
        for (base, size) in [(RECORDS, RECORD), (FEW, FEW_RECORD), (LONG, LONG_RECORD)] {
            let first = base + chunk * CHUNK * size;
            let is_page_free = |page: usize| {
                let records = page * PAGE / size..=((page + 1) * PAGE - 1) / size;
                is_free.get(records).is_some_and(|records| records.iter().all(|is| *is))
            };
            let mut page = 0;
            while page < CHUNK * size / PAGE {
                let pages = (page..CHUNK * size / PAGE).take_while(|page| is_page_free(*page)).count();
                if pages > 0
                    && let Err(error) = self.words.clear(first + page * PAGE, pages * PAGE)
                {
                    tracing::debug!(%error, "memory of the ledger stays");
                }
                page += pages + 1;
            }
        }
    }

    /// The last serial number that was given to an id.
    pub(crate) fn serial(&self) -> u32 {
        self.words.load(SERIAL, Relaxed) as u32
    }

    /// Writes the last serial number down.
    pub(crate) fn set_serial(&self, serial: u32) {
        self.words.store(SERIAL, serial.into(), Relaxed);
    }

    /// A new node. `place`: None if it has no name.
    pub(crate) fn enter(&self, id: NodeId, ino: u64, place: Option<(NodeId, Name<'_>)>, flags: Flags) {
        for word in word::LOOKUPS..word::PLACE {
            self.set(id, word, 0);
        }
        self.clear_few(id);
        self.set(id, word::INO, ino);
        let mut flags = flags.difference(Flags::SECOND | Flags::MOVING);
        match place {
            Some(place) => self.write_place(id, false, place),
            None => flags |= Flags::GONE,
        }
        turn();
        if let Some(at) = self.at(id, word::HEAD) {
            at.change().store(u64::from(slot_of(id).1) | flags.bits(), Release);
        }
    }

    /// A node shows another inode number once its copy has the name that it is about to get. It ends with [`Ledger::renumber`].
    pub(crate) fn prepare_number(&self, id: NodeId, ino: u64) {
        let Some((_, flags)) = self.head(id) else { return };
        self.change(id, |flags| flags - Flags::MOVING);
        self.set(id, word::place(!flags.contains(Flags::SECOND)), ino);
        self.change(id, |flags| flags | Flags::RENUMBERING);
    }

    /// A node shows another inode number; None: it has stayed the same.
    pub(crate) fn renumber(&self, id: NodeId, ino: Option<u64>) {
        if let Some(ino) = ino {
            self.set(id, word::INO, ino);
        }
        self.clear(id, Flags::RENUMBERING);
    }

    /// An id has been given back.
    pub(crate) fn leave(&self, id: NodeId) {
        if self.head(id).is_none() {
            return;
        }
        let held = self.get(id, word::HELD) | self.get(id, word::BELOW);
        self.clear_few(id);
        self.set(id, word::HEAD, 0);
        if held != 0 {
            let orphan = self.orphan.lock().remove(&slot_of(id).0);
            drop(orphan);
        }
    }

    /// How often the kernel has looked an id up.
    pub(crate) fn set_lookups(&self, id: NodeId, lookups: u64) {
        self.set(id, word::LOOKUPS, lookups);
    }

    /// Whether the kernel believes of any name that it is not in a directory.
    pub(crate) fn set_negative(&self, id: NodeId, any: bool) {
        // Mostly it says so already.
        if self.negative(id) != any
            && let Some(names) = self.touch(id, word::NAMES)
        {
            if any {
                names.change().fetch_or(NEGATIVE, Relaxed)
            } else {
                names.change().fetch_and(!NEGATIVE, Relaxed)
            };
        }
    }

    pub(crate) fn negative(&self, id: NodeId) -> bool {
        self.get(id, word::NAMES) & NEGATIVE != 0
    }

    /// Counts opens through the kernel's cache. Added to what is there: of two counts at once neither is lost.
    pub(crate) fn count_cached_opens(&self, id: NodeId, change: i32) {
        if let Some(opens) = self.touch(id, word::CACHED_OPENS) {
            opens.change().fetch_add(i64::from(change).cast_unsigned(), Relaxed);
        }
    }

    /// Opens by which the kernel serves a file itself.
    pub(crate) fn own_opens(&self, id: NodeId) -> OwnOpens {
        let opens = self.look(id, word::OWN_OPENS).map_or(0, |opens| opens.load(Acquire));
        OwnOpens { opens, file: std::array::from_fn(|word| self.get(id, word::OWN_OPENS + 1 + word)) }
    }

    /// Keeps such opens. The file is there before the number that makes it count; it stays the same while there are opens.
    pub(crate) fn set_own_opens(&self, id: NodeId, own: OwnOpens) {
        for (word, value) in own.file.into_iter().enumerate() {
            self.set(id, word::OWN_OPENS + 1 + word, value);
        }
        if let Some(opens) = self.touch(id, word::OWN_OPENS) {
            opens.change().store(own.opens, Release);
        }
    }

    /// There are no opens any more; how many through the kernel's cache there seemed to be.
    pub(crate) fn end_opens(&self, id: NodeId) -> u32 {
        let own = self.own_opens(id);
        if own != OwnOpens::default() {
            self.set_own_opens(id, OwnOpens { opens: 0, ..own });
            fence(SeqCst);
            self.set_own_opens(id, OwnOpens::default());
        }
        self.look(id, word::CACHED_OPENS).map_or(0, |opens| opens.change().swap(0, Relaxed)) as u32
    }

    /// A file has another node, `next`, which has a record. From then on the record of `id` says nothing of where the file is.
    pub(crate) fn replace(&self, id: NodeId, next: NodeId) {
        self.set(id, word::SUCCESSOR, next.0);
        self.change(id, |flags| flags | Flags::STALE);
    }

    /// What is known of an id.
    pub(crate) fn flags(&self, id: NodeId) -> Flags {
        self.head(id).map(|(_, flags)| flags).unwrap_or_default()
    }

    /// Sets flags that say something of the object, not of its place.
    pub(crate) fn add(&self, id: NodeId, flags: Flags) {
        self.change(id, |now| now | flags);
    }

    /// Takes such flags back.
    pub(crate) fn clear(&self, id: NodeId, flags: Flags) {
        self.change(id, |now| now - flags);
    }

    /// The object is about to lose its last name: `descriptor` holds it.
    pub(crate) fn hold(&self, id: NodeId, descriptor: Option<BorrowedFd<'_>>) {
        let Some(descriptor) = descriptor else { return };
        let holding = HeldDescriptor { descriptor: descriptor.as_raw_fd(), layer: 0, in_dir: false };
        self.set(id, word::HELD, holding.to_word());
    }

    /// The object is about to lose its last name in the upper layer, and has one in the work directory by that number.
    pub(crate) fn hold_orphan(&self, id: NodeId, number: u64) {
        self.set(id, word::HELD, KEPT | number);
    }

    /// The object, of a lower layer that is known by names only, is about to be hidden: it stays in the directory where it is said to be.
    pub(crate) fn hold_in_parent(&self, id: NodeId, layer: u16) {
        self.set(id, word::HELD, IN_PARENT | u64::from(layer));
    }

    /// Writes down that the node of `id`, a directory or a file in a lower layer, is found in the directory `dir`. A copy of its descriptor
    /// is kept until the id is given back.
    pub(crate) fn hold_dir(&self, id: NodeId, dir: Option<BorrowedFd<'_>>, layer: u16) {
        let Some(copy) = dir.and_then(|dir| dir.try_clone_to_owned().ok()) else { return };
        let holding = HeldDescriptor { descriptor: copy.as_raw_fd(), layer, in_dir: true };
        self.keep(id, copy);
        self.set(id, word::HELD, holding.to_word());
    }

    /// Writes down where the data of a file are that are not in its inode: in `dir`, under a name. A copy of the descriptor is kept until the
    /// id is given back.
    pub(crate) fn hold_below(&self, id: NodeId, dir: Option<BorrowedFd<'_>>, layer: u16, name: Name<'_>) {
        let Some((_, flags)) = self.head(id) else { return };
        let Some(copy) = dir.and_then(|dir| dir.try_clone_to_owned().ok()) else { return };
        self.set(id, word::BELOW, 0);
        self.change(id, |flags| flags - Flags::MOVING);
        self.write_place(id, !flags.contains(Flags::SECOND), (NodeId(0), name));
        let holding = HeldDescriptor { descriptor: copy.as_raw_fd(), layer, in_dir: true };
        self.keep(id, copy);
        self.set(id, word::BELOW, holding.to_word());
    }

    /// Keeps a descriptor for the time of an id.
    pub(crate) fn keep(&self, id: NodeId, descriptor: OwnedFd) {
        self.orphan.lock().entry(slot_of(id).0).or_default().push(descriptor);
    }

    /// The object is where it is said to be: the end of a rename, of a removal, or of the first link to what had no name.
    pub(crate) fn set_place(&self, id: NodeId, place: Option<(NodeId, Name<'_>)>) {
        let Some((_, flags)) = self.head(id) else { return };
        let Some(place) = place else {
            self.change(id, |flags| (flags - Flags::MOVING) | Flags::GONE);
            return;
        };
        let second = flags.contains(Flags::SECOND);
        let other = self.read_place(id, !second);
        let is_there = |found: &Option<Spot>| {
            found.as_ref().is_some_and(|(parent, name)| *parent == place.0 && **name == *place.1.as_c_str())
        };
        let mut second = second;
        if flags.contains(Flags::GONE) && self.get(id, word::BELOW) != 0 {
            // The other place says where its data are, as long as it counts as gone.
            self.write_place(id, second, place);
        } else if !is_there(&self.read_place(id, second)) {
            second = !second;
            if !(flags.contains(Flags::MOVING) && is_there(&other)) {
                self.change(id, |flags| flags - Flags::MOVING);
                self.write_place(id, second, place);
            }
        }
        self.change(id, |mut flags| {
            flags.remove(Flags::MOVING | Flags::GONE);
            flags.set(Flags::SECOND, second);
            flags
        });
        // Not before: until then it was found by what holds it.
        self.set(id, word::HELD, 0);
        self.set(id, word::BELOW, 0);
    }

    /// A rename to `place` begins. It ends with [`Ledger::set_place`].
    pub(crate) fn prepare_move(&self, id: NodeId, place: (NodeId, Name<'_>)) {
        let Some((_, flags)) = self.head(id) else { return };
        self.change(id, |flags| flags - Flags::MOVING);
        self.write_place(id, !flags.contains(Flags::SECOND), place);
        self.change(id, |flags| flags | Flags::MOVING);
    }

    fn write_place(&self, id: NodeId, second: bool, (parent, name): (NodeId, Name<'_>)) {
        let base = word::place(second);
        let bytes = name.bytes();
        self.set(id, base, parent.0);
        let head = [bytes.len() as u8];
        if bytes.len() <= SHORT_NAME {
            for (word, value) in words_of(head.iter().chain(bytes)).enumerate() {
                self.set(id, base + 1 + word, value);
            }
        } else {
            self.set(id, base + 1, u64::from_ne_bytes([head[0], 0, 0, 0, 0, 0, 0, 0]));
            for (word, value) in words_of(bytes.iter()).enumerate() {
                if let Some(at) = self.long_word(id, second, word) {
                    at.change().store(value, Relaxed);
                }
            }
        }
    }

    fn long_word(&self, id: NodeId, second: bool, word: usize) -> Option<&MemoryWord> {
        let (slot, _) = slot_of(id);
        let base = LONG + slot * LONG_RECORD + if second { LONG_NAME } else { 0 };
        (word < LONG_NAME).then(|| self.words.word(base + word)).flatten()
    }

    fn read_place(&self, id: NodeId, second: bool) -> Option<Spot> {
        let base = word::place(second);
        self.look(id, base)?;
        let parent = NodeId(self.get(id, base));
        let mut bytes: Vec<u8> =
            (1..PLACE).flat_map(|word| self.get(id, base + word).to_ne_bytes()).collect();
        let len = usize::from(*bytes.first()?);
        if len <= SHORT_NAME {
            bytes.remove(0);
        } else {
            let long = |word| self.long_word(id, second, word).map_or(0, |at| at.load(Relaxed));
            bytes = (0..LONG_NAME).flat_map(|word| long(word).to_ne_bytes()).collect();
        }
        bytes.truncate(len);
        let name = CString::new(bytes).ok().filter(|name| !name.is_empty())?;
        Some((parent, name.into_boxed_c_str()))
    }

    /// What is written down of an id.
    pub(crate) fn read(&self, id: NodeId) -> Option<Record> {
        let (_, flags) = self.head(id)?;
        let second = flags.contains(Flags::SECOND);
        let mut places = Vec::new();
        places.extend(self.read_place(id, second));
        if flags.contains(Flags::MOVING) {
            places.extend(self.read_place(id, !second));
        }
        let successor = Some(NodeId(self.get(id, word::SUCCESSOR)))
            .filter(|next| flags.contains(Flags::STALE) && next.0 != 0 && *next != id);
        // The file of a replaced node is held by its successor: a descriptor that is written down here may be closed, and its number
        // another's.
        let holds = |word| if successor.is_some() { 0 } else { self.get(id, word) };
        let below = HeldDescriptor::from_word(holds(word::BELOW))
            .and_then(|holding| Some((holding, self.read_place(id, !second)?.1)));
        let held = holds(word::HELD);
        Some(Record {
            id,
            flags,
            lookups: self.get(id, word::LOOKUPS),
            ino: self.get(id, word::INO),
            places,
            held: HeldDescriptor::from_word(held),
            below,
            orphan: (held & KEPT != 0).then_some(held & !KEPT),
            in_parent: (held & (KEPT | IN_PARENT) == IN_PARENT).then_some(held as u16),
            cached_opens: self.get(id, word::CACHED_OPENS) as u32,
            successor,
            number: flags
                .contains(Flags::RENUMBERING)
                .then(|| self.get(id, word::place(!flags.contains(Flags::SECOND)))),
        })
    }

    /// Chunks that have records.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = usize> + '_ {
        (0..CHUNK_BITS).flat_map(|index| {
            let bits = self.words.load(HEADER + index, Relaxed);
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| index * 64 + bit)
        })
    }

    /// Programs are about to change names of a directory past the kernel.
    pub(crate) fn set_shared(&self, id: NodeId) {
        if let Some(names) = self.touch(id, word::NAMES) {
            names.change().fetch_or(SHARED, Relaxed);
        }
    }

    /// Whether programs have changed names of a directory past the kernel.
    pub(crate) fn is_shared(&self, id: NodeId) -> bool {
        self.get(id, word::NAMES) & SHARED != 0
    }

    /// Directories that the kernel knows, and of which programs have changed names past it.
    pub(crate) fn shared(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_dir = |record: &Record| record.lookups > 0 && !record.flags.contains(Flags::STALE);
        let known = self.records().filter(is_dir).map(|record| record.id);
        std::iter::once(NodeId::ROOT).chain(known).filter(|id| self.is_shared(*id))
    }

    /// The ids that the kernel may know.
    pub fn kernel_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.chunks().flat_map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK).filter_map(|slot| {
            let head = self.words.load(RECORDS + slot * RECORD, Acquire);
            let serial = u64::from(head as u32);
            (serial != 0).then_some(NodeId(serial << 32 | slot as u64))
        })
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.kernel_nodes().filter_map(|id| self.read(id))
    }
}

/// A descriptor that holds something, all of it in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldDescriptor {
    /// Its number.
    pub(crate) descriptor: RawFd,
    /// The layer of what it is of.
    pub(crate) layer: u16,
    /// It is the directory itself, or that in which the object is.
    pub(crate) in_dir: bool,
}

impl HeldDescriptor {
    fn to_word(self) -> u64 {
        let number = u64::from(self.descriptor.unsigned_abs()) + 1;
        (u64::from(self.in_dir) << 48) | (u64::from(self.layer) << 32) | number
    }

    fn from_word(word: u64) -> Option<Self> {
        if word & (KEPT | IN_PARENT) != 0 {
            return None;
        }
        let number = (word as u32).checked_sub(1).and_then(|number| RawFd::try_from(number).ok())?;
        Some(Self { descriptor: number, layer: (word >> 32) as u16, in_dir: (word >> 48) & 1 == 1 })
    }
}

fn unusable(errno: Errno) -> Error {
    Error::new(errno, "memory for the ledger")
}

/// Bytes as words, the last filled up with 0.
fn words_of<'a>(bytes: impl Iterator<Item = &'a u8>) -> impl Iterator<Item = u64> {
    let mut bytes = bytes.copied().peekable();
    std::iter::from_fn(move || {
        bytes.peek()?;
        Some(u64::from_ne_bytes(std::array::from_fn(|_| bytes.next().unwrap_or(0))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicBool;
    use vellum_sys::crash_point::{at_each, copy};

    /// Where an object is, by the last byte of its name, and whether it has no name: what a record may say.
    type Said = (Vec<u8>, bool);

    #[test]
    fn a_crash_at_any_store_keeps_places_valid() {
        let long = |last: u8| CString::new([vec![b'n'; 200], vec![last]].concat()).unwrap();
        let short = |last: u8| CString::new(vec![last]).unwrap();
        let names: [[CString; 3]; 4] = [
            [b'a', b'b', b'c'].map(short),
            [b'a', b'b', b'c'].map(long),
            [short(b'a'), long(b'b'), short(b'c')],
            [long(b'a'), short(b'b'), long(b'c')],
        ];
        let (id, dir) = (NodeId(1 << 32 | 3), NodeId(1 << 32 | 2));
        let mut points = 0;
        for [a, b, c] in &names {
            let ledger = Rc::new(Ledger::create().unwrap());
            let place = |name: &'static CStr| (dir, Name::new(name).unwrap());
            let [a, b, c] = [a, b, c].map(|name| place(Box::leak(name.clone().into_boxed_c_str())));
            let seen = Rc::new(Cell::new(0));
            // Each step, and what a successor may read while it is made: None is no record.
            let mut step = |allowed: &'static [Option<(&'static [u8], bool)>], work: &dyn Fn(&Ledger)| {
                let (left, seen) = (Rc::clone(&ledger), Rc::clone(&seen));
                let look = move || {
                    seen.set(seen.get() + 1);
                    let left = Ledger::open(copy(left.descriptor(), c"copy").unwrap()).unwrap();
                    let said: Option<Said> = left.read(id).map(|record| {
                        assert!(record.ino == 7 && record.places.iter().all(|(parent, _)| *parent == dir));
                        let last = |(_, name): &Spot| *name.to_bytes().last().unwrap();
                        (record.places.iter().map(last).collect(), record.flags.contains(Flags::GONE))
                    });
                    let is_allowed =
                        |one: &Option<(&[u8], bool)>| one.map(|(names, gone)| (names.to_vec(), gone)) == said;
                    assert!(allowed.iter().any(is_allowed), "{said:?} of {allowed:?}");
                };
                points += at_each(look, || work(&ledger)).1;
            };
            step(&[None], &|ledger| ledger.enter(id, 7, Some(a), Flags::empty()));
            step(&[Some((b"a", false)), Some((b"ab", false))], &|ledger| ledger.prepare_move(id, b));
            step(&[Some((b"ab", false)), Some((b"b", false))], &|ledger| ledger.set_place(id, Some(b)));
            // One that fails, and the object stays.
            step(&[Some((b"b", false)), Some((b"bc", false))], &|ledger| ledger.prepare_move(id, c));
            step(&[Some((b"bc", false)), Some((b"b", false))], &|ledger| ledger.set_place(id, Some(b)));
            // Without a word before it.
            step(&[Some((b"b", false)), Some((b"c", false))], &|ledger| ledger.set_place(id, Some(c)));
            step(&[Some((b"c", false))], &|ledger| ledger.hold_orphan(id, 5));
            step(&[Some((b"c", false)), Some((b"c", true))], &|ledger| ledger.set_place(id, None));
            step(&[Some((b"c", true)), Some((b"c", false)), Some((b"a", false))], &|ledger| {
                ledger.set_place(id, Some(a));
            });
            step(&[Some((b"a", false)), None], &|ledger| ledger.leave(id));
            assert!(ledger.read(id).is_none() && seen.get() > 0);
        }
        assert!(points > 400, "{points} stores");
    }

    #[test]
    fn opens_are_counted_for_their_own_file() {
        let (ledger, id, is_over) = (Ledger::create().unwrap(), NodeId(1 << 32 | 3), AtomicBool::new(false));
        ledger.enter(id, 7, None, Flags::empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in (1..).take_while(|_| !is_over.load(Relaxed)) {
                    ledger.set_own_opens(id, OwnOpens { opens: round, file: [round, !round] });
                    ledger.set_own_opens(id, OwnOpens { opens: 0, file: [round, !round] });
                }
            });
            // At every moment the writer could have been killed.
            let (mut seen, mut mixed) = (0, None);
            while seen < 300_000 && mixed.is_none() {
                let own = ledger.own_opens(id);
                if own.opens != 0 && ledger.own_opens(id).opens == own.opens {
                    mixed = (own.file != [own.opens, !own.opens]).then_some(own);
                    seen += 1;
                }
            }
            is_over.store(true, Relaxed);
            assert_eq!(mixed, None);
        });
    }

    #[test]
    fn counts_at_once_are_all_counted() {
        let (ledger, id) = (Ledger::create().unwrap(), NodeId(1 << 32 | 3));
        ledger.enter(id, 7, None, Flags::empty());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20_000).for_each(|_| ledger.count_cached_opens(id, 1)));
                scope.spawn(|| (0..19_999).for_each(|_| ledger.count_cached_opens(id, -1)));
            }
        });
        assert_eq!(ledger.read(id).unwrap().cached_opens, 2);
    }
}
