//! Everything becomes durable.

use crate::union::Union;
use vellum_vfs::Result;

impl Union {
    /// Makes everything durable that has come so far.
    pub fn sync_all(&self) -> Result<()> {
        let core = &self.0;
        let Some(upper) = core.layers.first() else { return Ok(()) };
        if core.layers.config.volatile || core.upper.work().is_err() {
            return Ok(());
        }
        // Of the blocks that files have of their own, a map beside them learns when it is told to.
        for node in core.upper.partial_nodes() {
            if let Some(io) = node.as_file().and_then(|file| file.open_io())
                && io.partial.as_ref().is_some_and(|partial| partial.sidecar().is_some())
            {
                io.file.sync(true)?;
            }
        }
        upper.branch.sync()
    }
}
