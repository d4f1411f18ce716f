//! The memory of a mount that its successor goes on with: the one list of it.

use crate::failure::Failure;
use crate::path_text;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use vellum_branch::Writeback;
use vellum_fuse::Inflight;
use vellum_union::{Generations, Ledger};
use vellum_vfs::{Errno, Error};

/// A descriptor of each: by its number in a record, or open.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryFds<T> {
    pub(super) ledger: T,
    inflight: T,
    /// None: no program reads from mappings here.
    #[serde(deserialize_with = "path_text::required")]
    generations: Option<T>,
    /// The write-back log. None: there is no write-back.
    #[serde(deserialize_with = "path_text::required")]
    pub(super) log: Option<T>,
}

/// The memories of a mount, opened.
pub(super) struct MountMemory {
    pub(super) ledger: Arc<Ledger>,
    pub(super) inflight: Arc<Inflight>,
    pub(super) generations: Option<Arc<Generations>>,
    /// A predecessor's. A new one is made with the layers.
    pub(super) log: Option<OwnedFd>,
}

impl<T> MemoryFds<T> {
    pub(super) fn map<U, E>(self, mut each: impl FnMut(T) -> Result<U, E>) -> Result<MemoryFds<U>, E> {
        Ok(MemoryFds {
            ledger: each(self.ledger)?,
            inflight: each(self.inflight)?,
            generations: self.generations.map(&mut each).transpose()?,
            log: self.log.map(each).transpose()?,
        })
    }
}

impl MountMemory {
    /// New memory. `programs`: some may reach the service beside the mount.
    pub(super) fn create(programs: bool) -> Result<Self, Failure> {
        let failed = |e: Error| match e.errno() {
            // Most of it is never touched, but all of it counts.
            Errno::FBIG => Failure::input(
                "limit of file size: too low for what the service keeps in memory; raise the hard limit (ulimit -f)",
            ),
            _ => Failure::system(e.to_string()),
        };
        Ok(Self {
            ledger: Arc::new(Ledger::create().map_err(failed)?),
            inflight: Arc::new(Inflight::create().map_err(failed)?),
            generations: programs.then(Generations::create).transpose().map_err(failed)?.map(Arc::new),
            log: None,
        })
    }

    /// A predecessor's.
    pub(super) fn open(left: MemoryFds<OwnedFd>) -> Result<Self, Failure> {
        let failed = |e: Error| Failure::system(e.to_string());
        Ok(Self {
            ledger: Arc::new(Ledger::open(left.ledger).map_err(failed)?),
            inflight: Arc::new(Inflight::open(left.inflight).map_err(failed)?),
            generations: left.generations.map(Generations::open).transpose().map_err(failed)?.map(Arc::new),
            log: left.log,
        })
    }

    pub(super) fn numbers(&self, writeback: Option<&Writeback>) -> MemoryFds<RawFd> {
        MemoryFds {
            ledger: self.ledger.descriptor().as_raw_fd(),
            inflight: self.inflight.descriptor().as_raw_fd(),
            generations: self.generations.as_deref().map(|memory| memory.as_fd().as_raw_fd()),
            log: writeback.map(|writeback| writeback.memory().as_raw_fd()),
        }
    }
}
