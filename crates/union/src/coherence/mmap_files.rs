//! Files that the kernel serves itself and that somebody may have mapped to write: what is stored there changes their times, and the
//! kernel does not hear of it.
//!
//! Only who has opened a file to read and to write can map it so, but the mapping outlives the descriptor. So whether there is one the
//! kernel is asked, as with files that were handed out ([`crate::coherence::no_writer_cache`]).

use crate::coherence::no_writer_cache::NoWriterCache;
use crate::coherence::writers::WriterFilter;
use std::time::Duration;

/// So long the kernel believes the attributes of such a file. A database asks for the size of its files all the time, and is to be
/// answered by the kernel; who looks for changes hardly comes within less.
pub(crate) const TTL: Duration = Duration::from_millis(20);

/// Files by their inode numbers.
pub(crate) struct MmapFiles {
    /// That have been opened to read and to write.
    pub(super) opened: WriterFilter,
    /// Those of them that nobody has open or mapped to write any more.
    pub(super) no_writer_cache: NoWriterCache,
}

impl MmapFiles {
    /// `after_restart`: a predecessor may have opened any of them.
    pub(crate) fn new(after_restart: bool) -> Self {
        Self { opened: WriterFilter::new(after_restart), no_writer_cache: NoWriterCache::new() }
    }
}
