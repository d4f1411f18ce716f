//! Sidecars: files beside the tree, in a directory of the layer's root that nobody sees, that list the own blocks of partial
//! files on filesystems that cannot tell holes from data.

use crate::extents::{Record, Sidecar};
use crate::layers::layer::{Layer, c_string};
use crate::layers::marks::Space;
use crate::nodes::node::{At, File, FileState};
use crate::union::Core;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use vellum_vfs::{BranchDir, Errno, Error, Name, OpenMode, Result};

/// The directory; a user cannot make one of this name in the root while the layers have one.
pub(crate) const MAPS: &CStr = c".vellum.maps";

/// Opens the directory of a layer that has one. The layer's root must say that the layer is ours: otherwise a directory of
/// this name is a user's.
pub(crate) fn open(root: &dyn BranchDir, own: Option<Space>) -> Option<Arc<dyn BranchDir>> {
    own?;
    root.open_dir(Name::new(MAPS).ok()?).ok()
}

/// Makes the directory in an upper layer.
pub(crate) fn make(root: &dyn BranchDir) -> Result<Arc<dyn BranchDir>> {
    let name = Name::new(MAPS)?;
    match root.make_dir(name, 0o700) {
        Err(e) if e.errno() != Errno::EXIST => return Err(e.doing("making the directory of block maps")),
        _ => {}
    }
    root.open_dir(name)
}

/// The name of a sidecar.
fn named(number: u64) -> Box<CStr> {
    c_string(format!("{number:016x}").into_bytes())
}

fn lost(number: u64) -> Error {
    Error::new(Errno::IO, "the map of a partial file's blocks is missing").at(named(number).to_bytes())
}

impl Layer {
    /// Opens a sidecar.
    pub(crate) fn sidecar(&self, number: u64, writable: bool) -> Result<Sidecar> {
        let maps = self.maps.as_ref().ok_or_else(|| lost(number))?;
        let mode = if writable { OpenMode::READ | OpenMode::WRITE } else { OpenMode::READ };
        let name = named(number);
        match maps.open_file(Name::new(&name)?, mode) {
            Ok(file) => Ok(Sidecar::new(file)),
            Err(e) if e.errno() == Errno::NOENT => Err(lost(number)),
            Err(e) => Err(e),
        }
    }
}

/// The sidecar of a file that has no name any more: it goes with the file.
pub(crate) struct DoomedSidecar {
    maps: Arc<dyn BranchDir>,
    number: u64,
}

impl Drop for DoomedSidecar {
    fn drop(&mut self) {
        remove(&*self.maps, self.number);
    }
}

fn remove(maps: &dyn BranchDir, number: u64) {
    if let Ok(name) = Name::new(&named(number))
        && let Err(error) = maps.remove(name)
        && error.errno() != Errno::NOENT
    {
        tracing::debug!(%error, "removing a block map");
    }
}

impl Core {
    /// After a file of the upper has lost a name: if that was the last one, its sidecar goes when nobody has it open any more.
    pub(crate) fn doom_sidecar(&self, file: &File, state: &FileState) {
        let At::Held(object) = &state.at else { return };
        if state.partial
            && let Ok(record) = Record::read(&**object, self.space().partial())
            && let Some(number) = record.sidecar
            && object.stat().is_ok_and(|attr| attr.nlink == 0)
            && let Some(maps) = self.layers.first().and_then(|layer| layer.maps.clone())
        {
            *file.doomed.lock() = Some(DoomedSidecar { maps, number });
        }
    }

    /// The numbers of all sidecars in the upper layer.
    pub(crate) fn sidecars(&self) -> Result<Vec<u64>> {
        let Some(maps) = self.layers.first().and_then(|layer| layer.maps.as_ref()) else { return Ok(vec![]) };
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
        let maps = self.layers.first().and_then(|layer| layer.maps.as_ref());
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
        if let Some(maps) = self.layers.first().and_then(|layer| layer.maps.as_ref()) {
            remove(&**maps, number);
        }
    }

    /// Whether a name in a directory is that of the directory of sidecars, which nobody sees.
    pub(crate) fn is_maps(&self, dir: &crate::nodes::node::Dir, name: &[u8]) -> bool {
        self.has_maps && name == MAPS.to_bytes() && dir.place.read().is_none() && self.is_root(dir)
    }

    fn is_root(&self, dir: &crate::nodes::node::Dir) -> bool {
        self.root.get().and_then(|root| root.as_dir()).is_some_and(|root| std::ptr::eq(root, dir))
    }
}
