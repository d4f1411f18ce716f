//! A tree in a store: in memory, with all changes on their way to the store in their order.

use super::contents::FileData;
use super::inode_format::{groups, inodes_of};
use crate::tree::{Body, Options, State};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_vfs::{Errno, Error, Result, Timestamp};
use vellum_zoned::store::{self, NodeTime, Store, TreeChange};

/// How long a change may wait before it is made durable although nobody has asked for that.
const PERIOD: Duration = Duration::from_secs(5);
/// Numbers of inodes that are fetched from the store at once, and how few must be left.
const NUMBERS: u64 = 256;
const NUMBERS_LEAST: u64 = 4;
/// Room in the store that is counted on without asking again, in blocks.
const ROOM_MAX: u64 = 4096;
/// Blocks that wait in memory at most, of all files together.
const WAITING_MAX: u64 = 16 << 10;

/// The tree of files in a store.
///
/// Changes of the tree are in memory, and with the store, when a call returns. Contents wait in memory: at
/// most 1 MiB of a file, and not longer than some seconds if [`start_flush_thread`](Self::start_flush_thread)
/// was asked for. A sync of a file makes it durable, with its names, and with it all changes of the tree that
/// were made before.
pub struct ZonedTree {
    store: Store,
    block: u64,
    state: Mutex<State<Arc<FileData>>>,
    /// Changes that were made, but are not with the store, each group of them whole.
    queue: Mutex<VecDeque<Vec<TreeChange>>>,
    /// Held by whoever brings them there, so that they keep their order.
    bringing: Mutex<()>,
    /// Files with something that waits.
    dirty: Mutex<BTreeMap<u64, Arc<FileData>>>,
    /// Blocks that may still be added to those that wait without asking the store.
    room: AtomicU64,
    /// Held by whoever asks the store for that.
    asking: Mutex<()>,
    /// Blocks that wait.
    waiting: AtomicU64,
    /// Whether the thread that writes is to end.
    ending: Arc<(Mutex<bool>, Condvar)>,
}

pub(super) fn failed(error: store::Error) -> Error {
    Error::new(error.errno(), "zoned store")
}

/// The time.
fn clock(_ticks: u64) -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// A number that stands for the filesystem: of the store's, in which no disk has a number.
fn device_number(uuid: [u8; 16]) -> u64 {
    let [a, b, c, d, ..] = uuid;
    rustix::fs::makedev(0xfff, u32::from_le_bytes([a, b, c, d]) & 0xf_ffff)
}

impl ZonedTree {
    /// The tree of a store; a store that has none gets an empty one. Nobody else may change the store's tree.
    pub fn open(store: Store) -> Result<Arc<Self>> {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let now = clock(0);
        let dump = store.tree(owner, NodeTime { secs: now.secs, nanos: now.nanos }).map_err(failed)?;
        let block = u64::from(store.block_size());
        let dev = device_number(store.stats().uuid);
        let mut state = State::empty(dev, Options { owner, ..Options::default() }, clock);
        state.numbers = 0..0;
        let unlinked = inodes_of(dump, block, &mut state.inodes);
        state.touched.is_kept = true;
        for node in unlinked {
            store.change_tree(vec![TreeChange::Drop(node)]).map_err(failed)?;
        }
        Ok(Arc::new(Self {
            store,
            block,
            state: Mutex::new(state),
            queue: Mutex::default(),
            bringing: Mutex::default(),
            dirty: Mutex::default(),
            room: AtomicU64::new(0),
            asking: Mutex::default(),
            waiting: AtomicU64::new(0),
            ending: Arc::default(),
        }))
    }

    /// Makes everything durable every few seconds from now on, until the tree is dropped, in a thread of its own.
    pub fn start_flush_thread(self: &Arc<Self>) -> Result<()> {
        let (tree, ending) = (Arc::downgrade(self), Arc::clone(&self.ending));
        let thread = std::thread::Builder::new().name("zoned-writer".to_owned());
        thread.spawn(move || write_on(&tree, &ending)).map(drop).map_err(|error| {
            Error::new(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN), "start a thread")
        })
    }

    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    pub(super) const fn block(&self) -> u64 {
        self.block
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        let written = self.write_out();
        self.release_reservation();
        self.sync_store()?;
        written
    }

    /// Brings everything to the store.
    fn write_out(&self) -> Result<()> {
        let later: Vec<u64> = self.state.lock().touched.later.iter().copied().collect();
        for ino in later {
            self.note_inode(ino);
        }
        self.write_changes()?;
        let dirty: Vec<(u64, Arc<FileData>)> =
            self.dirty.lock().iter().map(|(ino, data)| (*ino, Arc::clone(data))).collect();
        let mut result = Ok(());
        for (ino, data) in dirty {
            match data.write_out(self, ino) {
                // It was removed meanwhile.
                Err(error) if error.errno() == Errno::NOENT => self.is_clean(ino),
                Err(error) => result = Err(error),
                Ok(()) => {}
            }
        }
        result
    }

    pub(super) fn sync_store(&self) -> Result<()> {
        self.store.sync().map_err(failed)
    }

    /// Looks at the state, or changes it; what was changed is with the store then.
    pub(super) fn act<R>(
        &self,
        act: impl FnOnce(&mut State<Arc<FileData>>) -> Result<R, Errno>,
    ) -> Result<R> {
        let mut state = self.state.lock();
        let result = act(&mut state);
        let gone = self.note(&mut state);
        drop(state);
        if let Some(gone) = gone {
            gone.into_iter().for_each(|ino| self.forget(ino));
            self.write_changes()?;
        }
        Ok(result?)
    }

    /// As [`act`](Self::act), where something may be made.
    pub(super) fn make<R>(
        &self,
        act: impl FnOnce(&mut State<Arc<FileData>>) -> Result<R, Errno>,
    ) -> Result<R> {
        self.store.check_room().map_err(failed)?;
        self.act(|state| {
            if state.numbers.end - state.numbers.start < NUMBERS_LEAST {
                let first = self.store.new_numbers(NUMBERS);
                state.numbers = first..first.saturating_add(NUMBERS);
            }
            act(state)
        })
    }

    /// Puts what was changed into the queue. The inodes that are no more; None: nothing was changed.
    fn note(&self, state: &mut State<Arc<FileData>>) -> Option<Vec<u64>> {
        if state.touched.is_empty() {
            return None;
        }
        let (changes, gone) = groups(state);
        self.queue.lock().push_back(changes);
        Some(gone)
    }

    /// Brings all changes that were made to the store.
    pub(super) fn write_changes(&self) -> Result<()> {
        let _bringing = self.bringing.lock();
        loop {
            let batch = std::mem::take(&mut *self.queue.lock());
            if batch.is_empty() {
                return Ok(());
            }
            let mut result = Ok(());
            for group in batch {
                // Each of them, whatever became of those before: a commit that failed is no reason to leave one out.
                result = result.and(self.store.change_tree(group).map_err(failed));
            }
            result?;
        }
    }

    /// An inode's times, and what a write takes away, are to be written down.
    fn note_inode(&self, ino: u64) {
        let mut state = self.state.lock();
        if state.touched.later.contains(&ino) {
            // It is looked for among those that were touched, and so is this one.
            let _ = state.inode_mut(ino).map(drop);
            self.note(&mut state);
        }
    }

    /// What was not written down of an inode is with the store then, and everything that came before.
    pub(super) fn write_inode(&self, ino: u64) -> Result<()> {
        self.note_inode(ino);
        self.write_changes()
    }

    /// A file is being changed.
    pub(super) fn modify(&self, ino: u64) -> Result<()> {
        Ok(self.state.lock().modify(ino)?)
    }

    /// One more block waits. ENOSPC: the store has no room for it.
    pub(super) fn add_pending(&self, ino: u64, data: &Arc<FileData>) -> Result<()> {
        while !self.take_reserved_block() {
            let _asking = self.asking.lock();
            // Somebody else may just have asked.
            if self.room.load(Ordering::Relaxed) == 0 {
                let room = self.store.reserve_blocks(self.waiting_blocks(), ROOM_MAX);
                if room == 0 {
                    return Err(Error::new(Errno::NOSPC, "zoned store"));
                }
                self.room.store(room, Ordering::Relaxed);
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.is_dirty(ino, data);
        Ok(())
    }

    /// No more is promised than what waits.
    fn release_reservation(&self) {
        let _asking = self.asking.lock();
        self.room.store(0, Ordering::Relaxed);
        let _ = self.store.reserve_blocks(self.waiting_blocks(), 0);
    }

    fn take_reserved_block(&self) -> bool {
        let less = |room: u64| room.checked_sub(1);
        self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Writes out what waits if it is much. Nobody holds the contents of a file.
    pub(super) fn flush_excess(&self) -> Result<()> {
        if self.waiting_blocks() >= WAITING_MAX { self.write_out() } else { Ok(()) }
    }

    pub(super) fn subtract_pending(&self, blocks: usize) {
        self.waiting.fetch_sub(blocks as u64, Ordering::Relaxed);
    }

    /// Blocks that wait in memory.
    #[must_use]
    pub fn waiting_blocks(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn is_dirty(&self, ino: u64, data: &Arc<FileData>) {
        if !data.set_dirty(true) {
            self.dirty.lock().insert(ino, Arc::clone(data));
        }
    }

    pub(super) fn is_clean(&self, ino: u64) {
        self.dirty.lock().remove(&ino);
    }

    /// A file is no more.
    fn forget(&self, ino: u64) {
        let dirty = self.dirty.lock().remove(&ino);
        if let Some(data) = dirty {
            data.discard(self);
        }
    }

    /// The number of inodes.
    pub(super) fn inodes(&self) -> u64 {
        self.state.lock().inodes.len() as u64
    }

    /// Numbers that stand for the filesystem.
    pub(super) fn dev(&self) -> u64 {
        self.state.lock().dev
    }

    /// The regular file that a name leads to.
    pub(super) fn file_at(&self, dir: u64, name: vellum_vfs::Name<'_>) -> Option<(u64, Arc<FileData>)> {
        let state = self.state.lock();
        let ino = state.find(dir, name).ok()?;
        match &state.inodes.get(&ino)?.body {
            Body::Regular(data) => Some((ino, Arc::clone(data))),
            _ => None,
        }
    }
}

fn write_on(tree: &Weak<ZonedTree>, ending: &(Mutex<bool>, Condvar)) {
    loop {
        let mut is_ending = ending.0.lock();
        if !*is_ending {
            ending.1.wait_for(&mut is_ending, PERIOD);
        }
        if *is_ending {
            return;
        }
        drop(is_ending);
        let Some(tree) = tree.upgrade() else { return };
        // What cannot be written stays in memory, and whoever syncs hears of it; the store says it in the log.
        let _ = tree.sync();
    }
}

impl Drop for ZonedTree {
    fn drop(&mut self) {
        *self.ending.0.lock() = true;
        self.ending.1.notify_all();
        // Nobody is left to hear of it, and nobody has waited for it.
        let _ = self.sync();
    }
}
