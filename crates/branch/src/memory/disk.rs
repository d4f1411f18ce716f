//! The inodes of a disk in memory, its clock, and who holds what.

use super::data::{BLOCK, Data};
use super::power::History;
use crate::acl;
use crate::checks::{check_owner, check_times};
use crate::xattr::CAPABILITY;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use vellum_vfs::{Attr, Errno, FileKind, SetTime, Timestamp};

/// The inode number of a disk's root.
pub(super) const ROOT: u64 = 2;

/// Size in bytes that a directory shows.
const DIR_SIZE: u64 = BLOCK;

/// What a disk can do.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Files can share blocks (reflink).
    pub reflink: bool,
    /// Files without a name can be made.
    pub unnamed: bool,
    /// Reserved blocks count as data once they were read, as on ext4, where their zeros are in the page cache then.
    pub page_cache: bool,
    /// Whiteouts by rename are known.
    pub rename_whiteout: bool,
    /// Two names can change places.
    pub exchange: bool,
    /// Device nodes can be made; a process without privilege cannot.
    pub devices: bool,
    /// Attributes `trusted.*` can be set; a process without privilege cannot.
    pub trusted: bool,
    /// Longest name in bytes.
    pub name_max: usize,
    /// Owner and group of what is created.
    pub owner: (u32, u32),
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            reflink: false,
            unnamed: true,
            page_cache: false,
            rename_whiteout: true,
            exchange: true,
            devices: true,
            trusted: true,
            name_max: 255,
            owner: (0, 0),
        }
    }
}

#[derive(Clone)]
pub(super) enum Body {
    Regular(Data),
    Directory { entries: BTreeMap<Vec<u8>, u64>, parent: u64 },
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone)]
pub(super) struct Inode {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    pub(super) rdev: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) btime: Timestamp,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) body: Body,
    /// Made without a name, and never had one: may still get one.
    pub(super) linkable: bool,
    /// Holders outside the tree.
    pins: u32,
    /// Those of them that may write.
    pub(super) writers: u32,
}

impl Inode {
    pub(super) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// The entries of a directory. ENOTDIR.
    pub(super) fn entries(&self) -> Result<&BTreeMap<Vec<u8>, u64>, Errno> {
        match &self.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The contents of a regular file. EISDIR, ELOOP or ENXIO.
    pub(super) fn data(&self) -> Result<&Data, Errno> {
        match &self.body {
            Body::Regular(data) => Ok(data),
            other => Err(not_regular(other)),
        }
    }

    pub(super) fn data_mut(&mut self) -> Result<&mut Data, Errno> {
        match &mut self.body {
            Body::Regular(data) => Ok(data),
            other => Err(not_regular(other)),
        }
    }

    /// Data has changed: times, and file capabilities go.
    pub(super) fn modified(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
        self.drop_capability();
    }

    /// File capabilities do not outlive a change; an empty attribute counts as none.
    fn drop_capability(&mut self) {
        if self.xattrs.get(CAPABILITY.to_bytes()).is_some_and(|value| !value.is_empty()) {
            self.xattrs.remove(CAPABILITY.to_bytes());
        }
    }
}

const fn not_regular(body: &Body) -> Errno {
    match body {
        Body::Directory { .. } => Errno::ISDIR,
        Body::Symlink(_) => Errno::LOOP,
        _ => Errno::NXIO,
    }
}

/// Everything on a disk.
#[derive(Clone)]
pub(super) struct State {
    pub(super) inodes: HashMap<u64, Inode>,
    next_ino: u64,
    /// Ticks of the logical clock; every change takes one.
    pub(super) ticks: u64,
    pub(super) dev: u64,
    pub(super) options: MemoryOptions,
}

impl State {
    fn new(dev: u64, options: MemoryOptions) -> Self {
        let mut state = Self { inodes: HashMap::new(), next_ino: ROOT + 9, ticks: 0, dev, options };
        let mut root = state.fresh(FileKind::Directory.mode_bits() | 0o755);
        root.body = Body::Directory { entries: BTreeMap::new(), parent: ROOT };
        root.nlink = 2;
        state.inodes.insert(ROOT, root);
        state
    }

    /// A moment later than every one before: one microsecond a tick.
    pub(super) fn now(&mut self) -> Timestamp {
        const START_SECS: i64 = 1_600_000_000;
        const TICKS_A_SECOND: u64 = 1_000_000;
        self.ticks += 1;
        Timestamp {
            secs: START_SECS + (self.ticks / TICKS_A_SECOND).cast_signed(),
            nanos: (self.ticks % TICKS_A_SECOND) as u32 * 1000,
        }
    }

    /// An inode without links, owned by whom the disk says.
    pub(super) fn fresh(&mut self, mode: u32) -> Inode {
        let now = self.now();
        let (uid, gid) = self.options.owner;
        Inode {
            mode,
            uid,
            gid,
            nlink: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: BTreeMap::new(),
            body: Body::Special,
            linkable: false,
            pins: 0,
            writers: 0,
        }
    }

    pub(super) fn add(&mut self, inode: Inode) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    /// ESTALE cannot happen while somebody holds it; it is here so that nothing panics.
    pub(super) fn inode(&self, ino: u64) -> Result<&Inode, Errno> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    pub(super) fn inode_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    /// Changes an inode; its ctime becomes now.
    pub(super) fn change(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        let now = self.now();
        let inode = self.inode_mut(ino)?;
        inode.ctime = now;
        Ok(inode)
    }

    /// Nobody holds anything any more.
    fn forget_holders(&mut self) {
        self.inodes.retain(|_, inode| inode.nlink > 0);
        for inode in self.inodes.values_mut() {
            (inode.pins, inode.writers) = (0, 0);
        }
    }

    /// Removes an inode that nothing leads to any more.
    pub(super) fn reap(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.pins == 0) {
            self.inodes.remove(&ino);
        }
    }

    pub(super) fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let inode = self.inode(ino)?;
        let (size, blocks) = match &inode.body {
            Body::Regular(data) => (data.size(), data.allocated() * (BLOCK / 512)),
            Body::Directory { .. } => (DIR_SIZE, DIR_SIZE / 512),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Ok(Attr {
            ino,
            dev: self.dev,
            size,
            blocks,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            blksize: BLOCK as u32,
        })
    }

    pub(super) fn set_mode(&mut self, ino: u64, mode: u32) -> Result<(), Errno> {
        if self.inode(ino)?.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = self.change(ino)?;
        inode.mode = (inode.mode & !0o7777) | (mode & 0o7777);
        if let Some(value) = inode.xattrs.get_mut(acl::ACCESS)
            && let Ok(Some(mut list)) = acl::Acl::parse(value)
        {
            list.set_mode(mode);
            *value = list.encode();
        }
        Ok(())
    }

    pub(super) fn set_owner(&mut self, ino: u64, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        check_owner(uid, gid)?;
        let inode = self.change(ino)?;
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        if !inode.is_dir() {
            inode.mode &= !0o4000;
            if inode.mode & 0o010 != 0 {
                inode.mode &= !0o2000;
            }
            inode.drop_capability();
        }
        Ok(())
    }

    pub(super) fn set_times(
        &mut self,
        ino: u64,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<(), Errno> {
        check_times(atime, mtime)?;
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let inode = self.change(ino)?;
        let now = inode.ctime;
        let pick = |time, old| match time {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::At(at)) => storable(at),
        };
        inode.atime = pick(atime, inode.atime);
        inode.mtime = pick(mtime, inode.mtime);
        Ok(())
    }
}

/// The nearest time that ext4's 34 bits can hold.
fn storable(at: Timestamp) -> Timestamp {
    const FIRST: i64 = -(1 << 31);
    const LAST: i64 = (1 << 34) - 1 + FIRST;
    if at.secs <= FIRST {
        return Timestamp { secs: FIRST, nanos: 0 };
    }
    if at.secs >= LAST {
        return Timestamp { secs: LAST, nanos: 0 };
    }
    at
}

/// A disk, shared by all objects on it.
pub(super) struct Disk {
    state: Mutex<State>,
    /// What has happened since [`Disk::record`].
    history: Mutex<Option<History>>,
}

impl Disk {
    pub(super) fn new(dev: u64, options: MemoryOptions) -> Arc<Self> {
        Self::of(State::new(dev, options))
    }

    fn of(state: State) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), history: Mutex::default() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        // What the operation before this one has left.
        if let Some(history) = &mut *self.history.lock() {
            history.note(&state);
        }
        state
    }

    /// From now on every state is kept; all that is there now counts as durable.
    pub(super) fn record(&self) {
        let state = self.state.lock();
        *self.history.lock() = Some(History::new(&state));
    }

    /// A file has been made durable, or (`datasync`) its data have.
    pub(super) fn synced(&self, ino: u64, datasync: bool) {
        drop(self.lock());
        if let Some(history) = &mut *self.history.lock() {
            history.synced(ino, datasync);
        }
    }

    /// Everything has been made durable.
    pub(super) fn synced_all(&self) {
        let all: Vec<u64> = self.lock().inodes.keys().copied().collect();
        if let Some(history) = &mut *self.history.lock() {
            all.into_iter().for_each(|ino| history.synced(ino, false));
        }
    }

    /// The number of the newest state that was recorded.
    pub(super) fn moment(&self) -> usize {
        drop(self.lock());
        self.history.lock().as_ref().map_or(0, History::now)
    }

    /// What a loss of power at or after the state numbered `earliest` might leave. None: nothing was recorded.
    pub(super) fn after_power_loss(
        &self,
        earliest: usize,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Option<Arc<Self>> {
        drop(self.lock());
        let mut state = self.history.lock().as_ref()?.after_power_loss(earliest, choose);
        state.forget_holders();
        Some(Self::of(state))
    }

    /// What a machine would find after a crash: the same, and nobody holds anything.
    pub(super) fn fork(&self) -> Arc<Self> {
        let mut state = self.lock().clone();
        state.forget_holders();
        Self::of(state)
    }
}

/// A held inode: it stays while this lives, with or without a name.
pub(super) struct Pin {
    pub(super) disk: Arc<Disk>,
    pub(super) ino: u64,
}

impl Pin {
    /// Holds an inode. The disk is locked by the caller, who has found the number on it.
    pub(super) fn new(disk: &Arc<Disk>, state: &mut State, ino: u64) -> Result<Self, Errno> {
        state.inode_mut(ino)?.pins += 1;
        Ok(Self { disk: Arc::clone(disk), ino })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.disk.lock();
        if let Ok(inode) = state.inode_mut(self.ino) {
            inode.pins = inode.pins.saturating_sub(1);
        }
        state.reap(self.ino);
    }
}
