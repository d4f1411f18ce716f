//! Inodes, open files and listings of a client. Each holds its client and gives its own reference back.

use super::library::{Dir, Fh, Inode, Statx};
use super::{CephClient, Handle, SNAPSHOTS, stale_dirs};
use crate::stat::{Stat, Time};
use crate::stat_fs::FsStat;
use crate::sys::Result;
use rustix::io::Errno;
use std::ffi::{CStr, c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// CEPH_STATX_ALL_STATS without CEPH_STATX_VERSION.
const ATTRIBUTES: c_uint = 0x0fff;
/// CEPH_STATX_VERSION.
const VERSION: c_uint = 0x1000;
/// Most bytes of one read or write: the library counts in an int.
const STEP: usize = 1 << 30;

/// Calls a function on an inode: the client first, the identity last, its own arguments between.
macro_rules! on_inode {
    ($inode:expr, $function:ident $(, $argument:expr)*) => {{
        let (inode, client): (&CephInode, &CephClient) = ($inode, &$inode.client);
        #[allow(clippy::macro_metavars_in_unsafe, reason = "arguments are pointers and numbers, made in this module")]
        // SAFETY: the client is mounted and the inode referenced while `inode` lives. Arguments are names that end with NUL,
        // buffers with their lengths, inodes of this client, and places of ours for results.
        let code = unsafe {
            (client.library.$function)(client.mount.raw(), inode.raw.raw() $(, $argument)*, client.identity.raw())
        };
        client.outcome(code)
    }};
}

/// What is to change of an inode; None stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct CephChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of data.
    pub mtime: Option<Time>,
}

/// When the cluster is given changes of an inode. The library alone keeps data and attributes that it need not send yet for some seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// When the library likes to.
    Later,
    /// Before the call that makes a change returns.
    AtOnce,
    /// At once, but for data and size of files, and for what [`CephInode::set_lazily`] changes.
    AllButFiles,
}

/// An inode that is held: it stays when its names go. Those that are found in a directory are sent as that is.
pub struct CephInode {
    client: Arc<CephClient>,
    raw: Handle<Inode>,
    sending: WritePolicy,
}

impl Drop for CephInode {
    fn drop(&mut self) {
        // SAFETY: the reference that came with the inode is given back, once.
        unsafe { (self.client.library.ceph_ll_put)(self.client.mount.raw(), self.raw.raw()) };
    }
}

impl CephInode {
    /// What a call has handed out, with a reference.
    pub(super) fn new(client: &Arc<CephClient>, raw: *mut Inode, sending: WritePolicy) -> Result<Self> {
        Ok(Self { client: Arc::clone(client), raw: Handle::new(raw)?, sending })
    }

    /// The inode, with another time at which its changes are sent.
    #[must_use]
    pub const fn sent(mut self, sending: WritePolicy) -> Self {
        self.sending = sending;
        self
    }

    /// When the cluster is given changes of it.
    #[must_use]
    pub const fn sending(&self) -> WritePolicy {
        self.sending
    }

    /// The directory that it is in, and its attributes; of a file with several names, of one of them. An inode that is in none is answered
    /// with itself.
    pub fn parent(&self) -> Result<(Self, Stat)> {
        self.lookup(c"..")
    }

    /// What the library says of the snapshot that it is in.
    pub(super) fn snapshot(&self) -> Result<u64> {
        let mut stat = Statx::new();
        on_inode!(self, ceph_ll_getattr, &raw mut stat, ATTRIBUTES, 0)?;
        Ok(stat.dev)
    }

    /// The directory that has this directory's snapshots by their names.
    pub fn snapshots(&self) -> Result<Self> {
        Ok(self.lookup(SNAPSHOTS)?.0)
    }

    /// Whether both are of one client.
    #[must_use]
    pub fn has_same_client(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.client, &other.client)
    }

    fn stat_of(&self, stat: &Statx) -> Stat {
        let time =
            |at: libc::timespec| Time { secs: at.tv_sec, nanos: u32::try_from(at.tv_nsec).unwrap_or(0) };
        Stat {
            ino: stat.ino,
            dev: self.client.device_of(stat.dev),
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            blksize: stat.blksize,
            mode: stat.mode.into(),
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            atime: time(stat.atime),
            mtime: time(stat.mtime),
            ctime: time(stat.ctime),
            btime: time(stat.btime),
            mount: 0,
            subvolume: 0,
        }
    }

    /// What `name` leads to in this directory, not followed.
    pub fn lookup(&self, name: &CStr) -> Result<(Self, Stat)> {
        let (mut found, mut stat) = (ptr::null_mut(), Statx::new());
        on_inode!(self, ceph_ll_lookup, name.as_ptr(), &raw mut found, &raw mut stat, ATTRIBUTES, 0)?;
        let found = Self::new(&self.client, found, self.sending)?;
        let stat = if found.is_stale() { found.stat()? } else { self.stat_of(&stat) };
        Ok((found, stat))
    }

    /// Whether its attributes have to be asked for: a name was moved out of it.
    fn is_stale(&self) -> bool {
        self.client.left.last(self.raw.raw()).is_some()
    }

    /// Has the cluster say what its attributes are.
    fn request_attributes(&self) -> Result<()> {
        // Only that it answers is of use.
        let asked = on_inode!(self, ceph_ll_getxattr, stale_dirs::ASKS.as_ptr(), ptr::null_mut(), 0);
        match asked {
            Ok(_) | Err(Errno::NODATA) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Attributes.
    pub fn stat(&self) -> Result<Stat> {
        if let Some(time) = self.client.left.last(self.raw.raw()) {
            self.request_attributes()?;
            self.client.left.mark_fresh(self.raw.raw(), time);
        }
        let mut stat = Statx::new();
        on_inode!(self, ceph_ll_getattr, &raw mut stat, ATTRIBUTES, 0)?;
        Ok(self.stat_of(&stat))
    }

    /// Attributes, and a number that every change of the inode changes, by whatever client; None: the cluster does not say.
    pub fn stat_version(&self) -> Result<(Stat, Option<u64>)> {
        let mut stat = Statx::new();
        on_inode!(self, ceph_ll_getattr, &raw mut stat, ATTRIBUTES | VERSION, 0)?;
        Ok((self.stat_of(&stat), (stat.mask & VERSION != 0).then_some(stat.version)))
    }

    /// Changes attributes.
    pub fn set(&self, change: &CephChange) -> Result<()> {
        self.change(change)?;
        self.send()
    }

    /// Changes attributes of a file; with [`WritePolicy::AllButFiles`] the cluster is given them later.
    pub fn set_lazily(&self, change: &CephChange) -> Result<()> {
        self.change(change)?;
        self.send_lazily()
    }

    /// As [`CephInode::set_xattr`]; with [`WritePolicy::AllButFiles`] the cluster's answer is enough, and it may have it in memory only.
    pub fn set_xattr_lazily(&self, name: &CStr, value: &[u8], flags: c_int) -> Result<()> {
        self.change_xattr(name, Some(value), flags)?;
        self.send_lazily()
    }

    /// As [`CephInode::remove_xattr`], and as [`CephInode::set_xattr_lazily`].
    pub fn remove_xattr_lazily(&self, name: &CStr) -> Result<()> {
        self.change_xattr(name, None, 0)?;
        self.send_lazily()
    }

    fn change_xattr(&self, name: &CStr, value: Option<&[u8]>, flags: c_int) -> Result<()> {
        match value {
            Some(value) => {
                on_inode!(self, ceph_ll_setxattr, name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
            }
            None => on_inode!(self, ceph_ll_removexattr, name.as_ptr()),
        }
        .map(drop)
    }

    fn send_lazily(&self) -> Result<()> {
        if self.sending == WritePolicy::AtOnce { self.sync() } else { Ok(()) }
    }

    fn change(&self, change: &CephChange) -> Result<()> {
        // CEPH_SETATTR_*.
        const MODE: c_int = 1;
        const UID: c_int = 1 << 1;
        const GID: c_int = 1 << 2;
        const MTIME: c_int = 1 << 3;
        const ATIME: c_int = 1 << 4;
        const SIZE: c_int = 1 << 5;
        let time = |at: Time| libc::timespec { tv_sec: at.secs, tv_nsec: at.nanos.into() };
        let (mut stat, mut mask) = (Statx::new(), 0);
        if let Some(mode) = change.mode {
            (stat.mode, mask) = ((mode & 0o7777) as u16, mask | MODE);
        }
        if let Some(uid) = change.uid {
            (stat.uid, mask) = (uid, mask | UID);
        }
        if let Some(gid) = change.gid {
            (stat.gid, mask) = (gid, mask | GID);
        }
        if let Some(at) = change.mtime {
            (stat.mtime, mask) = (time(at), mask | MTIME);
        }
        if let Some(at) = change.atime {
            (stat.atime, mask) = (time(at), mask | ATIME);
        }
        if let Some(size) = change.size {
            (stat.size, mask) = (size, mask | SIZE);
        }
        on_inode!(self, ceph_ll_setattr, &raw mut stat, mask).map(drop)
    }

    /// Gives the cluster what the client keeps of changes, where that is not to be left to later.
    fn send(&self) -> Result<()> {
        if self.sending == WritePolicy::Later { Ok(()) } else { self.sync() }
    }

    /// Reads an extended attribute; an empty buffer asks for its length. ERANGE, ENODATA.
    pub fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        on_inode!(self, ceph_ll_getxattr, name.as_ptr(), buf.as_mut_ptr().cast(), buf.len())
    }

    /// Sets an extended attribute; `flags` as in setxattr(2).
    pub fn set_xattr(&self, name: &CStr, value: &[u8], flags: c_int) -> Result<()> {
        self.change_xattr(name, Some(value), flags)?;
        self.send()
    }

    /// Names of extended attributes, each ended by NUL; an empty buffer asks for their length. ERANGE.
    pub fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
        let mut len = 0;
        on_inode!(self, ceph_ll_listxattr, buf.as_mut_ptr().cast(), buf.len(), &raw mut len)?;
        Ok(len)
    }

    /// Removes an extended attribute. ENODATA.
    pub fn remove_xattr(&self, name: &CStr) -> Result<()> {
        self.change_xattr(name, None, 0)?;
        self.send()
    }

    /// A symbolic link's target, cut to the buffer; CephFS has targets of any length. EINVAL on anything else.
    pub fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
        on_inode!(self, ceph_ll_readlink, buf.as_mut_ptr().cast(), buf.len())
    }

    /// Makes the inode durable, and of a directory its entries.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the client is mounted and the inode referenced.
        let code =
            unsafe { (self.client.library.ceph_ll_sync_inode)(self.client.mount.raw(), self.raw.raw(), 0) };
        self.client.outcome(code).map(drop)
    }

    /// Space and inodes, as far as the cluster says.
    // The width of these fields differs between architectures.
    #[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation)]
    pub(super) fn stat_fs(&self) -> Result<FsStat> {
        let mut found = MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: the result has room for one `struct statvfs`.
        let code = unsafe {
            (self.client.library.ceph_ll_statfs)(self.client.mount.raw(), self.raw.raw(), found.as_mut_ptr())
        };
        self.client.outcome(code)?;
        // SAFETY: all of its fields are numbers, for which zero is good too.
        let found = unsafe { found.assume_init() };
        Ok(FsStat {
            bsize: found.f_bsize as u32,
            frsize: found.f_frsize as u32,
            blocks: found.f_blocks as u64,
            bfree: found.f_bfree as u64,
            bavail: found.f_bavail as u64,
            files: found.f_files as u64,
            ffree: found.f_ffree as u64,
            namelen: found.f_namemax as u32,
            ..FsStat::default()
        })
    }

    /// Makes a regular file in this directory, open for reading and writing. EEXIST.
    pub fn create(&self, name: &CStr, mode: u32) -> Result<CephFile> {
        let (mut inode, mut file, mut stat) = (ptr::null_mut(), ptr::null_mut(), Statx::new());
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        let (to, of, about) = (&raw mut inode, &raw mut file, &raw mut stat);
        on_inode!(self, ceph_ll_create, name.as_ptr(), mode, flags, to, of, about, 0, 0)?;
        let inode = Arc::new(Self::new(&self.client, inode, self.sending)?);
        CephFile::new(file, inode)
    }

    /// Makes a directory in this one. EEXIST.
    pub fn make_dir(&self, name: &CStr, mode: u32) -> Result<()> {
        self.take_inode(|to, stat| on_inode!(self, ceph_ll_mkdir, name.as_ptr(), mode, to, stat, 0, 0))
    }

    /// Makes a file, device, fifo or socket in this directory; `mode` has type bits. EEXIST.
    pub fn make_node(&self, name: &CStr, mode: u32, rdev: u64) -> Result<()> {
        self.take_inode(|to, stat| on_inode!(self, ceph_ll_mknod, name.as_ptr(), mode, rdev, to, stat, 0, 0))
    }

    /// Makes a symbolic link in this directory. EEXIST.
    pub fn make_symlink(&self, name: &CStr, target: &CStr) -> Result<()> {
        let target = target.as_ptr();
        self.take_inode(|to, stat| on_inode!(self, ceph_ll_symlink, name.as_ptr(), target, to, stat, 0, 0))
    }

    /// Takes the inode that a call hands out, to give its reference back.
    fn take_inode(&self, make: impl FnOnce(*mut *mut Inode, *mut Statx) -> Result<usize>) -> Result<()> {
        let (mut made, mut stat) = (ptr::null_mut(), Statx::new());
        make(&raw mut made, &raw mut stat)?;
        Self::new(&self.client, made, self.sending).map(drop)
    }

    /// Gives this inode another name in a directory of the same client. EEXIST.
    pub fn link(&self, dir: &Self, name: &CStr) -> Result<()> {
        self.require_beside(dir)?;
        on_inode!(self, ceph_ll_link, dir.raw.raw(), name.as_ptr()).map(drop)
    }

    /// Removes a name that is not a directory's.
    pub fn remove(&self, name: &CStr) -> Result<()> {
        on_inode!(self, ceph_ll_unlink, name.as_ptr()).map(drop)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &CStr) -> Result<()> {
        on_inode!(self, ceph_ll_rmdir, name.as_ptr()).map(drop)
    }

    /// Renames `name` in this directory to `to_name` in `to`, which is of the same client.
    pub fn rename(&self, name: &CStr, to: &Self, to_name: &CStr) -> Result<()> {
        self.require_beside(to)?;
        on_inode!(self, ceph_ll_rename, name.as_ptr(), to.raw.raw(), to_name.as_ptr())?;
        if self.raw.raw() != to.raw.raw() && !self.client.left.note(self.raw.raw()) {
            // It is done, whatever comes of this.
            let _ = self.request_attributes();
        }
        Ok(())
    }

    /// EXDEV when the other is of another client, to which its address would mean nothing.
    fn require_beside(&self, other: &Self) -> Result<()> {
        if self.has_same_client(other) { Ok(()) } else { Err(Errno::XDEV) }
    }

    /// Opens a regular file with `flags` of open(2).
    pub fn open(self: &Arc<Self>, flags: c_int) -> Result<CephFile> {
        let mut file = ptr::null_mut();
        on_inode!(self, ceph_ll_open, flags, &raw mut file)?;
        CephFile::new(file, Arc::clone(self))
    }

    /// Begins a listing of this directory.
    pub fn list(&self) -> Result<CephListing<'_>> {
        let mut dir = ptr::null_mut();
        on_inode!(self, ceph_ll_opendir, &raw mut dir)?;
        Ok(CephListing { raw: Handle::new(dir)?, dir: self, entry: MaybeUninit::zeroed() })
    }
}

/// An open regular file.
pub struct CephFile {
    raw: Handle<Fh>,
    inode: Arc<CephInode>,
    is_open: bool,
}

impl Drop for CephFile {
    fn drop(&mut self) {
        if self.is_open {
            self.end();
        }
    }
}

impl CephFile {
    fn new(raw: *mut Fh, inode: Arc<CephInode>) -> Result<Self> {
        Ok(Self { raw: Handle::new(raw)?, inode, is_open: true })
    }

    /// Closes it. The outcome is that of writing which has failed while it was open.
    pub fn close(mut self) -> Result<()> {
        self.is_open = false;
        let ended = self.end();
        self.inode.client.outcome(ended).map(drop)
    }

    fn end(&self) -> c_int {
        let client = &self.inode.client;
        // SAFETY: the file is open, and this is called once: when it is closed, or dropped without that.
        unsafe { (client.library.ceph_ll_close)(client.mount.raw(), self.raw.raw()) }
    }

    #[must_use]
    pub const fn inode(&self) -> &Arc<CephInode> {
        &self.inode
    }

    /// Reads at `offset` (bytes), perhaps less than there is; nothing at the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let client = &self.inode.client;
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let (to, len) = (buf.as_mut_ptr().cast(), buf.len().min(STEP));
        // SAFETY: the file is open, and the buffer has `len` bytes.
        let code = unsafe {
            (client.library.ceph_ll_read)(client.mount.raw(), self.raw.raw(), offset, len as u64, to)
        };
        Ok(client.outcome(code)?.min(len))
    }

    /// Writes at `offset` (bytes), perhaps not all.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let client = &self.inode.client;
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let (from, len) = (data.as_ptr().cast(), data.len().min(STEP));
        // SAFETY: the file is open, and the data have `len` bytes.
        let code = unsafe {
            (client.library.ceph_ll_write)(client.mount.raw(), self.raw.raw(), offset, len as u64, from)
        };
        let written = client.outcome(code)?.min(len);
        self.send()?;
        Ok(written)
    }

    /// As an inode's.
    fn send(&self) -> Result<()> {
        if self.inode.sending == WritePolicy::AtOnce { self.sync(false) } else { Ok(()) }
    }

    /// Takes the only lock of the whole file, for `owner`, which no other lock of this process has; it goes with the file's end, and with the client's session.
    /// EAGAIN: somebody has it.
    pub fn lock(&self, owner: u64) -> Result<()> {
        let client = &self.inode.client;
        // SAFETY: all fields are numbers; zeros mean the whole file.
        let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        // SAFETY: the file is open, and the lock is read and written during the call only.
        let code = unsafe {
            (client.library.ceph_ll_setlk)(client.mount.raw(), self.raw.raw(), &raw mut lock, owner, 0)
        };
        client.outcome(code).map(drop)
    }

    /// Makes data (and, unless `datasync`, attributes) durable.
    pub fn sync(&self, datasync: bool) -> Result<()> {
        let client = &self.inode.client;
        // SAFETY: the file is open.
        let code =
            unsafe { (client.library.ceph_ll_fsync)(client.mount.raw(), self.raw.raw(), datasync.into()) };
        client.outcome(code).map(drop)
    }

    /// fallocate(2), as far as CephFS can.
    pub fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let client = &self.inode.client;
        let number = |value: u64| i64::try_from(value).map_err(|_| Errno::INVAL);
        let (mode, offset, len) = (mode.cast_signed(), number(offset)?, number(len)?);
        // SAFETY: the file is open; the rest are numbers.
        let code = unsafe {
            (client.library.ceph_ll_fallocate)(client.mount.raw(), self.raw.raw(), mode, offset, len)
        };
        client.outcome(code)?;
        self.send()
    }
}

/// A listing under way.
pub struct CephListing<'a> {
    raw: Handle<Dir>,
    dir: &'a CephInode,
    entry: MaybeUninit<libc::dirent>,
}

impl Drop for CephListing<'_> {
    fn drop(&mut self) {
        let client = &self.dir.client;
        // SAFETY: the directory is open, and closed once.
        unsafe { (client.library.ceph_ll_releasedir)(client.mount.raw(), self.raw.raw()) };
    }
}

impl CephListing<'_> {
    /// The next entry, also `.` and `..`: its name, inode number, and the type bits of its mode, 0 where they are not known.
    pub fn next_entry(&mut self) -> Result<Option<(&CStr, u64, u32)>> {
        let client = &self.dir.client;
        // SAFETY: the directory is open, and the place has room for one `struct dirent`.
        let code = unsafe {
            (client.library.ceph_readdir_r)(client.mount.raw(), self.raw.raw(), self.entry.as_mut_ptr())
        };
        if client.outcome(code)? == 0 {
            return Ok(None);
        }
        // SAFETY: the call has filled it, and all of its fields are numbers, for which zero is good too.
        let entry = unsafe { self.entry.assume_init_ref() };
        // SAFETY: a char and a byte are alike; the array stays as long as `self` is borrowed.
        let name = unsafe { &*(&raw const entry.d_name).cast::<[u8; 256]>() };
        let name = CStr::from_bytes_until_nul(name).map_err(|_| Errno::IO)?;
        Ok(Some((name, entry.d_ino, u32::from(entry.d_type) << 12)))
    }
}
