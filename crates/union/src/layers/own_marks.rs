//! Our own mark on what the layers hold.

use crate::copyup::partial_file::own_mark;
use crate::layers::Layers;
use crate::layers::marks::OwnMark;
use crate::nodes::ino;
use vellum_vfs::{BranchDir, Errno, Name, Object, Result};

impl Layers {
    /// The inode number that a file shows whose mark names an origin; None if the origin's filesystem is not here, or cannot be told from
    /// another one: several devices may have one name, as snapshots of CephFS and filesystems without a name do.
    pub(crate) fn origin_ino(&self, own: &OwnMark) -> Option<u64> {
        let mut named = self.stack.iter().filter(|l| own.origin && l.fsid == own.fsid);
        let layer = named.next()?;
        named.all(|other| other.fs == layer.fs).then(|| ino::visible_ino(layer.fs, own.ino))
    }

    /// Our own mark on an entry of a layer's directory; None if the layer's files carry none.
    pub(crate) fn own_mark_at(
        &self,
        layer: u16,
        dir: &dyn BranchDir,
        name: Name<'_>,
    ) -> Result<Option<OwnMark>> {
        let Some(space) = self.layer(layer).and_then(|l| l.marking.own) else {
            return Ok(None);
        };
        let mut value = [0u8; 64];
        match dir.get_xattr_at(name, space.own(), &mut value) {
            Ok(n) => OwnMark::decode(value.get(..n).unwrap_or_default())
                .map(Some)
                .map_err(|e| self.in_layer(layer, e.at(name.bytes()))),
            Err(e) if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Our own mark on an object of the upper layer, if it has a good one.
    pub(crate) fn own_mark_of(&self, object: &dyn Object) -> Option<OwnMark> {
        let space = self.first()?.marking.own?;
        own_mark(object, space).ok().flatten()
    }
}
