//! Attributes of files.

use rustix::fs::{FileType, RawMode};

/// Seconds and nanoseconds since 1970; seconds may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

/// What kind of object a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A UNIX socket.
    Socket,
}

impl FileKind {
    /// The kind in the type bits of a mode; None when they name no kind.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match FileType::from_raw_mode(mode as RawMode) {
            FileType::RegularFile => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::Unknown => return None,
        })
    }

    /// The type bits of a mode (S_IFMT).
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The directory entry type (DT_*).
    #[must_use]
    pub const fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// Attributes of an object, as stat(2) shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number: in a branch one that no other object of the branch has, above it the union's.
    pub ino: u64,
    /// Device of the branch's filesystem (makedev form). Meaningless above the union.
    pub dev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in 512-byte units.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth, where the filesystem keeps it; otherwise zero.
    pub btime: Timestamp,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node (makedev form).
    pub rdev: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

impl Attr {
    /// The kind of the object; an unknown type bit pattern counts as a regular file.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Whether this is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Whether this is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::Regular
    }

    /// Permission bits including set-id and sticky.
    #[must_use]
    pub const fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the machine.
    Now,
    /// A given time.
    At(Timestamp),
}

/// A request to change attributes; what is None stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits (type bits are ignored).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes (truncate).
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// When the change is made by the clock of a front that writes back later. A layer cannot take it.
    pub ctime: Option<Timestamp>,
    /// Clear set-user-id and, where the group may execute, set-group-id, and file capabilities.
    pub kill_suidgid: bool,
}

impl SetAttr {
    /// Whether nothing is to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Space and inodes of a filesystem, as statvfs(3) shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Fundamental block size in bytes; the block counts are in this unit.
    pub frsize: u32,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Identity of the filesystem (f_fsid), as far as the platform states it.
    pub fsid: u64,
    /// Magic number of the filesystem type (f_type).
    pub fstype: u64,
}
