//! Copy-up: an object of a lower layer comes into the upper one.

pub(crate) mod copy_metadata;
pub(crate) mod data;
pub(crate) mod full_copy;
pub(crate) mod partial_file;
pub(crate) mod pending_completion;
pub(crate) mod privileges;
pub(crate) mod publication;
pub(crate) mod unsynced_metadata;

use crate::copyup::pending_completion::PendingCompletion;
use crate::layers::marks::Space;
use crate::layers::work_dir::Work;
use crate::sync::{AtomicBool, Mutex};
use std::collections::VecDeque;
use vellum_vfs::{Errno, Error, Result};

/// The upper layer as something that is written to.
pub(crate) struct Upper {
    /// The work directory; None: read-only.
    work: Option<Work>,
    /// It may hold whiteouts in the AUFS format.
    pub(crate) aufs: bool,
    /// Partial files that were opened for writing and may be completed when there is time.
    partials: Mutex<VecDeque<PendingCompletion>>,
    /// Its root says which layers are below it, or cannot.
    lowers_recorded: AtomicBool,
}

impl Upper {
    pub(crate) fn new(work: Option<Work>, aufs: bool) -> Self {
        Self { work, aufs, partials: Mutex::default(), lowers_recorded: AtomicBool::new(false) }
    }

    /// The work directory. EROFS: there is none, the union is read-only.
    pub(crate) fn work(&self) -> Result<&Work> {
        self.work.as_ref().ok_or(Error::new(Errno::ROFS, "read-only union"))
    }

    /// Where marks are written.
    pub(crate) fn space(&self) -> Space {
        self.work.as_ref().map_or(Space::Trusted, |w| w.space)
    }
}
