//! What is noted when the kernel states, or should state, when a file was changed.

use crate::coherence::Coherence;
use crate::nodes::node::File;
use vellum_vfs::{Attr, Result, Timestamp};

impl Coherence {
    /// Attributes of a file that is about to be written back to. If the kernel has not stated when the file was changed, that is when it has been
    /// told: it states nothing where its clock has not moved since.
    pub(crate) fn before_writing(&self, file: &File, stat: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        let mut last = file.kernel_ctime.lock();
        let attr = stat()?;
        if let Some(ctime_cache) = &self.ctime_cache
            && last.is_none()
        {
            *last = Some(ctime_cache.get(attr.ino, attr.ctime).unwrap_or(attr.ctime));
        }
        Ok(attr)
    }

    /// Something has been done to a file that has changed its time in the layer, which `stat` tells; `kernel_ctime`: when it was changed, if the
    /// kernel says so now. One after the other: who changes the file meanwhile comes here once more. What `stat` has said, if it was asked.
    pub(crate) fn record_ctime(
        &self,
        file: &File,
        kernel_ctime: Option<Timestamp>,
        stat: impl FnOnce() -> Result<Attr>,
    ) -> Result<Option<Attr>> {
        let Some(ctime_cache) = &self.ctime_cache else { return Ok(None) };
        let mut last = file.kernel_ctime.lock();
        *last = kernel_ctime.or(*last);
        let Some(kernel_ctime) = *last else { return Ok(None) };
        let attr = stat()?;
        ctime_cache.keep(attr.ino, attr.ctime, kernel_ctime);
        Ok(Some(attr))
    }
}
