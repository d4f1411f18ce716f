//! Where the data of a file are that has them not itself.

use crate::copyup::partial_file;
use crate::extents::Record;
use crate::layers::Layers;
use crate::layers::layer::LowerDir;
use crate::layers::marks::{self, OwnMark, Space};
use crate::layers::merge::LayerLookup;
use crate::nodes::node::{LowerData, LowerLocation};
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, Errno, Error, Name, Result};

/// Longest chain of files of which only attributes were copied up.
const BELOW_MAX: usize = 512;

/// A file as a layer holds it.
pub(crate) struct LayerFile<'a> {
    pub(crate) layer: u16,
    pub(crate) handle: &'a dyn BranchDir,
    pub(crate) name: Name<'a>,
    /// As stored.
    pub(crate) attr: Attr,
    /// The directory holds copies that the kernel made; this may be one without data.
    pub(crate) impure: bool,
    /// Parts of the same directory in the layers below.
    pub(crate) rest: &'a [Arc<LowerDir>],
}

impl Layers {
    /// Where the data of a file are of which only the attributes, or some blocks, are in its layer. EIO: the origin has
    /// changed, or is not there. `space`: where marks are written in the upper layer; None: they are not.
    /// `depth`: how many files of a chain were there before this one.
    pub(crate) fn data_below(
        &self,
        found: &LayerFile<'_>,
        own: Option<&OwnMark>,
        space: Option<Space>,
        depth: usize,
    ) -> Result<Option<Arc<LowerData>>> {
        if !self.is_metacopy(found, own)? {
            return Ok(None);
        }
        let partial = own.is_some_and(|o| o.partial);
        let size = if partial { self.record_of(found)?.origin_size } else { found.attr.size };
        let mut origin = self.origin_of(found)?;
        for _ in depth..BELOW_MAX {
            let LayerLookup::File { dir, name, attr, rest } = origin else {
                return Err(self.lost_origin(found, "its origin is missing"));
            };
            let handle = dir.open(self)?;
            let stored = Name::new(&name)?;
            if !partial
                && attr.is_file()
                && attr.size > size
                && own.is_some_and(|o| o.below && o.mtime == attr.mtime)
            {
                // Versions before 0.2 cut without a word beforehand, and may have died before they took the marks away.
                if let Some(space) = space.filter(|_| found.layer == 0) {
                    partial_file::unmark(&*found.handle.hold(found.name)?, space)?;
                }
                return Ok(None);
            }
            if !attr.is_file() || attr.size != size {
                return Err(self.changed_origin(found, &dir, stored, "its origin has another size"));
            }
            let impure = dir.impure;
            let next =
                LayerFile { layer: dir.layer, handle: &*handle, name: stored, attr, impure, rest: &rest };
            let next_own = self.own_mark_at(dir.layer, &*handle, stored)?;
            // In a chain the data are the first file's that has some, so it is that one's time that tells a change.
            let next_partial = next_own.is_some_and(|o| o.partial);
            if next_partial || !self.is_metacopy(&next, next_own.as_ref())? {
                if own.is_some_and(|o| o.below && o.mtime != attr.mtime) {
                    return Err(self.changed_origin(found, &dir, stored, "its origin has changed"));
                }
                let rest = self.data_below(&next, next_own.as_ref(), space, depth + 1)?;
                let at = LowerLocation { dir: Arc::clone(&dir), name: name.clone().into() };
                return Ok(Some(Arc::new(LowerData { at, next: rest })));
            }
            origin = self.origin_of(&next)?;
        }
        Err(self.lost_origin(found, "its origins form a loop"))
    }

    /// Ends the cut of a file of the upper layer that was interrupted. Returns its mark from now on.
    pub(crate) fn end_cut(
        &self,
        found: &LayerFile<'_>,
        own: Option<OwnMark>,
        space: Option<Space>,
    ) -> Result<Option<OwnMark>> {
        match (own, space) {
            (Some(own), Some(space)) if found.layer == 0 && own.may_be_truncating(&found.attr) => {
                partial_file::end_cut(&*found.handle.hold(found.name)?, space, own, found.attr.size).map(Some)
            }
            (own, _) => Ok(own),
        }
    }

    /// The record of a partial file in a layer.
    fn record_of(&self, found: &LayerFile<'_>) -> Result<Record> {
        let space = self.layer(found.layer).and_then(|l| l.marking.own).unwrap_or(Space::Trusted);
        let mut value = [0; 64];
        let record = found
            .handle
            .get_xattr_at(found.name, space.partial(), &mut value)
            .ok()
            .and_then(|n| Record::decode(value.get(..n)?).ok());
        record.ok_or_else(|| self.lost_origin(found, "the record of its blocks is missing or damaged"))
    }

    /// A lower file is not the one that a file above was made from.
    fn changed_origin(
        &self,
        found: &LayerFile<'_>,
        dir: &LowerDir,
        name: Name<'_>,
        why: &'static str,
    ) -> Error {
        let origin = Error::new(Errno::IO, why).damage().at(dir.path_of(name).to_bytes());
        self.in_layer(found.layer, self.in_layer(dir.layer, origin).at(found.name.bytes()))
    }

    fn lost_origin(&self, found: &LayerFile<'_>, why: &'static str) -> Error {
        self.in_layer(found.layer, Error::new(Errno::IO, why).damage().at(found.name.bytes()))
    }

    /// An error that concerns something in a layer.
    pub(crate) fn in_layer(&self, layer: u16, error: Error) -> Error {
        error.at(self.layer(layer).map(|layer| layer.branch.describe()).unwrap_or_default())
    }

    /// Whether only the attributes of a file are in its layer. The kernel marks a directory with such files as impure,
    /// so that elsewhere no look at the file is needed.
    fn is_metacopy(&self, found: &LayerFile<'_>, own: Option<&OwnMark>) -> Result<bool> {
        let attr = &found.attr;
        if !attr.is_file() || attr.size == 0 {
            return Ok(false);
        }
        if let Some(own) = own.filter(|o| o.below) {
            return Ok(!own.cut || !partial_file::is_cut(own, attr.size, || self.record_of(found))?);
        }
        // A file without any block may be one as well, if it was copied here alone.
        if !found.impure && attr.blocks > 0 {
            return Ok(false);
        }
        for space in self.mark_spaces(found.layer) {
            match found.handle.get_xattr_at(found.name, space.metacopy(), &mut []) {
                Ok(_) => return Ok(true),
                Err(e) if marks::is_none(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// What the data of a file without data in its layer come from.
    fn origin_of(&self, found: &LayerFile<'_>) -> Result<LayerLookup> {
        for space in self.mark_spaces(found.layer) {
            let mut value = vec![0u8; 4096];
            match found.handle.get_xattr_at(found.name, space.redirect(), &mut value) {
                Ok(n) => {
                    value.truncate(n);
                    marks::check_redirect(&value)?;
                    return self.follow_redirect(&value, found.layer, found.rest);
                }
                Err(e) if marks::is_none(&e) => {}
                Err(e) => return Err(e),
            }
        }
        self.find(found.rest, found.name)
    }
}
