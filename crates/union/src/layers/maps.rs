//! Sidecars: files beside the tree, in a directory of the layer's root that nobody sees, that list the own blocks of partial
//! files on filesystems that cannot tell holes from data.

use crate::extents::Sidecar;
use crate::layers::layer::{Layer, c_string};
use crate::layers::marks::Space;
use std::ffi::CStr;
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
pub(crate) fn named(number: u64) -> Box<CStr> {
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

impl DoomedSidecar {
    pub(crate) fn new(maps: Arc<dyn BranchDir>, number: u64) -> Self {
        Self { maps, number }
    }
}

impl Drop for DoomedSidecar {
    fn drop(&mut self) {
        remove(&*self.maps, self.number);
    }
}

/// Removes a sidecar.
pub(crate) fn remove(maps: &dyn BranchDir, number: u64) {
    if let Ok(name) = Name::new(&named(number))
        && let Err(error) = maps.remove(name)
        && error.errno() != Errno::NOENT
    {
        tracing::debug!(%error, "removing a block map");
    }
}
