//! What an instance is made of, as plain data: no option syntax above it, no open file below it.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
pub use vellum_union::OverrideStat;
use vellum_vfs::IdMap;

/// Most layers of one instance, the upper included.
pub const LAYERS_MAX: usize = 500;

/// Most worker threads of one instance.
pub const WORKERS_MAX: usize = 64;

/// How file data travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Through the page cache of the mount, with write-back and without opens. Works without privileges.
    #[default]
    Cached,
    /// Straight to the layer's file, for big files and databases. Needs CAP_SYS_ADMIN.
    Passthrough,
}

impl Profile {
    /// Its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Passthrough => "passthrough",
        }
    }
}

/// Which lower files are copied block by block as they are written to, and not whole at the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockCopy {
    /// Those of at least [`vellum_union::PARTIAL_FROM`] bytes, in passthrough
    /// [`vellum_union::PARTIAL_FROM_PASSTHROUGH`].
    #[default]
    Usual,
    /// None.
    Off,
    /// Those of at least so many bytes.
    From(u64),
}

/// How it is known which blocks a partial file has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockMap {
    /// The others are holes, as far as the filesystem reports holes exactly.
    #[default]
    Holes,
    /// They are listed in a file beside.
    Sidecar,
}

/// What reading a file does to its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Nothing.
    #[default]
    Never,
    /// It is set when it is older than a change, or than a day.
    Relative,
    /// It is set each time.
    Always,
}

/// Bytes that are copied into partial files when the mount has ended, so that the upper can be read without Vellum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillAtEnd(pub u64);

impl Default for FillAtEnd {
    /// What takes some seconds.
    fn default() -> Self {
        Self(1 << 30)
    }
}

/// What the mount itself allows, as the flags of mount(2). None: the default for the caller's privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Nothing can be changed through the mount; the upper, if any, is only read.
    pub read_only: bool,
    /// Device files work. Default: no.
    pub dev: Option<bool>,
    /// Set-id bits act. Default: for root only.
    pub suid: Option<bool>,
    /// Programs can be run. Default: yes.
    pub exec: Option<bool>,
    /// What reading does to access times.
    pub access_times: AccessTimes,
    /// Every change is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
}

/// Everything that makes an instance. Relative paths are relative to the working directory at the time of
/// [`crate::layers::open`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Where the tree is mounted.
    pub mountpoint: PathBuf,
    /// Lower layers, the top one first.
    pub lowers: Vec<PathBuf>,
    /// The layer that takes changes; None: the tree is read-only.
    pub upper: Option<PathBuf>,
    /// Where new objects are prepared; on the upper's filesystem. Needed with an upper that is written to.
    pub work: Option<PathBuf>,
    /// How file data travels.
    pub profile: Profile,
    /// Threads that answer requests. None: by the number of processors.
    pub workers: Option<NonZeroUsize>,
    /// Keep processors from deep sleep while requests come in numbers (privileged).
    pub keep_awake: bool,
    /// Mounts of the tree with mapped ids are allowed also where programs would be given files, which they are not then.
    pub idmap: bool,
    /// User ids in the layers against those in the mount.
    pub uid_map: IdMap,
    /// Group ids in the layers against those in the mount.
    pub gid_map: IdMap,
    /// Show every file as owned by this user.
    pub squash_uid: Option<u32>,
    /// Show every file as of this group.
    pub squash_gid: Option<u32>,
    /// Nothing is made durable; a crash may lose everything in the upper.
    pub volatile: bool,
    /// With [`Profile::Cached`]: every write comes here at once, and is not collected in the kernel's page cache.
    pub write_through: bool,
    /// Directories show a link count of 1.
    pub static_nlink: bool,
    /// POSIX ACLs are not honoured.
    pub no_acl: bool,
    /// Extended attributes of users cannot be read or set.
    pub no_xattrs: bool,
    /// Owner, mode and type are recorded in an extended attribute, not set. None: as the upper's root says.
    pub override_owners: Option<OverrideStat>,
    /// How long the kernel may believe names and attributes. None: as long as only this mount changes the upper.
    pub timeout: Option<Duration>,
    /// When lower files are copied block by block.
    pub block_copy: BlockCopy,
    /// How it is recorded which blocks a file has copied.
    pub block_map: BlockMap,
    /// Bytes per second that are copied into partial files while there is nothing else to do; None: none.
    pub background_fill: Option<u64>,
    /// How much of what the upper takes from other layers is copied when the mount has ended.
    pub fill_at_end: FillAtEnd,
    /// What the mount itself allows.
    pub flags: MountFlags,
    /// Whether others than the one who mounts may enter. None: only when root mounts.
    pub allow_other: Option<bool>,
    /// Only root may enter beside the one who mounts.
    pub allow_root: bool,
    /// How mounts below the mount point come and go elsewhere. None: as for those beside it.
    pub propagation: Option<Propagation>,
    /// Take the mount away when the process dies, whatever it dies of.
    pub auto_unmount: bool,
    /// How much of its privileges the process gives up.
    pub sandbox: crate::sandbox::Mode,
    /// Largest read request in bytes.
    pub max_read: Option<u32>,
    /// What mount(8) shows as the source.
    pub source: Option<OsString>,
    /// What mount(8) shows as the type, after `fuse.`.
    pub subtype: Option<OsString>,
    /// Security labels for the mount: option name and value.
    pub labels: Vec<(String, OsString)>,
}

/// What other mount namespaces, and other mounts of the same tree, see of mounts below a mount point: mount(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Nothing, in either direction.
    Private,
    /// All, in both directions.
    Shared,
    /// What comes from elsewhere is seen here.
    Slave,
    /// Nothing, and the mount cannot be bound elsewhere.
    Unbindable,
}

impl Config {
    /// Whether the upper is to be written to.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.upper.is_some() && !self.flags.read_only
    }
}
