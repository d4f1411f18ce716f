//! Blocks in memory of bounded size.
//!
//! A file has memory of its own, in which each block lies at its place. A block stands in the queue of each container that uses
//! it. Where room is needed, the container that holds most in relation to its weight gives up what its queue chooses: the container
//! stops to use and to pay for it, and the block goes when it was the last user. So nobody's cold data stay at the expense of
//! others, and nobody loses what it uses because somebody else does not.

mod adoption;
mod audit;
mod eviction;
mod loan;
mod report;

use crate::checksum::sum;
use crate::error::{Error, Result};
use crate::fills::{Fill, Fills};
use crate::key::{BLOCK_BYTES, BlockIndex, Key, Object, Version, charged};
use crate::memory::Memory;
use crate::policy::{Handle, Policy};
use crate::shares::{Container, NOBODY, Shares};
use crate::stats::Counts;
use crate::users::{Admission, User, Users};
use hashbrown::HashMap;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// To find room for another file, at most so many blocks go: most files have one block.
const FILE_ROOM_BLOCKS: usize = 64;

pub use self::loan::{FileLoan, LENT_MAX};

/// The bounds of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes, in pages.
    pub capacity: u64,
    /// Files that have a descriptor of their own: large ones, and those that were ever lent.
    pub files: usize,
    /// Makes a container's queue, which says which block goes first: [`S3Fifo::queue`](crate::S3Fifo::queue), for the reasons in
    /// docs/design/cache.md.
    pub policy: fn() -> Box<dyn Policy>,
}

struct File<F> {
    version: Version,
    memory: F,
    blocks: BTreeMap<BlockIndex, u32>,
    /// How often it is lent.
    lent: usize,
    /// At whose expense: the place of whoever was lent it first.
    borrower: u32,
    /// It was lent once: a borrower may have a mapping that nobody hears of. So nothing of it is freed but the whole, by dropping it.
    sealed: bool,
    /// It has a descriptor of its own.
    is_wide: bool,
    /// It was invalidated while it was lent: nobody finds it, and it goes when it comes back.
    doomed: bool,
    /// Blocks that a queue (of the container at a place) has chosen meanwhile.
    waiting: Vec<(u32, u32)>,
}

#[derive(Debug)]
struct Block {
    file: u32,
    index: BlockIndex,
    /// What it takes, in bytes of whole pages.
    bytes: u64,
    /// Of its data; in debug builds only.
    sum: u64,
    users: Users,
}

/// A cache.
pub struct Store<M: Memory> {
    config: Config,
    /// Bytes that there is memory for.
    ceiling: u64,
    memory: M,
    objects: HashMap<Object, SmallVec<[u32; 1]>>,
    files: Slab<File<M::File>>,
    /// Those with a descriptor of their own.
    wide: usize,
    blocks: Slab<Block>,
    /// By place, as `counts`.
    queues: Vec<Box<dyn Policy>>,
    counts: Vec<Counts>,
    all: Counts,
    shares: Shares,
    fills: Fills,
    size: u64,
    lent: u64,
    /// Parts of that, by place.
    borrowed: Vec<u64>,
}

impl<M: Memory> Store<M> {
    /// An empty one.
    pub fn new(config: Config, memory: M) -> Self {
        Self {
            config,
            ceiling: u64::MAX,
            memory,
            objects: HashMap::new(),
            files: Slab::new(),
            wide: 0,
            blocks: Slab::new(),
            queues: vec![(config.policy)()],
            counts: vec![Counts::default()],
            all: Counts::default(),
            shares: Shares::default(),
            fills: Fills::default(),
            size: 0,
            lent: 0,
            borrowed: vec![0],
        }
    }

    /// It may hold so many bytes, if those are more than so far.
    pub fn grow(&mut self, capacity: u64) {
        self.config.capacity = self.config.capacity.max(capacity);
    }

    /// Bytes that it holds, in pages.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// A further container, with its weight.
    pub fn join(&mut self, weight: u32) -> Result<Container> {
        let container = self.shares.join(weight)?;
        let place = self.shares.place(container)? as usize;
        if place >= self.queues.len() {
            self.queues.resize_with(place + 1, || (self.config.policy)());
            self.counts.resize(place + 1, Counts::default());
            self.borrowed.resize(place + 1, 0);
        }
        Ok(container)
    }

    /// Another weight for a container. Nothing goes at once: shares follow as blocks come.
    pub fn set_weight(&mut self, container: Container, weight: u32) -> Result<()> {
        self.shares.set_weight(container, weight)
    }

    /// A container leaves. What it alone has used stays until room is needed, but goes before all else; so it is still there for
    /// a container that begins soon. Takes time in proportion to the blocks that it uses and to the files in the cache.
    pub fn leave(&mut self, container: Container) -> Result<()> {
        let place = self.shares.place(container)?;
        let Some(queue) = self.queues.get_mut(place as usize) else { return Err(Error::NoContainer) };
        let mut queue = std::mem::replace(queue, (self.config.policy)());
        // As it would have given them up, so that the order stays.
        while let Some(id) = queue.victim() {
            let print = self.print(id);
            if self.drop_user(id, place)
                && let Some(nobody) = self.queues.get_mut(NOBODY as usize)
            {
                let entry = Some(nobody.insert(id, print));
                self.make_ownerless(id, entry);
            }
        }
        // Blocks that wait for the return of their file: from now on for nobody.
        let lent = self.files.iter().filter(|(_, file)| file.lent > 0).map(|(id, _)| id);
        for file in lent.collect::<Vec<usize>>() {
            let mut waiting =
                self.files.get_mut(file).map(|file| std::mem::take(&mut file.waiting)).unwrap_or_default();
            for (id, place_of) in &mut waiting {
                if *place_of == place && self.drop_user(*id, place) {
                    *place_of = NOBODY;
                    self.make_ownerless(*id, None);
                }
            }
            if let Some(file) = self.files.get_mut(file) {
                file.waiting = waiting;
            }
        }
        if let Some(counts) = self.counts.get_mut(place as usize) {
            *counts = Counts::default();
        }
        self.leave_loans(place);
        self.shares.leave(place);
        Ok(())
    }

    /// A container no longer uses a block. Whether it was the last one that did.
    fn drop_user(&mut self, id: u32, place: u32) -> bool {
        self.blocks.get_mut(id as usize).is_some_and(|block| {
            block.users.leave(place, block.bytes, &mut self.shares).is_some() && block.users.len() == 0
        })
    }

    fn make_ownerless(&mut self, id: u32, entry: Option<Handle>) {
        if let Some(block) = self.blocks.get_mut(id as usize) {
            block.users.join(User { place: NOBODY, entry }, block.bytes, &mut self.shares);
        }
    }

    /// Time goes on by a second.
    pub fn tick(&mut self) {
        self.shares.tick();
    }

    /// Reads from a block for a container, from `offset` in the block on; fewer bytes only at the end of the block. None: the block
    /// is not there.
    pub fn read(
        &mut self,
        key: Key,
        index: BlockIndex,
        container: Container,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Option<usize>> {
        let place = self.shares.place(container)?;
        let Some(id) = self.find(key, index) else {
            self.count(place, |counts| counts.misses += 1);
            return Ok(None);
        };
        if cfg!(debug_assertions) {
            self.verify(id)?;
        }
        let Some((_, file)) = self.block_and_file(id) else { return Ok(None) };
        let len = file.version.block_len(index).saturating_sub(offset).min(buf.len() as u64);
        let buf = buf.get_mut(..usize::try_from(len).unwrap_or(0)).unwrap_or_default();
        if !buf.is_empty() {
            self.memory.read(&file.memory, buf, index.0 * BLOCK_BYTES + offset)?;
        }
        let len = buf.len();
        self.count(place, |counts| counts.hits += 1);
        self.uses(id, place);
        Ok(Some(len))
    }

    /// A container has used a block, if it is still there: told later, and counted elsewhere.
    pub(crate) fn record_use(&mut self, key: Key, index: BlockIndex, container: Container) {
        if let (Ok(place), Some(id)) = (self.shares.place(container), self.find(key, index)) {
            self.uses(id, place);
        }
    }

    /// The memory of these contents, where some of them is there.
    pub(crate) fn memory_of(&self, version: Version) -> Option<&M::File> {
        let file = self.files.get(self.file_of(version.key)? as usize)?;
        (file.version == version).then_some(&file.memory)
    }

    /// A container has used something without the store.
    pub(crate) fn used(&mut self, container: Container) {
        if let Ok(place) = self.shares.place(container) {
            self.shares.used(place);
        }
    }

    /// Whether a block is there. Counts for nothing.
    #[must_use]
    pub fn contains(&self, key: Key, index: BlockIndex) -> bool {
        self.find(key, index).is_some()
    }

    /// A fetch of a block begins. None: too many are under way, or the file has no such block; then what is fetched is not cached.
    pub fn begin(&mut self, version: Version, index: BlockIndex) -> Option<Fill> {
        if version.block_len(index) == 0 {
            return None;
        }
        self.fills.begin(version, index)
    }

    /// A fetch has failed.
    pub fn abandon(&mut self, fill: Fill) {
        self.fills.end(&fill);
    }

    /// What has been fetched, for a container. False: it was not taken, because it was invalidated meanwhile, or because there is no
    /// room that could be made.
    pub fn insert(&mut self, fill: Fill, container: Container, data: &[u8]) -> Result<bool> {
        let valid = self.fills.end(&fill);
        let place = self.shares.place(container)?;
        let Fill { version, index, .. } = fill;
        if data.len() as u64 != version.block_len(index) {
            return Err(Error::Length);
        }
        if !valid {
            return Ok(false);
        }
        self.shares.used(place);
        if let Some(id) = self.find(version.key, index) {
            self.uses(id, place);
            return Ok(true);
        }
        let bytes = charged(data.len() as u64);
        if bytes > self.bound() || !self.make_room(place, bytes)? {
            return Ok(false);
        }
        let Some(file) = self.file_for(version, place, bytes)? else { return Ok(false) };
        let id = self.put(file, index, data);
        self.end_if_empty(file);
        let id = id?;
        self.uses(id, place);
        Ok(true)
    }

    /// Nothing of a file is found any more, nor comes in by fetches that are under way.
    pub fn invalidate(&mut self, object: Object) {
        self.fills.invalidate(object, None);
        for file in self.objects.get(&object).cloned().unwrap_or_default() {
            self.end(file);
        }
    }

    /// Nothing of these contents is found any more, nor comes in by fetches that are under way.
    pub fn invalidate_version(&mut self, key: Key) {
        self.fills.invalidate(key.object, Some(key.version));
        if let Some(file) = self.file_of(key) {
            self.end(file);
        }
    }

    fn count(&mut self, place: u32, count: impl Fn(&mut Counts)) {
        count(&mut self.all);
        if let Some(counts) = self.counts.get_mut(place as usize) {
            count(counts);
        }
        self.shares.used(place);
    }

    fn file_of(&self, key: Key) -> Option<u32> {
        let has_key = |id: &&u32| self.files.get(**id as usize).is_some_and(|file| file.version.key == key);
        self.objects.get(&key.object)?.iter().find(has_key).copied()
    }

    fn find(&self, key: Key, index: BlockIndex) -> Option<u32> {
        self.files.get(self.file_of(key)? as usize)?.blocks.get(&index).copied()
    }

    fn block_and_file(&self, id: u32) -> Option<(&Block, &File<M::File>)> {
        let block = self.blocks.get(id as usize)?;
        Some((block, self.files.get(block.file as usize)?))
    }

    fn print(&self, id: u32) -> u64 {
        self.block_and_file(id).map_or(0, |(block, file)| file.version.key.print(block.index))
    }

    fn bytes_of(&self, file: u32) -> u64 {
        let blocks = self.files.get(file as usize).into_iter().flat_map(|file| file.blocks.values());
        blocks.filter_map(|id| self.blocks.get(*id as usize)).map(|block| block.bytes).sum()
    }

    /// Compares a block with what was written. What has changed is found no more.
    fn verify(&mut self, id: u32) -> Result<()> {
        let Some((block, file)) = self.block_and_file(id) else { return Ok(()) };
        let mut data = vec![0; usize::try_from(file.version.block_len(block.index)).unwrap_or(0)];
        self.memory.read(&file.memory, &mut data, block.index.0 * BLOCK_BYTES)?;
        if sum(&data) == block.sum {
            return Ok(());
        }
        let (file, lent) = (block.file, file.lent > 0);
        if lent {
            self.end(file)
        } else {
            self.drop_block(id)?
        }
        Err(Error::Damaged)
    }

    /// A container uses a block: a mark in its queue, or its place there and its part of the price, unless too many others pay.
    fn uses(&mut self, id: u32, place: u32) {
        let print = self.print(id);
        let Self { blocks, queues, shares, .. } = self;
        let Some(block) = blocks.get_mut(id as usize) else { return };
        let Some(queue) = queues.get_mut(place as usize) else { return };
        if let Some(user) = block.users.get_mut(place) {
            if let Some(entry) = user.entry {
                queue.hit(entry);
            }
            return;
        }
        let drawn = block.users.draw(print);
        if drawn == Admission::None {
            return;
        }
        let entry = Some(queue.insert(id, print));
        if let Admission::Of(other) = drawn
            && let Some(User { entry: Some(entry), .. }) = block.users.leave(other, block.bytes, shares)
            && let Some(queue) = queues.get_mut(other as usize)
        {
            queue.remove(entry);
        }
        block.users.join(User { place, entry }, block.bytes, shares);
        if let Some(User { entry: Some(entry), .. }) = block.users.leave(NOBODY, block.bytes, shares)
            && let Some(queue) = queues.get_mut(NOBODY as usize)
        {
            queue.remove(entry);
        }
    }

    /// A block stands in a container's queue again, as a new one, if the container still uses it and it does not stand there.
    fn queue_again(&mut self, id: u32, place: u32) {
        let print = self.print(id);
        let user = self.blocks.get_mut(id as usize).and_then(|block| block.users.get_mut(place));
        if let (Some(user), Some(queue)) =
            (user.filter(|user| user.entry.is_none()), self.queues.get_mut(place as usize))
        {
            user.entry = Some(queue.insert(id, print));
        }
    }

    /// The file of some contents, which may be new. None: there are too many.
    fn file_for(&mut self, version: Version, asking: u32, bytes: u64) -> Result<Option<u32>> {
        if let Some(id) = self.file_of(version.key) {
            let same = self.files.get(id as usize).is_some_and(|file| file.version == version);
            return if same { Ok(Some(id)) } else { Err(Error::Length) };
        }
        let is_wide = !self.memory.is_shared(version.size);
        for _ in 0..FILE_ROOM_BLOCKS {
            if !is_wide || self.wide < self.config.files || !self.evict_one(asking, bytes)? {
                break;
            }
        }
        if is_wide && self.wide >= self.config.files {
            return Ok(None);
        }
        let memory = self.memory.create(version)?;
        self.wide += usize::from(is_wide);
        let file = File {
            version,
            memory,
            blocks: BTreeMap::new(),
            lent: 0,
            borrower: NOBODY,
            sealed: false,
            is_wide,
            doomed: false,
            waiting: vec![],
        };
        let Ok(id) = u32::try_from(self.files.insert(file)) else { return Ok(None) };
        self.objects.entry(version.key.object).or_default().push(id);
        Ok(Some(id))
    }

    /// A block that nobody uses yet, and nobody pays for.
    fn put(&mut self, file_id: u32, index: BlockIndex, data: &[u8]) -> Result<u32> {
        let Some(file) = self.files.get_mut(file_id as usize) else { return Err(Error::Length) };
        let bytes = charged(data.len() as u64);
        let offset = index.0 * BLOCK_BYTES;
        if let Err(error) = self.memory.write(&file.memory, data, offset) {
            // Pages of it may have been taken. Where they cannot be freed either, they go with the file.
            self.memory.release(&file.memory, offset, bytes).ok();
            return Err(error.into());
        }
        let sum = if cfg!(debug_assertions) { sum(data) } else { 0 };
        let block = Block { file: file_id, index, bytes, sum, users: Users::default() };
        let id = u32::try_from(self.blocks.insert(block)).unwrap_or(u32::MAX);
        file.blocks.insert(index, id);
        self.size += bytes;
        Ok(id)
    }

    /// A block of a file that is not lent goes; of one that ever was, all of it. After an error it is still there.
    fn drop_block(&mut self, id: u32) -> Result<()> {
        let Some(block) = self.blocks.get(id as usize) else { return Ok(()) };
        let (file_id, index, bytes) = (block.file, block.index, block.bytes);
        let Some(file) = self.files.get_mut(file_id as usize) else { return Ok(()) };
        debug_assert_eq!(file.lent, 0, "what is lent stays");
        if file.sealed {
            self.end(file_id);
            return Ok(());
        }
        // The memory of a file's last block goes with the file.
        if file.blocks.len() > 1 {
            self.memory.release(&file.memory, index.0 * BLOCK_BYTES, bytes)?;
        }
        file.blocks.remove(&index);
        self.forget_block(id);
        self.end_if_empty(file_id);
        Ok(())
    }

    /// A block's users no longer pay for it, and it stands in no queue.
    fn forget_block(&mut self, id: u32) {
        let Some(block) = self.blocks.try_remove(id as usize) else { return };
        block.users.refund(block.bytes, &mut self.shares);
        for user in block.users.iter() {
            if let (Some(entry), Some(queue)) = (user.entry, self.queues.get_mut(user.place as usize)) {
                queue.remove(entry);
            }
        }
        self.size = self.size.saturating_sub(block.bytes);
    }

    fn end_if_empty(&mut self, file: u32) {
        if self.files.get(file as usize).is_some_and(|file| file.blocks.is_empty()) {
            self.end(file);
        }
    }

    /// A file is found no more. It goes at once, or when it comes back.
    fn end(&mut self, id: u32) {
        let Some(file) = self.files.get_mut(id as usize) else { return };
        file.doomed = true;
        let (object, lent) = (file.version.key.object, file.lent > 0);
        if lent {
            self.memory.hide(&file.memory);
        }
        if let Some(ids) = self.objects.get_mut(&object) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.objects.remove(&object);
            }
        }
        if !lent {
            self.free(id);
        }
    }

    fn free(&mut self, id: u32) {
        let Some(file) = self.files.try_remove(id as usize) else { return };
        self.memory.hide(&file.memory);
        self.wide = self.wide.saturating_sub(usize::from(file.is_wide));
        for block in file.blocks.into_values() {
            self.forget_block(block);
        }
    }
}
