//! What a client does past the front: it is given files of the upper layer themselves ([`vellum_vfs::Handout`]), and the front must not
//! believe otherwise afterwards.
//!
//! Files are opened and made by the upper layer's [`Export`](vellum_vfs::Export). Here is decided whether that means the same as
//! by way of the front, what must not happen at the same time, and what the front is told ([`crate::coherence::kernel_view`]). Whatever is not
//! certain is refused, and goes through the front as ever. Who may do what is in [`policy`].

mod open;
mod ops;
mod policy;

use crate::coherence::Coherence;
use crate::layers::marks::WHITEOUT_PREFIX;
use crate::nodes::node::{Dir, File, InodeLocation, Node};
use crate::union::Core;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use vellum_vfs::{DirName, ExportDir, FileKind, HandoutError, Name, NodeId, Verdict};

/// A directory of the union's, whether the front knows it or not. It stays the same one when it is moved.
pub struct Directory {
    node: Arc<Node>,
    /// The directory in the upper layer.
    at: Arc<dyn ExportDir>,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Directory").field(&self.node.id).finish()
    }
}

impl Directory {
    fn new(node: Arc<Node>, at: Arc<dyn ExportDir>) -> Self {
        Self { node, at }
    }
}

impl Coherence {
    /// Whether a client may make a name in a directory without the front. The caller holds the directory's `ops` exclusively.
    fn check_new_name(&self, node: &Node, dir: &Dir, name: Name<'_>) -> Verdict<()> {
        let (handouts, front) = (self.handouts()?, self.front()?);
        // The front has heard all answers that are older.
        let may = dir.lease.has_no_pending_answers(|| front.notifier.active_operations(), handouts.now())
            // The kernel makes it, and need not be told: to take back that it is not there would mean to wait for whatever goes on in the
            // directory, and a service that waits so cannot even be killed.
            && !dir.lease.negative.has(name)
            // What is carried out a second time must find the name as it has left it.
            && !front.notifier.is_pending(node.id, name);
        if may { Ok(()) } else { Err(HandoutError::Kernel) }
    }
}

impl Core {
    /// A directory of the upper layer, where clients may do something themselves.
    fn shared_dir<'a>(&self, node: &'a Node) -> Verdict<&'a Dir> {
        self.coherence.handouts()?;
        let dir = node.as_dir().ok_or(HandoutError::Stale)?;
        if dir.removed.load(Relaxed) {
            return Err(HandoutError::Stale);
        }
        if dir.upper.lock().is_none() || self.upper.aufs {
            return Err(HandoutError::Kernel);
        }
        Ok(dir)
    }

    /// The directory of a name that means the same in the upper layer.
    fn shared_dir_of<'a>(&self, at: &DirName<'a, Directory>) -> Verdict<(&'a Arc<Node>, &'a Dir)> {
        let node = &at.dir.node;
        let dir = self.shared_dir(node)?;
        let name = at.name.bytes();
        if self.layers.is_maps(dir, name) || name.starts_with(WHITEOUT_PREFIX) {
            return Err(HandoutError::Kernel);
        }
        Ok((node, dir))
    }

    /// Where a directory is in the upper layer: its path there, and its inode number.
    fn upper_place(&self, node: &Arc<Node>) -> Verdict<(Vec<u8>, u64)> {
        let dir = self.shared_dir(node)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = Arc::clone(node);
        loop {
            let place = at.as_dir().and_then(|dir| dir.place.read().clone());
            let Some(place) = place else { break };
            names.push(place.name.to_bytes().to_vec());
            at = place.parent;
        }
        if at.id != NodeId::ROOT {
            return Err(HandoutError::Stale);
        }
        names.reverse();
        let ino = dir.upper.lock().as_ref().map(|upper| upper.ino);
        Ok((names.join(&b'/'), ino.ok_or(HandoutError::Kernel)?))
    }

    /// Notes for a successor that programs are about to change names of a directory past the kernel.
    fn notes_shared(&self, node: &Node, dir: &Dir) {
        if dir.lease.shared.load(Relaxed) == 0
            && let Some(ledger) = self.nodes.ledger()
        {
            ledger.set_shared(node.id);
        }
    }
}

/// A file that a client may be given itself: a regular one, wholly in the upper layer, under its own number.
fn is_complete_file(node: &Node, file: &File) -> bool {
    let state = file.state.read();
    file.kind == FileKind::Regular
        && matches!(state.at, InodeLocation::Upper)
        && state.below.is_none()
        && !state.partial
        && !state.lost_data
        && !state.null_device
        && !node.marks().alias
        && !node.marks().stale.load(SeqCst)
        && file.count_of_cached_opens() == 0
}
