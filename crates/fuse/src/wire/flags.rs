//! Flag words of the protocol.

use bitflags::bitflags;

bitflags! {
    /// What INIT negotiates. The upper half travels in `flags2` and needs [`InitFlags::INIT_EXT`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct InitFlags: u64 {
        /// Several reads of one file at a time.
        const ASYNC_READ = 1;
        /// Record locks come to the filesystem.
        const POSIX_LOCKS = 1 << 1;
        /// Unused by the kernel.
        const FILE_OPS = 1 << 2;
        /// O_TRUNC comes with OPEN, not as a SETATTR.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of "." and ".." works, for handles.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// The umask is left to the filesystem.
        const DONT_MASK = 1 << 6;
        /// splice(2) to write to the device.
        const SPLICE_WRITE = 1 << 7;
        /// splice(2) may move pages.
        const SPLICE_MOVE = 1 << 8;
        /// splice(2) to read from the device.
        const SPLICE_READ = 1 << 9;
        /// flock(2) comes to the filesystem.
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl(2) on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached data is dropped when mtime or size is seen to change.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O is submitted asynchronously.
        const ASYNC_DIO = 1 << 15;
        /// Writes are collected in the page cache.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN turns opens off.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings in one directory at the same time.
        const PARALLEL_DIROPS = 1 << 18;
        /// The filesystem clears set-id bits (first form).
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX ACLs.
        const POSIX_ACL = 1 << 20;
        /// A read after an abort gives ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` in the reply counts.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR turns opendirs off.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data is dropped only when told.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// DAX alignment.
        const MAP_ALIGNMENT = 1 << 26;
        /// Sub-mounts.
        const SUBMOUNTS = 1 << 27;
        /// The filesystem clears set-id bits when told (second form).
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The longer form of SETXATTR.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` counts.
        const INIT_EXT = 1 << 30;
        /// A security context comes with what creates.
        const SECURITY_CTX = 1 << 32;
        /// DAX per inode.
        const HAS_INODE_DAX = 1 << 33;
        /// The parent's group comes with what creates, if the caller is in it.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// A name may be marked as expired.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files in direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Passthrough to backing files.
        const PASSTHROUGH = 1 << 37;
        /// No handles at all.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// The kernel sends unanswered requests again when told.
        const HAS_RESEND = 1 << 39;
        /// Idmapped mounts.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests travel by io_uring.
        const OVER_IO_URING = 1 << 41;
        /// The kernel ends the connection when an answer takes too long.
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// Which fields of SETATTR count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        /// mode
        const MODE = 1;
        /// uid
        const UID = 1 << 1;
        /// gid
        const GID = 1 << 2;
        /// size
        const SIZE = 1 << 3;
        /// atime
        const ATIME = 1 << 4;
        /// mtime
        const MTIME = 1 << 5;
        /// fh
        const FH = 1 << 6;
        /// atime is now
        const ATIME_NOW = 1 << 7;
        /// mtime is now
        const MTIME_NOW = 1 << 8;
        /// lock_owner
        const LOCKOWNER = 1 << 9;
        /// ctime
        const CTIME = 1 << 10;
        /// Clear set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }

    /// How the kernel is to treat an open file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FopenFlags: u32 {
        /// Past the page cache.
        const DIRECT_IO = 1;
        /// Keep what is cached.
        const KEEP_CACHE = 1 << 1;
        /// No seeking.
        const NONSEEKABLE = 1 << 2;
        /// The listing may be cached.
        const CACHE_DIR = 1 << 3;
        /// No file position.
        const STREAM = 1 << 4;
        /// No FLUSH at close.
        const NOFLUSH = 1 << 5;
        /// Direct writes at the same time.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads and writes go to the backing file.
        const PASSTHROUGH = 1 << 7;
    }
}

/// GETATTR: `fh` counts.
pub const GETATTR_FH: u32 = 1;
/// OPEN and CREATE: clear set-id bits when truncating.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// READ: `lock_owner` counts, as it does past the page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE: from the page cache.
pub const WRITE_CACHE: u32 = 1;
/// WRITE: `lock_owner` counts, as it does past the page cache.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// WRITE: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1;
/// SETXATTR of an ACL: clear the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Type of the extension that carries supplementary groups; lower numbers are security contexts.
pub const EXT_GROUPS: u32 = 32;

/// STATX: all the basic fields and the birth time.
pub const STATX_BASIC: u32 = 0x7ff;
/// STATX: birth time.
pub const STATX_BTIME: u32 = 0x800;
