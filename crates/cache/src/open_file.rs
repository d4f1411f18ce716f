//! A file that is read through the cache.
//!
//! A hit reads the file's own words and memory ([`crate::file_blocks`]) and nothing else: no lock, no allocation, no write that other files'
//! readers make. What is not there takes the one lock of the store for the tables, never while a storage is read. Several who miss
//! the same block wait for one fetch.
//!
//! Contents come in under the version that was asked before the fetch and again after it. A reader that finds another version reads
//! the storage itself from then on, until its file is opened again.

use crate::error::Result;
use crate::file_blocks::{Entry, FileBlocks, Marks, SharedMemory};
use crate::fills::Fill;
use crate::key::{BLOCK_BYTES, BLOCKS_MAX, BlockIndex, Version};
use crate::lane::Lane;
use crate::memory::Memory;
use crate::shared::{Member, Tables};
use crate::store::{FileLoan, Store};
use crate::sync::{Gate, Mutex};
use arc_swap::ArcSwapOption;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Blocks that are fetched at once when a file is read from front to back: 1 MiB.
pub const AHEAD_MAX: u64 = 16;

thread_local! {
    /// What the thread's next fetch goes through. Taken out while in use.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Where the contents of one file come from.
pub trait Source {
    /// What reading fails with.
    type Error;
    /// The version of the contents at this moment. Contents that never change need not be asked.
    fn version(&self) -> std::result::Result<Version, Self::Error>;
    /// Reads at `offset` (bytes); fewer bytes only at the end of the file, or before an error.
    fn read(&self, buf: &mut [u8], offset: u64) -> std::result::Result<usize, Self::Error>;
}

/// How a file is read, as far as misses show it: from front to back, or here and there.
#[derive(Debug, Default)]
struct Readahead {
    /// The block after what was last fetched.
    next: AtomicU64,
    blocks: AtomicU64,
}

impl Readahead {
    /// How many blocks are fetched from `first` on, where `wanted` are asked for: twice as many as before as long as nothing was
    /// passed over.
    fn blocks(&self, first: BlockIndex, wanted: u64) -> u64 {
        let goes_on = self.next.load(Relaxed) == first.0;
        let before = if goes_on { self.blocks.load(Relaxed) } else { 0 };
        let blocks = (2 * before).max(wanted).clamp(1, AHEAD_MAX);
        self.blocks.store(blocks, Relaxed);
        blocks
    }

    fn fetched(&self, end: u64) {
        self.next.store(end, Relaxed);
    }
}

/// A file that readers find in the cache, and what the container has used of it.
struct View<M: Memory> {
    held: Arc<FileBlocks<M>>,
    marks: Arc<Marks>,
}

/// Contents of a file, opened to be read through the cache.
pub struct FileReader<M: Memory> {
    member: Arc<Member<M>>,
    version: Version,
    /// What was found when the tables were last asked. It may be of no use any more, which its words say.
    view: ArcSwapOption<View<M>>,
    /// The storage has other contents by now.
    has_changed: AtomicBool,
    ahead: Readahead,
    /// By which it comes to its storage; found at the first fetch.
    lane: OnceLock<Arc<Lane>>,
    /// Blocks whose use the store has not been told of, for somebody was busy with it: it hears of them with the next one.
    untold: Mutex<SmallVec<[BlockIndex; 8]>>,
}

/// Uses that are kept to be told: who reads a file once has to pay for it too.
const UNTOLD_MAX: usize = 1024;

impl<M: Memory> Member<M> {
    /// Opens contents to be read through the cache. None: they are too large for it.
    #[must_use]
    pub fn open(self: &Arc<Self>, version: Version) -> Option<FileReader<M>> {
        (version.blocks() <= BLOCKS_MAX).then(|| FileReader {
            member: Arc::clone(self),
            version,
            view: ArcSwapOption::empty(),
            has_changed: AtomicBool::new(false),
            ahead: Readahead::default(),
            lane: OnceLock::new(),
            untold: Mutex::default(),
        })
    }
}

impl<M: Memory> Drop for FileReader<M> {
    fn drop(&mut self) {
        if !self.untold.lock().is_empty() {
            self.report_pending_uses(&mut self.member.shared.tables.lock().store);
        }
    }
}

/// What to do about a block that was not found.
enum MissAction<'a, M: Memory> {
    /// It is there.
    Found,
    /// Somebody fetches it.
    Wait(Arc<Gate>),
    /// It is to be fetched.
    Fetch(Fetch<'a, M>),
    /// It cannot be cached.
    Refused,
}

impl<M: Memory> FileReader<M> {
    /// Which contents.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Fills `buf` from `offset` (bytes); fewer bytes only at the end of the file. Its errors are the source's.
    pub fn read<S: Source>(
        &self,
        source: &S,
        buf: &mut [u8],
        offset: u64,
    ) -> std::result::Result<usize, S::Error> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            let is_direct = self.has_changed.load(Relaxed) || done == 0 && at >= self.version.size;
            let result = if is_direct {
                let len = rest.len();
                self.ask(source, rest, at).map(|count| (count, len))
            } else {
                self.read_block(source, rest, at)
            };
            match result {
                Ok((count, wanted)) => {
                    done += count;
                    if count < wanted || is_direct || wanted == 0 {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads what of `rest` lies in one block: how much, and how much that should be.
    fn read_block<S: Source>(
        &self,
        source: &S,
        rest: &mut [u8],
        at: u64,
    ) -> std::result::Result<(usize, usize), S::Error> {
        let (index, within) = (BlockIndex(at / BLOCK_BYTES), at % BLOCK_BYTES);
        let blocks = (within + rest.len() as u64).div_ceil(BLOCK_BYTES);
        let left = self.version.block_len(index).saturating_sub(within).min(rest.len() as u64);
        let piece = rest.get_mut(..usize::try_from(left).unwrap_or(0)).unwrap_or_default();
        let len = piece.len();
        if len == 0 || self.hit(index, within, piece) {
            return Ok((len, len));
        }
        // A second time after a fetch that others have waited for, too; it may have failed.
        for _ in 0..2 {
            match self.missing(index, blocks) {
                MissAction::Found if self.copy(index, within, piece) => return Ok((len, len)),
                MissAction::Found => {}
                MissAction::Wait(gate) => gate.wait(),
                MissAction::Fetch(fetch) => {
                    if let Some(count) = self.fetch(source, fetch, piece, within)? {
                        return Ok((count, len));
                    }
                    break;
                }
                MissAction::Refused => break,
            }
        }
        self.ask(source, piece, at).map(|count| (count, len))
    }

    /// Reads the storage itself, once it is this container's turn.
    fn ask<S: Source>(
        &self,
        source: &S,
        buf: &mut [u8],
        offset: u64,
    ) -> std::result::Result<usize, S::Error> {
        let lane = self.lane.get().cloned().unwrap_or_else(|| {
            let filesystem = self.version.key.object.filesystem;
            let lane = self.member.lanes.to(filesystem, &self.member.shared.storages);
            Arc::clone(self.lane.get_or_init(|| lane))
        });
        let _turn = lane.acquire(buf.len() as u64);
        source.read(buf, offset)
    }

    /// Whether all of `buf` was found. Counts for nothing.
    fn copy(&self, index: BlockIndex, within: u64, buf: &mut [u8]) -> bool {
        let view = self.view.load();
        let held = view.as_deref().map(|view| &view.held);
        held.is_some_and(|held| held.read(&self.member.shared.memory, index.0, within, buf))
    }

    /// Whether all of `buf` was found.
    fn hit(&self, index: BlockIndex, within: u64, buf: &mut [u8]) -> bool {
        let view = self.view.load();
        let Some(view) = view.as_deref() else { return false };
        if !view.held.read(&self.member.shared.memory, index.0, within, buf) {
            return false;
        }
        if view.marks.note(index.0) || !self.report_use(index, &view.marks) {
            self.member.hits.add();
        }
        true
    }

    /// Tells the store of a use, if nobody is just busy with it. Whether it has counted it.
    fn report_use(&self, index: BlockIndex, marks: &Marks) -> bool {
        let Some(mut tables) = self.member.shared.tables.try_lock() else {
            let mut untold = self.untold.lock();
            if untold.len() < UNTOLD_MAX && untold.last() != Some(&index) {
                untold.push(index);
            }
            return false;
        };
        self.report_pending_uses(&mut tables.store);
        let found = tables.store.read(self.version.key, index, self.member.container, 0, &mut []);
        let counted = matches!(found, Ok(Some(_)));
        if counted {
            marks.record_use(index.0);
        }
        counted
    }

    /// Tells the store what it could not be told before.
    fn report_pending_uses(&self, store: &mut Store<SharedMemory<M>>) {
        for index in std::mem::take(&mut *self.untold.lock()) {
            store.record_use(self.version.key, index, self.member.container);
        }
    }

    fn missing(&self, first: BlockIndex, wanted: u64) -> MissAction<'_, M> {
        let mut tables = self.member.shared.tables.lock();
        self.report_pending_uses(&mut tables.store);
        let Tables { store, fetches, .. } = &mut *tables;
        let key = self.version.key;
        if let Some(gate) = fetches.get(&(key, first)) {
            return MissAction::Wait(Arc::clone(gate));
        }
        match store.read(key, first, self.member.container, 0, &mut []) {
            Ok(Some(_)) => {
                return if self.look(store) { MissAction::Found } else { MissAction::Refused };
            }
            Ok(None) => {}
            Err(_) => return MissAction::Refused,
        }
        let gate = Arc::<Gate>::default();
        let mut fills = SmallVec::<[Fill; 1]>::new();
        for index in (first.0..).map(BlockIndex).take(self.ahead.blocks(first, wanted) as usize) {
            let is_taken = store.contains(key, index) || fetches.contains_key(&(key, index));
            let Some(fill) = (!is_taken).then(|| store.begin(self.version, index)).flatten() else { break };
            fetches.insert((key, index), Arc::clone(&gate));
            fills.push(fill);
        }
        self.ahead.fetched(first.0 + fills.len() as u64);
        if fills.is_empty() {
            MissAction::Refused
        } else {
            MissAction::Fetch(Fetch { opened: self, fills, gate })
        }
    }

    /// Finds the file anew. False: it is not there.
    fn look(&self, store: &Store<SharedMemory<M>>) -> bool {
        let found = store.memory_of(self.version).map(|Entry(held)| held);
        let is_known = |held: &Arc<FileBlocks<M>>| {
            self.view.load().as_deref().is_some_and(|view| Arc::ptr_eq(&view.held, held))
        };
        if let Some(held) = found.filter(|held| !is_known(held)) {
            let marks = held.marks_of(self.member.container);
            self.view.store(Some(Arc::new(View { held: Arc::clone(held), marks })));
        }
        found.is_some()
    }

    /// Fetches blocks, of which `piece` is a part of the first, from `within` on. Says how much of it there was; None: it has to be
    /// read by itself.
    fn fetch<S: Source>(
        &self,
        source: &S,
        fetch: Fetch<'_, M>,
        piece: &mut [u8],
        within: u64,
    ) -> std::result::Result<Option<usize>, S::Error> {
        let mut buffer = BUFFER.take();
        let (start, len) = fetch.range();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let data = buffer.get_mut(..len).unwrap_or_default();
        let count = self.ask(source, data, start);
        if let Ok(count) = count {
            let is_current = || source.version().is_ok_and(|version| version == self.version);
            if count == len && is_current() {
                fetch.insert(data);
            } else {
                self.has_changed.store(true, Relaxed);
            }
        }
        let found = count.map(|count| {
            let from = usize::try_from(within).unwrap_or(usize::MAX);
            let found = data.get(from..count).filter(|found| !found.is_empty())?;
            let count = found.len().min(piece.len());
            piece.get_mut(..count)?.copy_from_slice(found.get(..count)?);
            Some(count)
        });
        BUFFER.set(buffer);
        found
    }

    /// Lends the file if it is there as a whole: its memory stays as it is, and counts as lent, until the loan is dropped. None: it is
    /// not whole, or too much is lent.
    pub fn lend(&self) -> Result<Option<Loan<M>>> {
        let mut tables = self.member.shared.tables.lock();
        let Some(lent) = tables.store.lend(self.version.key, self.member.container)? else { return Ok(None) };
        let memory = tables.store.lent_file(&lent).and_then(|Entry(held)| held.memory());
        let Some(memory) = memory else {
            tables.store.return_loan(lent);
            return Ok(None);
        };
        Ok(Some(Loan { member: Arc::clone(&self.member), lent: Some(lent), memory }))
    }
}

/// A fetch of blocks in a row. Who waits for it goes on when it is dropped, whatever has become of it.
struct Fetch<'a, M: Memory> {
    opened: &'a FileReader<M>,
    /// Never empty at first.
    fills: SmallVec<[Fill; 1]>,
    gate: Arc<Gate>,
}

impl<M: Memory> Fetch<'_, M> {
    /// Where it begins in the file, and how long it is, in bytes.
    fn range(&self) -> (u64, usize) {
        let len: u64 = self.fills.iter().map(|fill| fill.version().block_len(fill.index())).sum();
        let start = self.fills.first().map_or(0, |fill| fill.index().0 * BLOCK_BYTES);
        (start, usize::try_from(len).unwrap_or(0))
    }

    /// What was fetched comes in, as far as there is room. The lock is held for a block at a time.
    fn insert(mut self, data: &[u8]) {
        let opened = self.opened;
        opened.member.shared.grows(data.len() as u64);
        for block in data.chunks(BLOCK_BYTES as usize) {
            if self.fills.is_empty() {
                break;
            }
            let fill = self.fills.remove(0);
            let mut tables = opened.member.shared.tables.lock();
            tables.fetches.remove(&(fill.version().key, fill.index()));
            // Not cached, then: the reader has the data.
            tables.store.insert(fill, opened.member.container, block).ok();
            opened.look(&tables.store);
        }
    }
}

impl<M: Memory> Drop for Fetch<'_, M> {
    fn drop(&mut self) {
        let mut tables = self.opened.member.shared.tables.lock();
        for fill in self.fills.drain(..) {
            tables.fetches.remove(&(fill.version().key, fill.index()));
            tables.store.abandon(fill);
        }
        drop(tables);
        self.gate.open();
    }
}

/// A file that is lent. Its memory cannot be written to any more, and is freed when all who have it have closed and unmapped it.
#[must_use = "the file comes back when this is dropped"]
pub struct Loan<M: Memory> {
    member: Arc<Member<M>>,
    lent: Option<FileLoan>,
    memory: Arc<M::File>,
}

impl<M: Memory> Loan<M> {
    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &M::File {
        &self.memory
    }
}

impl<M: Memory> Drop for Loan<M> {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.member.shared.tables.lock().store.return_loan(lent);
        }
    }
}
