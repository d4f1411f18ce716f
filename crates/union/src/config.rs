//! What a union is made of.

use crate::coherence::generations::Generations;
use crate::layers::handles::Budget;
use crate::nodes::limit::NodeLimit;
use crate::nodes::recovery::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use vellum_vfs::{Branch, Export, IdMap, Profile};

/// Whose files all files seem to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Squash {
    /// Show this owner on everything; a change of owner is ignored.
    pub uid: Option<u32>,
    /// Show this group on everything; a change of group is ignored.
    pub gid: Option<u32>,
}

/// The kind of attribute in which an upper records owner, group, mode and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverrideStat {
    /// One that only a privileged process can set.
    Privileged,
    User,
}

/// What names a run of the machine, from one crash to the next.
pub type Run = [u8; 16];

/// The run of an upper layer on which each change is durable before it is answered: whatever crashes, what was written there later is not
/// there without what was written before. What is left of it is believed in any run, on any machine.
pub const DURABLE: Run = *b"in every run    ";

/// The writable layer and the directory for work in progress; both on one filesystem.
#[derive(Clone)]
pub struct UpperConfig {
    /// The upper layer.
    pub branch: Arc<dyn Branch>,
    /// The work directory. The union makes a directory `vellum` in it.
    pub work: Arc<dyn Branch>,
}

/// Smallest file that is copied block by block unless told otherwise, in bytes.
pub const PARTIAL_FROM: u64 = 128 << 10;

/// Smallest file that is copied block by block in `passthrough`, in bytes. There the kernel reads and writes whole files itself,
/// and a partial one costs a request for each write: to copy 1 MiB takes as long as a hundred of them.
pub const PARTIAL_FROM_PASSTHROUGH: u64 = 1 << 20;

/// Smallest file of a lower layer that the kernel is given to read in `passthrough`, in bytes, if it is no program. A smaller one costs one
/// request to read, which is what it costs to give it.
pub const PASSTHROUGH_FROM: u64 = 64 << 10;

/// What a union is made of.
#[derive(Clone)]
pub struct UnionConfig {
    /// The writable layer; None: read-only.
    pub upper: Option<UpperConfig>,
    /// The lower layers, uppermost first; at most [`UnionConfig::MAX_LOWERS`].
    pub lowers: Vec<Arc<dyn Branch>>,
    /// How files are served.
    pub profile: Profile,
    /// In `passthrough`: files of lower layers that are smaller, and no programs, are read through the kernel's page cache, so that they
    /// stay one file when they are written to.
    pub passthrough_from: u64,
    /// Mapping of user ids between the layers and the mount.
    pub uid_map: IdMap,
    /// Mapping of group ids between the layers and the mount.
    pub gid_map: IdMap,
    /// Show all files as one owner's.
    pub squash: Squash,
    /// Never make anything durable: after a crash of the machine the upper may be torn.
    pub volatile: bool,
    /// Make the data of a copied-up file durable before its name appears. Without it a crash of the machine may
    /// leave a copied-up file empty.
    pub sync_copy_up: bool,
    /// Record owner, group, mode and type in an extended attribute instead of setting them; None: as the upper's root says.
    pub override_stat: Option<OverrideStat>,
    /// Report one link for every directory.
    pub static_nlink: bool,
    /// No extended attributes for the users of the mount.
    pub no_xattr: bool,
    /// No POSIX ACLs for the users of the mount.
    pub no_acl: bool,
    /// Defer the copy of a file's data, until it is written to, when only its attributes change.
    pub metacopy: bool,
    /// Lower files of at least so many bytes are copied block by block, as they are written to, where the filesystem reports
    /// holes exactly and cannot share blocks; None: always copied whole.
    pub partial_from: Option<u64>,
    /// List the own blocks of partial files in sidecars, as for filesystems that cannot tell holes from data.
    pub sidecars: bool,
    /// What names the run of the machine, from one crash to the next: what was written and is not durable yet is believed in the same run
    /// only. None: it is not known, and a crash of the process loses what a crash of the machine would. Only sidecars ask.
    pub run: Option<Run>,
    /// How long the kernel may believe names and attributes.
    pub ttl: Duration,
    /// Descriptors that the union may keep open to save opening them again; unions of one process share it.
    pub handles: Arc<Budget>,
    /// How many nodes the unions of one process may have together.
    pub nodes: Arc<NodeLimit>,
    /// Where node ids are written down for a successor of the process; a predecessor's is gone on with.
    pub ledger: Option<Arc<Ledger>>,
    /// Where clients that map files see that one may have become shorter.
    pub generations: Option<Arc<Generations>>,
    /// The upper layer's face by which programs may be given its files themselves, in passthrough and where the union shows them as they
    /// are; None: they are not.
    pub export: Option<Arc<dyn Export>>,
    /// Clear removed directories in a thread of the union's own; false: at once, which tests can repeat exactly.
    pub background: bool,
}

impl UnionConfig {
    /// Most lower layers.
    pub const MAX_LOWERS: usize = 500;
    /// Handles for each union, where there is no reason for another number.
    pub const HANDLES: usize = 4096;

    /// A read-only union of nothing; add layers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            upper: None,
            lowers: Vec::new(),
            profile: Profile::default(),
            passthrough_from: 0,
            uid_map: IdMap::default(),
            gid_map: IdMap::default(),
            squash: Squash::default(),
            volatile: false,
            sync_copy_up: true,
            override_stat: None,
            static_nlink: false,
            no_xattr: false,
            no_acl: false,
            metacopy: true,
            partial_from: Some(PARTIAL_FROM),
            sidecars: false,
            run: None,
            ttl: Duration::from_secs(86_400),
            handles: Arc::new(Budget::new(Self::HANDLES, u64::MAX)),
            nodes: Arc::default(),
            ledger: None,
            generations: None,
            export: None,
            background: true,
        }
    }
}

impl Default for UnionConfig {
    fn default() -> Self {
        Self::new()
    }
}
