//! Which sidecars the upper layer has, makes and takes away.

use crate::extents::Record;
use crate::layers::Layers;
use crate::layers::marks::Space;
use crate::layers::sidecar::{DoomedSidecar, MAPS, named, remove};
use crate::nodes::node::{Dir, File, FileState, InodeLocation};
use std::hash::{BuildHasher, RandomState};
use vellum_vfs::{Errno, Error, Name, Result};

impl Layers {
    /// After a file of the upper has lost a name: if that was the last one, its sidecar goes when nobody has it open any more.
    pub(crate) fn doom_sidecar(&self, file: &File, state: &FileState, space: Space) {
        let InodeLocation::Orphan(object) = &state.at else { return };
        if state.partial
            && let Ok(record) = Record::read(&**object, space.partial())
            && let Some(number) = record.sidecar
            && object.stat().is_ok_and(|attr| state.links(attr.nlink) == 0)
            && let Some(maps) = self.first().and_then(|layer| layer.maps.clone())
        {
            *file.doomed.lock() = Some(Box::new(DoomedSidecar::new(maps, number)));
        }
    }

    /// The numbers of all sidecars in the upper layer.
    pub(crate) fn sidecars(&self) -> Result<Vec<u64>> {
        let Some(maps) = self.first().and_then(|layer| layer.maps.as_ref()) else { return Ok(vec![]) };
        let mut numbers = Vec::new();
        maps.list(&mut |item| {
            let number = std::str::from_utf8(item.name.bytes()).ok();
            numbers.extend(number.and_then(|text| u64::from_str_radix(text, 16).ok()));
            Ok(())
        })?;
        Ok(numbers)
    }

    /// Makes an empty sidecar in the upper layer.
    pub(crate) fn new_sidecar(&self) -> Result<u64> {
        let maps = self.first().and_then(|layer| layer.maps.as_ref());
        let maps = maps.ok_or(Error::new(Errno::IO, "no directory of block maps"))?;
        // Numbers by chance: layers are copied, so what was counted on one may exist on another.
        let random = RandomState::new();
        for attempt in 0..16_u8 {
            let number = random.hash_one(attempt);
            match maps.create(Name::new(&named(number))?, 0o600) {
                Ok(_) => return Ok(number),
                Err(e) if e.errno() == Errno::EXIST => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::new(Errno::EXIST, "making a block map"))
    }

    /// Takes a sidecar away that nobody refers to any more.
    pub(crate) fn drop_sidecar(&self, number: u64) {
        if let Some(maps) = self.first().and_then(|layer| layer.maps.as_ref()) {
            remove(&**maps, number);
        }
    }

    /// Whether a name in a directory is that of the directory of sidecars, which nobody sees.
    pub(crate) fn is_maps(&self, dir: &Dir, name: &[u8]) -> bool {
        self.has_maps && name == MAPS.to_bytes() && dir.is_root()
    }
}
