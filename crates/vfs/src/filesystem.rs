//! The trait between a front (FUSE, the library's rings) and an instance (a mounted tree).

use crate::{Attr, Context, Error, FileKind, Name, RenameFlags, Result, Seek, SetAttr, StatFs};
use bitflags::bitflags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// What a front holds of an object: unique for the life of the mount, never reused, and *not* the
/// inode number: several node ids may show the same `st_ino`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the tree.
    pub const ROOT: Self = Self(1);
}

/// What an instance gave out for an open file or directory; 0 where it keeps no state per open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// A name that exists: its node and attributes, and for how long the front may believe both.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node. Its lookup count has been raised by one; [`Filesystem::forget`] lowers it.
    pub node: NodeId,
    /// Generation for handles (name_to_handle_at).
    pub generation: u64,
    /// Attributes; `ino` is what stat(2) shows.
    pub attr: Attr,
    /// How long the name may be taken to lead here.
    pub entry_ttl: Duration,
    /// How long the attributes may be taken to hold.
    pub attr_ttl: Duration,
}

/// Attributes, and for how long the front may believe them.
#[derive(Clone, Copy, Debug)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// How long they may be taken to hold.
    pub ttl: Duration,
}

/// How the front should do the I/O of one open file.
#[derive(Clone, Debug)]
pub enum OpenIo {
    /// Through the front's page cache; `keep` says that what is cached already is still good.
    Cached {
        /// Keep what is cached.
        keep: bool,
    },
    /// Every read and write comes to the instance.
    Direct,
    /// Reads, writes and mappings go to this file and never come to the instance. One file per node:
    /// while a node has opens, each of them must give the same `Arc`.
    Passthrough(Arc<OwnedFd>),
    /// Reads and mappings go to this copy of the file's contents, which nobody changes any more. Copies are alike: a node that is open
    /// with one goes on with that, whatever a later open gives.
    Lent(Arc<OwnedFd>),
}

/// An open file.
#[derive(Clone, Debug)]
pub struct OpenReply {
    /// Handle for later calls.
    pub handle: Handle,
    /// How to do its I/O.
    pub io: OpenIo,
}

bitflags! {
    /// Flags of open(2). Bits without a name here are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// The bits of the access mode.
        const ACCMODE = 3;
        /// To write only.
        const WRONLY = 1;
        /// To read and write.
        const RDWR = 2;
        /// The kernel opens it to run it (`FMODE_EXEC`).
        const EXEC = 0o40;
        /// Fail with EEXIST if the file exists.
        const EXCL = 0o200;
        /// Cut to length 0.
        const TRUNC = 0o1000;
        /// All writes go to the end.
        const APPEND = 0o2000;
        /// Each write is durable when it returns. O_SYNC has this bit as well.
        const DSYNC = 0o10000;
        const _ = !0;
    }

    /// How a write arrives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// Written back from the front's page cache; the caller's identity is unknown.
        const WRITEBACK = 1;
        /// Clear set-id bits and file capabilities, as for an unprivileged writer.
        const KILL_SUIDGID = 2;
        /// The file was opened with O_APPEND.
        const APPEND = 4;
    }

    /// Flags of setxattr(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail with EEXIST if the attribute exists.
        const CREATE = 1;
        /// Fail with ENODATA if it does not.
        const REPLACE = 2;
    }

    /// What a front does itself, so that the instance need not.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Duties: u32 {
        /// It reads and writes a file of a layer that it is given ([`OpenIo::Passthrough`]), and has no other copy of its data.
        const SERVES_FILES = 1;
        /// It opens files (and directories) without asking, once the first open was answered with ENOSYS.
        const OPENS_FILES = 2;
        /// It collects writes, and owns size and mtime of open files.
        const COLLECTS_WRITES = 4;
        /// It checks permission from mode and owner.
        const CHECKS_PERMISSION = 8;
        /// It checks POSIX ACLs also, and `umask` arrives unapplied.
        const CHECKS_ACL = 16;
        /// It opens directories without asking, once the first opendir was answered with ENOSYS.
        const OPENS_DIRS = 32;
    }
}

/// Calls from an instance back to its front. They may be dropped when the front goes away.
pub trait Notifier: Send + Sync {
    /// What is known of a node's attributes is no longer good. ENOENT: the front does not have the node, or not yet: an answer about it
    /// may be on its way.
    fn attributes_changed(&self, node: NodeId) -> Result<()>;
    /// All that is known of a node is no longer good, attributes and data (of a directory: lists of its names). Done when this returns. It
    /// waits for reads of that data: not to be called by one, nor with a lock held that one may need.
    fn data_changed(&self, node: NodeId) -> Result<()>;
    /// The operations that are under way now, of which the answers may not have arrived yet.
    fn active_operations(&self) -> Box<dyn ActiveOperations>;
    /// Whether the front has not been answered yet about a request that makes this name or takes it away, which has been begun, and may be
    /// carried out a second time by a successor. Asked with the names of the directory held.
    fn is_pending(&self, dir: NodeId, name: Name<'_>) -> bool;
    /// Whether the front has a node; yes where that cannot be told. An answer that makes it known may be on its way. Changes nothing.
    fn holds(&self, node: NodeId) -> bool {
        let _ = node;
        true
    }
    /// Asks the front to forget nodes that it does not use. ENOSYS: it knows no such wish. What it gives back comes as
    /// [`Filesystem::forget`]. It may wait for answers: to be called by a thread that gives none, without any lock.
    fn prune(&self, nodes: &[NodeId]) -> Result<()> {
        let _ = nodes;
        Err(Errno::NOSYS.into())
    }
}

/// Operations that were under way at some moment.
pub trait ActiveOperations: Send + Sync {
    /// Whether the answers to all of them have arrived.
    fn is_finished(&self) -> bool;
}

/// None at all.
impl ActiveOperations for () {
    fn is_finished(&self) -> bool {
        true
    }
}

/// A front that has been negotiated.
#[derive(Clone)]
pub struct Connection {
    /// What it does itself.
    pub duties: Duties,
    /// The way back.
    pub notifier: Arc<dyn Notifier>,
}

/// Opens by which a front reads and writes a node's file itself ([`OpenIo::Passthrough`]), as a successor of its process finds them.
/// All 0 at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnOpens {
    /// How many there are; without any the rest means nothing.
    pub opens: u64,
    /// What the front knows the file by.
    pub file: [u64; 2],
}

/// One directory entry on its way to the front.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// `st_ino` as stat(2) would show it.
    pub ino: u64,
    /// Continue after this entry by passing this offset. Stable while entries come and go; never 0.
    pub cookie: u64,
    /// Kind, where known without a stat.
    pub kind: Option<FileKind>,
    /// Name; `.` and `..` are allowed here.
    pub name: &'a [u8],
}

/// Takes directory entries until it is full.
pub trait DirSink {
    /// Whether an entry with a name of `len` bytes still fits (in the form that is being collected).
    fn fits(&self, len: usize) -> bool;
    /// Adds an entry. Call only when it fits. With `entry`, its lookup count has been raised; without (in
    /// readdirplus: for `.`, `..`, or where looking up failed), the front looks the name up itself later.
    fn push(&mut self, dirent: DirEntry<'_>, entry: Option<&Entry>);
}

/// A mounted tree as its fronts see it. Every call may come from any thread, many at a time.
///
/// Names are single components. The caller's permission has been checked by the front where
/// [`Duties::CHECKS_PERMISSION`] is on. Sizes and offsets are in bytes; the instance must check them, as it
/// must check everything else that a client states.
///
/// Without a body of its own, a call that changes the tree is refused with EROFS, and there are no extended attributes.
#[allow(unused_variables)]
pub trait Filesystem: Send + Sync + 'static {
    /// The front is ready; called once, before any other call.
    fn start(&self, connection: Connection) {}
    /// The front has gone; called once, after every other call.
    fn stop(&self) {}

    /// Looks `name` up. `Ok(None)`: it does not exist, and that may be believed for [`Filesystem::negative_ttl`].
    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>>;
    /// How long a front may believe that a name does not exist. It is going to be told.
    fn negative_ttl(&self, _parent: NodeId, _name: Name<'_>) -> Duration {
        Duration::ZERO
    }
    /// A node by its id alone, for a handle that outlived the front's cache (LOOKUP of "."). ESTALE if unknown.
    fn lookup_node(&self, cx: &Context<'_>, node: NodeId) -> Result<Entry> {
        Err(Errno::STALE.into())
    }
    /// The parent of a directory, for a handle (LOOKUP of "..").
    fn lookup_parent(&self, cx: &Context<'_>, node: NodeId) -> Result<Entry> {
        Err(Errno::STALE.into())
    }
    /// The front has dropped `count` of its lookups of `node`. At 0 the id is never used again by the front.
    fn forget(&self, node: NodeId, count: u64);

    /// Attributes, as of an open file if `handle` is given.
    fn getattr(&self, cx: &Context<'_>, node: NodeId, handle: Option<Handle>) -> Result<AttrReply>;
    /// Changes attributes.
    fn setattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<AttrReply> {
        Err(Errno::ROFS.into())
    }
    /// Writes the target of a symbolic link into `buf` and returns its length (at most 4095).
    fn readlink(&self, cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL.into())
    }

    /// Makes a file, device, fifo or socket; `mode` has type bits, `rdev` is in makedev form.
    fn mknod(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        Err(Errno::ROFS.into())
    }
    /// Makes a directory.
    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32) -> Result<Entry> {
        Err(Errno::ROFS.into())
    }
    /// Makes a symbolic link to `target`.
    fn symlink(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, target: &CStr) -> Result<Entry> {
        Err(Errno::ROFS.into())
    }
    /// Makes another name for `node`.
    fn link(&self, cx: &Context<'_>, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        Err(Errno::ROFS.into())
    }
    /// Removes a name that is not a directory.
    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        Err(Errno::ROFS.into())
    }
    /// Removes an empty directory.
    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        Err(Errno::ROFS.into())
    }
    /// Renames, as renameat2(2). `from` and `to` are (parent, name).
    fn rename(
        &self,
        cx: &Context<'_>,
        from: (NodeId, Name<'_>),
        to: (NodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    /// Opens a file; ENOSYS with [`Duties::OPENS_FILES`]: never ask again.
    fn open(&self, cx: &Context<'_>, node: NodeId, flags: OpenFlags) -> Result<OpenReply>;
    /// Creates and opens a regular file. [`OpenFlags::EXCL`]: EEXIST if it exists.
    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        Err(Errno::ROFS.into())
    }
    /// Creates a file without a name in `parent`, and opens it.
    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Reads into `buf`; fewer bytes only at the end of the file.
    fn read(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize>;
    /// Writes `data`; returns how much was written.
    fn write(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        Err(Errno::ROFS.into())
    }
    /// A descriptor of the file is being closed.
    fn flush(&self, cx: &Context<'_>, node: NodeId, handle: Handle) -> Result<()> {
        Err(Errno::NOSYS.into())
    }
    /// The last descriptor of this open is gone.
    fn release(&self, node: NodeId, handle: Handle) {}
    /// Makes data (and, unless `datasync`, attributes) of the file durable.
    fn fsync(&self, cx: &Context<'_>, node: NodeId, handle: Handle, datasync: bool) -> Result<()> {
        Ok(())
    }

    /// Opens a directory. ENOSYS with [`Duties::OPENS_FILES`]: never ask again.
    fn opendir(&self, cx: &Context<'_>, node: NodeId, flags: OpenFlags) -> Result<OpenReply>;
    /// Lists names after `offset` (0: from the start).
    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()>;
    /// Lists a directory from `offset` on, each entry looked up.
    fn readdirplus(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.readdir(cx, node, handle, offset, sink)
    }
    /// The last descriptor of this opendir is gone.
    fn releasedir(&self, node: NodeId, handle: Handle) {}
    /// Makes the directory's entries durable.
    fn fsyncdir(&self, cx: &Context<'_>, node: NodeId, handle: Handle, datasync: bool) -> Result<()> {
        Ok(())
    }

    /// Space and inodes.
    fn statfs(&self, cx: &Context<'_>, node: NodeId) -> Result<StatFs>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Gets an extended attribute into `buf` and returns its length; an empty `buf` asks for the length only.
    /// ERANGE: `buf` is too small; ENODATA: no such attribute.
    fn getxattr(&self, cx: &Context<'_>, node: NodeId, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Lists the names of extended attributes, each ended by NUL; `buf` as in [`Filesystem::getxattr`].
    fn listxattr(&self, cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Removes an extended attribute.
    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &CStr) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// access(2); never called with [`Duties::CHECKS_PERMISSION`].
    fn access(&self, cx: &Context<'_>, node: NodeId, mask: u32) -> Result<()> {
        Err(Errno::NOSYS.into())
    }

    /// fallocate(2); `mode` are its FALLOC_FL_* bits.
    fn fallocate(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Finds data or a hole at or after `offset`. ENXIO: beyond the end.
    fn lseek(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        whence: Seek,
    ) -> Result<u64> {
        Err(Errno::NOSYS.into())
    }
    /// Copies a range from one file to another. Source and target are (node, handle, offset).
    fn copy_file_range(
        &self,
        cx: &Context<'_>,
        from: (NodeId, Handle, u64),
        to: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        Err(Error::new(Errno::OPNOTSUPP, "copy_file_range"))
    }

    /// Flags of a regular file or a directory, as lsattr(1) shows them (FS_IOC_GETFLAGS). EOPNOTSUPP: it has none.
    fn flags(&self, cx: &Context<'_>, node: NodeId) -> Result<u32> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Sets all flags; the front has checked that the caller may. EOPNOTSUPP: one of them cannot be changed here.
    fn set_flags(&self, cx: &Context<'_>, node: NodeId, flags: u32) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// The opens that a front has kept with a node; a successor of the process finds them, where the instance outlives processes at all.
    fn own_opens(&self, node: NodeId) -> OwnOpens {
        OwnOpens::default()
    }
    /// Keeps opens with a node that the front holds.
    fn keep_own_opens(&self, node: NodeId, opens: OwnOpens) {}
    /// Calls `each` for all that are kept.
    fn each_own_opens(&self, each: &mut dyn FnMut(NodeId, OwnOpens)) {}
}
