//! What is held: anything by its inode, and open files.

use super::uncached_read::UncachedRead;
use crate::acl::Acl;
use crate::convert::attr;
use crate::exact_io;
use crate::kernel_checks::{check_offset, check_owner, check_target, check_times, require_regular};
use crate::xattr::{CAPABILITY, check_acl, check_form, check_get, check_remove, check_set, is_acl};
use rustix::fs::{FallocateFlags, OFlags};
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use vellum_sys::Time;
use vellum_sys::ceph::{CephChange, CephFile as OpenFile, CephInode};
use vellum_vfs::{
    Attr, BranchFile, Errno, Error, FileKind, Object, OpenMode, Result, Seek, SetTime, Timestamp,
};

/// Bytes that are copied at a time.
const COPY_STEP: u64 = 1 << 20;

/// An inode, and its kind, which never changes.
#[derive(Clone)]
pub(super) struct InodeHandle {
    pub(super) inode: Arc<CephInode>,
    pub(super) kind: FileKind,
}

/// The time of this machine, as the kernel's client takes it.
fn now() -> Time {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: passed.as_secs().cast_signed(), nanos: passed.subsec_nanos() }
}

/// The nearest time that CephFS's 32 bits can hold.
fn storable(at: Timestamp) -> Time {
    match u32::try_from(at.secs) {
        Ok(secs) => Time { secs: secs.into(), nanos: at.nanos },
        Err(_) if at.secs < 0 => Time::default(),
        Err(_) => Time { secs: u32::MAX.into(), nanos: 0 },
    }
}

impl InodeHandle {
    /// Changes attributes.
    fn set(&self, change: &CephChange) -> Result<()> {
        let changed = match self.kind {
            FileKind::Regular => self.inode.set_lazily(change),
            _ => self.inode.set(change),
        };
        Ok(changed?)
    }

    pub(super) fn stat(&self) -> Result<Attr> {
        Ok(attr(&self.inode.stat()?))
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<()> {
        if self.kind == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.set(&CephChange { mode: Some(mode), ..CephChange::default() })
    }

    /// Takes the bits away that chown(2) takes away, also where nothing else changes.
    pub(super) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        check_owner(uid, gid)?;
        let old = self.inode.stat()?;
        let mut mode = None;
        if self.kind == FileKind::Regular {
            let group = if old.mode & 0o010 == 0 { 0 } else { 0o2000 };
            // Always given: left to the cluster, more bits than these go.
            mode = Some(old.mode & !(0o4000 | group));
            self.drop_capability()?;
        }
        // One of them is always set, so that the time of the last change moves.
        let uid = uid.or(gid.is_none().then_some(old.uid));
        self.set(&CephChange { mode, uid, gid, ..CephChange::default() })
    }

    pub(super) fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        check_times(atime, mtime)?;
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let now = now();
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(at) => storable(at),
        };
        let (atime, mtime) = (atime.map(time), mtime.map(time));
        self.set(&CephChange { atime, mtime, ..CephChange::default() })?;
        if self.kind == FileKind::Directory {
            // Until the server knows them, the client takes times that were set for newer than those of entries made meanwhile.
            self.inode.sync()?;
        }
        Ok(())
    }

    pub(super) fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        check_get(name.to_bytes(), self.kind)?;
        Ok(self.inode.get_xattr(name, buf)?)
    }

    pub(super) fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
        let bytes = name.to_bytes();
        check_form(bytes, value, flags)?;
        if is_acl(bytes) {
            let Some(list) = Acl::parse(value)? else { return self.remove_acl(name) };
            check_acl(bytes, Some(&list), self.kind)?;
            if self.kind == FileKind::Regular {
                return Ok(self.inode.set_xattr_lazily(name, value, flags.cast_signed())?);
            }
        } else {
            check_set(bytes, value, self.kind)?;
        }
        Ok(self.inode.set_xattr(name, value, flags.cast_signed())?)
    }

    fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
        Ok(self.inode.list_xattr(buf)?)
    }

    fn remove_xattr(&self, name: &CStr) -> Result<()> {
        if is_acl(name.to_bytes()) {
            return self.remove_acl(name);
        }
        check_remove(name.to_bytes(), self.kind)?;
        Ok(self.inode.remove_xattr(name)?)
    }

    /// Where there is no list, there is nothing to do.
    fn remove_acl(&self, name: &CStr) -> Result<()> {
        if !check_acl(name.to_bytes(), None, self.kind)? {
            return Ok(());
        }
        let removed = match self.kind {
            FileKind::Regular => self.inode.remove_xattr_lazily(name),
            _ => self.inode.remove_xattr(name),
        };
        match removed {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
        if self.kind != FileKind::Symlink || buf.is_empty() {
            return Err(Errno::INVAL.into());
        }
        check_target(self.inode.read_link(buf)?, buf.len(), || Ok(self.inode.stat()?.size))
    }

    pub(super) fn open(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        require_regular(Some(self.kind))?;
        let access = match (mode.contains(OpenMode::READ), mode.contains(OpenMode::WRITE)) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (_, false) => OFlags::RDONLY,
        };
        let mut flags = access;
        if mode.contains(OpenMode::TRUNCATE) {
            self.drop_capability()?;
            flags |= OFlags::TRUNC;
        }
        let open = self.inode.open(flags.bits().cast_signed())?;
        Ok(Arc::new(CephFile::opened(self.clone(), open, mode)))
    }

    /// File capabilities do not outlive a change. Asking costs a look into the client's memory.
    fn drop_capability(&self) -> Result<()> {
        match self.inode.get_xattr(CAPABILITY, &mut []) {
            Ok(len) if len > 0 => Ok(self.inode.remove_xattr(CAPABILITY)?),
            Ok(_) | Err(Errno::NODATA) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Implements [`Object`] for a type by its method `inode_handle`.
macro_rules! impl_object {
    ($type:ident) => {
        impl Object for $type {
            fn stat(&self) -> Result<Attr> {
                self.inode_handle().stat()
            }

            fn set_mode(&self, mode: u32) -> Result<()> {
                self.inode_handle().set_mode(mode)
            }

            fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
                self.inode_handle().set_owner(uid, gid)
            }

            fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
                self.inode_handle().set_times(atime, mtime)
            }

            fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
                self.inode_handle().get_xattr(name, buf)
            }

            fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
                self.inode_handle().set_xattr(name, value, flags)
            }

            fn list_xattr(&self, buf: &mut [u8]) -> Result<usize> {
                self.inode_handle().list_xattr(buf)
            }

            fn remove_xattr(&self, name: &CStr) -> Result<()> {
                self.inode_handle().remove_xattr(name)
            }

            fn read_link(&self, buf: &mut [u8]) -> Result<usize> {
                self.inode_handle().read_link(buf)
            }

            fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
                self.inode_handle().open(mode)
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }
    };
}

/// Anything in a directory.
pub(super) struct CephHandle(pub(super) InodeHandle);

pub(super) struct CephDir(pub(super) InodeHandle);

/// An open regular file.
pub(super) struct CephFile {
    held: InodeHandle,
    open: OpenFile,
    mode: OpenMode,
    /// None: all is read through the library's cache.
    past: Option<UncachedRead>,
}

impl_object!(CephHandle);
impl_object!(CephDir);
impl_object!(CephFile);

impl CephHandle {
    pub(super) const fn inode_handle(&self) -> &InodeHandle {
        &self.0
    }
}

impl CephDir {
    pub(super) const fn inode_handle(&self) -> &InodeHandle {
        &self.0
    }
}

impl CephFile {
    /// A file that was just made, open for reading and writing.
    pub(super) fn new(open: OpenFile) -> Self {
        let held = InodeHandle { inode: Arc::clone(open.inode()), kind: FileKind::Regular };
        Self::opened(held, open, OpenMode::READ | OpenMode::WRITE)
    }

    fn opened(held: InodeHandle, open: OpenFile, mode: OpenMode) -> Self {
        let past = mode.contains(OpenMode::KEPT_ABOVE).then(UncachedRead::default);
        Self { held, open, mode, past }
    }

    pub(super) const fn inode_handle(&self) -> &InodeHandle {
        &self.held
    }

    fn require_readable(&self) -> Result<()> {
        let writes_only = self.mode & (OpenMode::READ | OpenMode::WRITE) == OpenMode::WRITE;
        if writes_only { Err(Errno::BADF.into()) } else { Ok(()) }
    }

    fn require_writable(&self, refusal: Errno) -> Result<()> {
        if self.mode.contains(OpenMode::WRITE) { Ok(()) } else { Err(refusal.into()) }
    }

    /// A file of the same client. EXDEV.
    fn peer<'a>(&self, file: &'a dyn BranchFile) -> Result<&'a Self> {
        file.as_any()
            .downcast_ref::<Self>()
            .filter(|file| file.held.inode.has_same_client(&self.held.inode))
            .ok_or(Error::new(Errno::XDEV, "copy between branches"))
    }
}

impl BranchFile for CephFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        check_offset(offset)?;
        self.require_readable()?;
        let past = self.past.as_ref().and_then(|past| past.file_for(&self.held.inode, offset, buf.len()));
        exact_io::read(buf, offset, |rest, at| past.unwrap_or(&self.open).read_at(rest, at))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        check_offset(offset)?;
        self.require_writable(Errno::BADF)?;
        self.held.drop_capability()?;
        exact_io::write(data, offset, |rest, at| self.open.write_at(rest, at))
    }

    fn sync(&self, datasync: bool) -> Result<()> {
        Ok(self.open.sync(datasync)?)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        check_offset(size)?;
        self.require_writable(Errno::INVAL)?;
        self.held.drop_capability()?;
        let change = CephChange { size: Some(size), mtime: Some(now()), ..CephChange::default() };
        self.held.set(&change)
    }

    /// Holes can be made; space cannot be reserved, and to say otherwise would be a promise.
    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.require_writable(Errno::BADF)?;
        if mode != FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE).bits() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.held.drop_capability()?;
        Ok(self.open.allocate(mode, offset, len)?)
    }

    /// CephFS shows no holes: all is data up to the end.
    fn seek(&self, offset: u64, whence: Seek) -> Result<u64> {
        let size = self.held.inode.stat()?.size;
        match whence {
            _ if offset >= size => Err(Errno::NXIO.into()),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// By way of this process: the library has no copying within the cluster.
    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64> {
        let peer = self.peer(from)?;
        peer.require_readable()?;
        self.require_writable(Errno::BADF)?;
        let len = len.min(COPY_STEP).min(peer.held.inode.stat()?.size.saturating_sub(from_offset));
        let (from_end, end) = (from_offset.checked_add(len), offset.checked_add(len));
        let (from_end, end) = (from_end.ok_or(Errno::OVERFLOW)?, end.ok_or(Errno::OVERFLOW)?);
        let which = |held: &InodeHandle| held.inode.stat().map(|stat| (stat.dev, stat.ino));
        let same = which(&self.held)? == which(&peer.held)?;
        if same && end > from_offset && offset < from_end {
            return Err(Errno::INVAL.into());
        }
        let mut buf = vec![0; usize::try_from(len).unwrap_or(0)];
        let count = peer.read_at(&mut buf, from_offset)?;
        buf.truncate(count);
        Ok(self.write_at(&buf, offset)? as u64)
    }

    fn clone_from(&self, from: &dyn BranchFile) -> Result<()> {
        self.peer(from)?;
        Err(Errno::OPNOTSUPP.into())
    }

    fn close(self: Arc<Self>) -> Result<()> {
        Ok(Arc::into_inner(self).map_or(Ok(()), |file| file.open.close())?)
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// The time of the last change is that of the writing client's clock, and may stand still; the inode's own count does not.
    fn version(&self) -> Result<(Attr, Option<u64>)> {
        let (stat, version) = self.held.inode.stat_version()?;
        Ok((attr(&stat), version))
    }
}
