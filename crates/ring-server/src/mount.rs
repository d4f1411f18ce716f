//! A mount as programs reach it beside the kernel.

use crate::counts::RingStats;
use crate::tokens::{Prover, Tokens};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use vellum_ring::files::MOUNT_NUMBERS;
use vellum_vfs::{Context, NodeId, Result};

/// What programs are given of a mount.
pub struct Mount<T> {
    /// None: no program reads from mappings here.
    pub memory: Option<Readable>,
    /// Where its files are handed out; None: they are not.
    pub files: Option<Files<T>>,
    /// Processors are kept awake for it.
    pub keep_awake: bool,
}

/// A memory that every program may read.
#[derive(Clone)]
pub struct Readable {
    /// By which programs ask for it.
    pub id: u64,
    pub memory: Arc<dyn AsFd + Send + Sync>,
}

/// Where the files of a mount are handed out.
pub struct Files<T> {
    /// The tree, as long as it is served.
    pub tree: Weak<T>,
    /// How programs come to it.
    pub entrance: Arc<Entrance>,
    /// By what programs tell its files, as a greeting has it.
    pub numbers: [u64; MOUNT_NUMBERS],
}

impl<T> Files<T> {
    /// Whether the mount is still served.
    pub(crate) fn is_served(&self) -> bool {
        self.tree.strong_count() > 0
    }
}

/// What programs have shown of a mount by way of the kernel, and what they were given of it.
#[derive(Debug, Default)]
pub struct Entrance {
    pub(crate) tokens: Tokens,
    pub(crate) stats: RingStats,
}

impl Entrance {
    /// Notes that the process that makes this request may write to a directory or a file. EINVAL: `value` is no token. EOPNOTSUPP: the
    /// process is not to be seen from here.
    pub fn note(&self, cx: &Context<'_>, node: NodeId, value: &[u8]) -> Result<()> {
        self.tokens.note(Prover::from_context(cx)?, node, value)
    }

    /// How many calls there were, by the names that reports have for them.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<String, u64> {
        self.stats.figures()
    }
}
