//! What is noted when the kernel states, or should state, when a file was changed.

use crate::coherence::Coherence;
use crate::nodes::node::File;
use vellum_vfs::{Attr, Result, Timestamp};

impl Coherence {
    /// Attributes of a file that is about to be written back to. If the kernel has not stated when the file was changed, that is when it has been
    /// told: it states nothing where its clock has not moved since.
    pub(crate) fn before_writing(&self, file: &File, stat: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        let mut last = file.stated.lock();
        let attr = stat()?;
        if let Some(ctimes) = &self.ctimes
            && last.is_none()
        {
            *last = Some(ctimes.of(attr.ino, attr.ctime).unwrap_or(attr.ctime));
        }
        Ok(attr)
    }

    /// Something has been done to a file that has changed its time in the layer, which `stat` tells; `stated`: when it was changed, if the
    /// kernel says so now. One after the other: who changes the file meanwhile comes here once more. What `stat` has said, if it was asked.
    pub(crate) fn keep_ctime(
        &self,
        file: &File,
        stated: Option<Timestamp>,
        stat: impl FnOnce() -> Result<Attr>,
    ) -> Result<Option<Attr>> {
        let Some(ctimes) = &self.ctimes else { return Ok(None) };
        let mut last = file.stated.lock();
        *last = stated.or(*last);
        let Some(stated) = *last else { return Ok(None) };
        let attr = stat()?;
        ctimes.keep(attr.ino, attr.ctime, stated);
        Ok(Some(attr))
    }
}
