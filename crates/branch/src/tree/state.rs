//! The inodes of a tree, its clock, and how many hold what.

use super::change_set::{ChangeSet, Xattrs};
use crate::acl;
use crate::kernel_checks::{check_owner, check_times};
use crate::xattr::CAPABILITY;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use vellum_vfs::{Attr, Errno, FileKind, SetTime, Timestamp};

/// The inode number of the root.
pub(crate) const ROOT: u64 = 2;

/// Size in bytes that a directory shows.
const DIR_SIZE: u64 = 4096;
/// Preferred I/O size in bytes.
pub(crate) const IO_SIZE: u32 = 4096;

/// What a tree can do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
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

impl Default for Options {
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

/// The contents of a regular file.
pub(crate) trait Contents: Default {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Space that it takes, in units of 512 bytes.
    fn sectors(&self) -> u64;
}

#[derive(Clone)]
pub(crate) enum Body<D> {
    Regular(D),
    Directory { entries: BTreeMap<Vec<u8>, u64>, parent: u64 },
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone)]
pub(crate) struct Inode<D> {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
    pub(crate) xattrs: Xattrs,
    pub(crate) body: Body<D>,
    /// Made without a name, and never had one: may still get one.
    pub(crate) linkable: bool,
    /// Holders outside the tree.
    pub(crate) pins: u32,
    /// Those of them that may write.
    pub(crate) writers: u32,
}

impl<D> Inode<D> {
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// The entries of a directory. ENOTDIR.
    pub(crate) fn entries(&self) -> Result<&BTreeMap<Vec<u8>, u64>, Errno> {
        match &self.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The contents of a regular file. EISDIR, ELOOP or ENXIO.
    pub(crate) fn data(&self) -> Result<&D, Errno> {
        match &self.body {
            Body::Regular(data) => Ok(data),
            other => Err(not_regular(other)),
        }
    }

    pub(crate) fn data_mut(&mut self) -> Result<&mut D, Errno> {
        match &mut self.body {
            Body::Regular(data) => Ok(data),
            other => Err(not_regular(other)),
        }
    }

    /// Data has changed: times, and file capabilities go.
    pub(crate) fn modified(&mut self, now: Timestamp) {
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

const fn not_regular<D>(body: &Body<D>) -> Errno {
    match body {
        Body::Directory { .. } => Errno::ISDIR,
        Body::Symlink(_) => Errno::LOOP,
        _ => Errno::NXIO,
    }
}

/// Everything in a tree.
#[derive(Clone)]
pub(crate) struct State<D> {
    pub(crate) inodes: HashMap<u64, Inode<D>>,
    /// Numbers for new inodes.
    pub(crate) numbers: Range<u64>,
    /// Counts changes.
    pub(crate) ticks: u64,
    /// The time after so many changes.
    clock: fn(u64) -> Timestamp,
    pub(crate) dev: u64,
    pub(crate) options: Options,
    pub(crate) touched: ChangeSet,
}

/// One microsecond a change, from a moment that never changes on.
pub(crate) fn logical(ticks: u64) -> Timestamp {
    const START_SECS: i64 = 1_600_000_000;
    const TICKS_A_SECOND: u64 = 1_000_000;
    Timestamp {
        secs: START_SECS + (ticks / TICKS_A_SECOND).cast_signed(),
        nanos: (ticks % TICKS_A_SECOND) as u32 * 1000,
    }
}

impl<D> State<D> {
    /// No inodes yet, not even the root.
    pub(crate) fn empty(dev: u64, options: Options, clock: fn(u64) -> Timestamp) -> Self {
        let numbers = ROOT + 9..u64::MAX;
        let touched = ChangeSet::default();
        Self { inodes: HashMap::new(), numbers, ticks: 0, clock, dev, options, touched }
    }
}

impl<D: Contents> State<D> {
    /// With an empty root.
    pub(crate) fn new(dev: u64, options: Options) -> Self {
        let mut state = Self::empty(dev, options, logical);
        let mut root = state.new_inode(FileKind::Directory.mode_bits() | 0o755);
        root.body = Body::Directory { entries: BTreeMap::new(), parent: ROOT };
        root.nlink = 2;
        state.inodes.insert(ROOT, root);
        state
    }

    /// The moment of a change.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.ticks += 1;
        (self.clock)(self.ticks)
    }

    /// An inode without links, owned by whom the disk says.
    pub(crate) fn new_inode(&mut self, mode: u32) -> Inode<D> {
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
            xattrs: Xattrs::default(),
            body: Body::Special,
            linkable: false,
            pins: 0,
            writers: 0,
        }
    }

    /// ENOSPC: there are no numbers left.
    pub(crate) fn add(&mut self, inode: Inode<D>) -> Result<u64, Errno> {
        let ino = self.numbers.next().ok_or(Errno::NOSPC)?;
        self.inodes.insert(ino, inode);
        self.touched.note_created(ino);
        Ok(ino)
    }

    /// ESTALE cannot happen while somebody holds it; it is here so that nothing panics.
    pub(crate) fn inode(&self, ino: u64) -> Result<&Inode<D>, Errno> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    /// To be changed.
    pub(crate) fn inode_mut(&mut self, ino: u64) -> Result<&mut Inode<D>, Errno> {
        self.touched.inode(ino);
        self.holders_mut(ino)
    }

    /// For what is no part of the inode itself: its holders.
    pub(crate) fn holders_mut(&mut self, ino: u64) -> Result<&mut Inode<D>, Errno> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    /// Changes an inode; its ctime becomes now.
    pub(crate) fn change(&mut self, ino: u64) -> Result<&mut Inode<D>, Errno> {
        let now = self.now();
        let inode = self.inode_mut(ino)?;
        inode.ctime = now;
        Ok(inode)
    }

    /// The contents of a file are being changed; what that does to the inode may be written down later.
    pub(crate) fn modify(&mut self, ino: u64) -> Result<(), Errno> {
        let now = self.now();
        self.holders_mut(ino)?.modified(now);
        if self.touched.is_kept {
            self.touched.later.insert(ino);
        }
        Ok(())
    }

    /// Nobody holds anything any more.
    pub(crate) fn forget_holders(&mut self) {
        self.inodes.retain(|_, inode| inode.nlink > 0);
        for inode in self.inodes.values_mut() {
            (inode.pins, inode.writers) = (0, 0);
        }
    }

    /// Removes an inode that nothing leads to any more.
    pub(crate) fn reap(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.pins == 0) {
            self.inodes.remove(&ino);
            self.touched.note_removed(ino);
        }
    }

    pub(crate) fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let inode = self.inode(ino)?;
        let (size, blocks) = match &inode.body {
            Body::Regular(data) => (data.size(), data.sectors()),
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
            blksize: IO_SIZE,
        })
    }

    pub(crate) fn set_mode(&mut self, ino: u64, mode: u32) -> Result<(), Errno> {
        if self.inode(ino)?.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = self.change(ino)?;
        inode.mode = (inode.mode & !0o7777) | (mode & 0o7777);
        if let Some(value) = inode.xattrs.get(acl::ACCESS)
            && let Ok(Some(mut list)) = acl::Acl::parse(value)
        {
            list.set_mode(mode);
            inode.xattrs.insert(acl::ACCESS.to_vec(), list.encode());
        }
        Ok(())
    }

    pub(crate) fn set_owner(&mut self, ino: u64, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
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

    pub(crate) fn set_times(
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
