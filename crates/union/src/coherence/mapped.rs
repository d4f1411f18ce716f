//! Files that the kernel serves itself and that somebody may have mapped to write: what is stored there changes their times, and the
//! kernel does not hear of it.
//!
//! Only who has opened a file to read and to write can map it so, but the mapping outlives the descriptor. So whether there is one the
//! kernel is asked, as with files that were handed out ([`crate::coherence::no_writers`]).

use crate::coherence::no_writers::{Known, NoWriters};
use crate::coherence::writers::WriterFilter;
use crate::nodes::node::{File, Node};
use crate::union::Core;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use vellum_vfs::Attr;

/// So long the kernel believes the attributes of such a file. A database asks for the size of its files all the time, and is to be
/// answered by the kernel; who looks for changes hardly comes within less.
pub(crate) const TTL: Duration = Duration::from_millis(20);

/// Files by their inode numbers.
pub(crate) struct Mapped {
    /// That have been opened to read and to write.
    opened: WriterFilter,
    /// Those of them that nobody has open or mapped to write any more.
    no_writers: NoWriters,
}

impl Mapped {
    /// `kept`: a predecessor may have opened any of them.
    pub(crate) fn new(kept: bool) -> Self {
        Self { opened: WriterFilter::new(kept), no_writers: NoWriters::new() }
    }
}

impl Core {
    /// A file is about to be handed to the kernel for somebody who may map it to write; `known`: the kernel may know its attributes.
    pub(crate) fn opens_to_map(&self, node: &Node, file: &File, known: bool) {
        let Some(mapped) = &self.mapped else { return };
        let others = file.mappable.fetch_add(1, SeqCst);
        mapped.opened.add(node.ino);
        mapped.no_writers.forget(node.ino);
        if others == 0 && known {
            self.tell_attributes_changed(node);
        }
    }

    /// Such an open has ended. What was stored until then shows at once.
    pub(crate) fn closes_to_map(&self, node: &Node, file: &File) {
        // Of what a predecessor has opened nobody has counted the opens.
        let _ = file.mappable.fetch_update(SeqCst, SeqCst, |opens| opens.checked_sub(1));
        self.tell_attributes_changed(node);
    }

    /// Whether somebody may be storing to a file by a mapping.
    pub(crate) fn may_be_mapped(&self, node: &Node, attr: &Attr) -> bool {
        let Some(file) = node.as_file().filter(|_| attr.is_file()) else { return false };
        let Some(mapped) = self.mapped.as_ref().filter(|mapped| mapped.opened.have(attr.ino)) else {
            return false;
        };
        if file.mappable.load(SeqCst) != 0 {
            return true;
        }
        let Known::Nothing(then) = mapped.no_writers.look(attr.ino) else { return false };
        let is_mapped = self.is_open_to_write(file);
        if !is_mapped {
            mapped.no_writers.keep(attr.ino, then);
        }
        is_mapped
    }
}
