//! What the kernel is told, where programs change things past it; what it may believe is noted with each directory
//! ([`crate::coherence::leases::DirLease`]).
//!
//! An answer that is on its way to the kernel can be older than a change that is made meanwhile. For attributes the kernel notices that
//! itself. For lists of names it does not: so a directory is the kernel's alone until the answers that were under way have arrived. A name
//! of which it was told that it is not there is the kernel's to make.

use crate::coherence::Coherence;
use crate::coherence::attr_reply_budget::AttrProbeBudget;
use crate::coherence::no_writer_cache::WriterLookup;
use crate::nodes::node::{Dir, File, InodeLocation, Node};
use crate::union::Core;
use std::sync::atomic::Ordering::SeqCst;
use vellum_vfs::{FileKind, Name, NodeId, OpenMode, Result};

impl Coherence {
    /// Whether programs may ever have been writing to a file.
    pub(crate) fn was_written(&self, node: &Node) -> bool {
        let is_file = node.as_file().is_some_and(|file| file.kind == FileKind::Regular);
        is_file && self.handouts.as_ref().is_some_and(|handouts| handouts.written.have(node.ino))
    }

    /// To be called before the front is told attributes of a directory; true: those that were read before must be read again.
    pub(crate) fn note_attributes_sent(&self, node: &Node) -> bool {
        match node.as_dir() {
            Some(dir) if self.handouts.is_some() && !dir.lease.attributes.load(SeqCst) => {
                dir.lease.attributes.store(true, SeqCst);
                true
            }
            _ => false,
        }
    }

    /// To be called before the front is told names of a directory, with its `ops` held.
    pub(crate) fn note_names_sent(&self, dir: &Dir) {
        if self.handouts.is_some() {
            dir.lease.note_names_sent();
        }
    }

    /// Has the kernel forget what it knows of a file's attributes. Where set-id bits have gone, before it is answered: it does not expect
    /// that of a write or an open, and would go on to run the file with them.
    pub(crate) fn notify_attributes_changed(&self, node: &Node) {
        if let Err(error) = self.recall_attributes(node.id) {
            tracing::warn!(%error, "the kernel was not told of changed attributes");
        }
    }
}

impl Core {
    /// Whether programs may be writing to a file just now. Who begins later takes back what the front was told of it. To be asked before
    /// attributes are read: what was written by one that has ended is in them then.
    pub(crate) fn has_writers(&self, node: &Node) -> bool {
        let (Some(file), Some(handouts)) = (node.as_file(), &self.coherence.handouts) else { return false };
        if !self.coherence.was_written(node) {
            return false;
        }
        let WriterLookup::Nothing(then) = handouts.no_writer_cache.look(node.ino) else { return false };
        let writes = self.is_open_to_write(file);
        if !writes {
            handouts.no_writer_cache.keep(node.ino, then);
        }
        writes
    }

    /// Whether it is not known that nobody writes to a file, which was given to programs, past the mount.
    fn probe_budget_if_unknown(&self, node: &Node) -> Option<&AttrProbeBudget> {
        let handouts = self.coherence.handouts.as_ref().filter(|_| self.coherence.was_written(node))?;
        matches!(handouts.no_writer_cache.look(node.ino), WriterLookup::Nothing(_))
            .then_some(&handouts.attr_probe)
    }

    /// [`Self::has_writers`], of a file of which the kernel is told by name: true without a look where that is not worth it. The kernel asks
    /// then, if it wants to know.
    pub(crate) fn may_have_writers(&self, node: &Node) -> bool {
        match self.probe_budget_if_unknown(node) {
            Some(attr_probe) if !attr_probe.take_probe() => true,
            _ => self.has_writers(node),
        }
    }

    /// [`Self::has_writers`], of a file whose attributes the kernel asks for.
    pub(crate) fn has_writers_now(&self, node: &Node) -> bool {
        if let Some(attr_probe) = self.probe_budget_if_unknown(node) {
            attr_probe.refill();
        }
        self.has_writers(node)
    }

    /// Whether somebody but the union has a file open to write, or mapped.
    pub(crate) fn is_open_to_write(&self, file: &File) -> bool {
        let asked = || -> Result<bool> {
            let state = file.state.read();
            // Only what is whole and in the upper layer is ever handed out.
            if matches!(state.at, InodeLocation::Lower(_)) || state.below.is_some() {
                return Ok(false);
            }
            Ok(self.layers.target_of(&state)?.1.open(OpenMode::READ)?.has_writers())
        };
        if !asked().unwrap_or(true) {
            return false;
        }
        // The union itself may have it open from before. Of what a predecessor had open not all can be opened again.
        if self.nodes.is_recovering() {
            return true;
        }
        let was_open = file.used().is_some_and(|used| used.io.drop_handle().is_some());
        !was_open || asked().unwrap_or(true)
    }

    /// Whether programs may be making a file shorter just now. To be asked before its size is.
    pub(crate) fn has_cutters(&self, node: &Node) -> bool {
        let handouts = self.coherence.handouts.as_ref();
        handouts.is_some_and(|handouts| handouts.cut.have(node.ino)) && self.has_writers(node)
    }

    /// To be called before the front is told that a name is not there, with no lock held: whether it may believe it.
    pub(crate) fn note_negative_sent(&self, parent: NodeId, name: Name<'_>) -> bool {
        let Some(handouts) = &self.coherence.handouts else { return true };
        let Ok(node) = self.node(parent) else { return false };
        let Some(dir) = node.as_dir() else { return false };
        // Programs make names with it held exclusively: whoever does so later finds this name noted.
        let _names = dir.entries.share();
        let seen = &dir.lease;
        let shared = seen.shared.load(SeqCst);
        if handouts.is_shared(shared) {
            return false;
        }
        // It is the front's alone again, but a program may have made the name since it was looked for.
        if shared != 0 && !matches!(self.child(&node, name), Ok(None)) {
            return false;
        }
        seen.negative.add(name);
        if let Some(ledger) = self.nodes.ledger() {
            ledger.set_negative(parent, true);
        }
        true
    }
}
