//! Lower directories that others change while they are mounted. With a lifetime of zero the names in them are looked for again.

use crate::layers::Layers;
use crate::layers::layer::LowerDir;
use crate::nodes::node::Dir;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use vellum_vfs::{BranchDir, Errno, Error, Result};

/// A directory that was changed so lately, in seconds, may change again within a tick of its filesystem's clock.
const LATELY: i64 = 2;

impl Layers {
    /// Whether the names that are known of a directory are those that its lower parts have. The caller holds its `ops`.
    pub(crate) fn is_current(&self, dir: &Dir) -> bool {
        !self.may_change(dir) || self.version(dir).is_some_and(|version| dir.entries.is_of(version))
    }

    /// What changes with the names in a directory's lower parts; None: they have just changed, or cannot be looked at.
    pub(super) fn version(&self, dir: &Dir) -> Option<u64> {
        if !self.may_change(dir) {
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        let mut version = DefaultHasher::new();
        for part in &dir.lowers {
            let attr = part.open_anew(self).and_then(|handle| handle.stat()).ok()?;
            if attr.ctime.secs.saturating_add(LATELY) > now {
                return None;
            }
            attr.ino.hash(&mut version);
            for time in [attr.mtime, attr.ctime] {
                (time.secs, time.nanos).hash(&mut version);
            }
        }
        Some(version.finish())
    }

    /// Where others change lower layers at all.
    fn may_change(&self, dir: &Dir) -> bool {
        self.config.ttl.is_zero() && !dir.lowers.is_empty()
    }
}

impl LowerDir {
    /// A handle to the directory that is at this path now; it may have taken another one's place.
    fn open_anew(self: &Arc<Self>, layers: &Layers) -> Result<Arc<dyn BranchDir>> {
        let before = self.open(layers)?;
        if self.path.is_empty() {
            return Ok(before);
        }
        let layer = layers.layer(self.layer).ok_or(Error::new(Errno::IO, "no such layer"))?;
        let now = layer.branch.open_dir_path(&self.path)?;
        if now.stat()?.ino == before.stat()?.ino {
            return Ok(before);
        }
        if let (true, _) = self.slot.replace(Some(Arc::clone(&now))) {
            layers.watch(self, now.as_descriptor());
        }
        Ok(now)
    }
}
