//! Which files may be mapped to write is kept up as they are opened and closed.

use crate::coherence::Coherence;
use crate::coherence::no_writer_cache::WriterLookup;
use crate::nodes::node::{File, Node};
use crate::union::Core;
use std::sync::atomic::Ordering::SeqCst;
use vellum_vfs::Attr;

impl Coherence {
    /// A file is about to be handed to the kernel for somebody who may map it to write; `known`: the kernel may know its attributes.
    pub(crate) fn note_mappable_open(&self, node: &Node, file: &File, known: bool) {
        let Some(mapped) = &self.mapped else { return };
        let others = file.mappable.fetch_add(1, SeqCst);
        mapped.opened.add(node.ino);
        mapped.no_writer_cache.forget(node.ino);
        if others == 0 && known {
            self.notify_attributes_changed(node);
        }
    }

    /// Such an open has ended. What was stored until then shows at once.
    pub(crate) fn closes_to_map(&self, node: &Node, file: &File) {
        // Of what a predecessor has opened nobody has counted the opens.
        let _ = file.mappable.fetch_update(SeqCst, SeqCst, |opens| opens.checked_sub(1));
        self.notify_attributes_changed(node);
    }
}

impl Core {
    /// Whether somebody may be storing to a file by a mapping.
    pub(crate) fn may_be_mapped(&self, node: &Node, attr: &Attr) -> bool {
        let Some(file) = node.as_file().filter(|_| attr.is_file()) else { return false };
        let Some(mapped) = self.coherence.mapped.as_ref().filter(|mapped| mapped.opened.have(node.ino))
        else {
            return false;
        };
        if file.used().is_some_and(|used| used.mappable.load(SeqCst) != 0) {
            return true;
        }
        let WriterLookup::Nothing(then) = mapped.no_writer_cache.look(node.ino) else { return false };
        let is_mapped = self.is_open_to_write(file);
        if !is_mapped {
            mapped.no_writer_cache.keep(node.ino, then);
        }
        is_mapped
    }
}
