//! Sidecars: files beside the tree, in a directory of the layer's root that nobody sees, that list the own blocks of partial
//! files on filesystems that cannot tell holes from data.

use crate::config::Run;
use crate::extents::{Sidecar, SidecarJournal};
use crate::layers::layer::{Layer, c_string};
use crate::layers::marks::Space;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{BranchDir, BranchFile, Errno, Error, Name, OpenMode, Result};

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

/// What the names end with of files for bits that are not durable yet.
const RECENT: &[u8] = b".recent";

/// The name of the file beside a sidecar for bits that are not durable yet.
fn recent_of(number: u64) -> Box<CStr> {
    let mut name = named(number).to_bytes().to_vec();
    name.extend(RECENT);
    c_string(name)
}

/// Takes over what a service has left that died: bits of blocks that were written in this `run` of the machine become durable, after all blocks by
/// `sync`; those of another run are not believed.
pub(crate) fn adopt(maps: &dyn BranchDir, run: Option<Run>, sync: &dyn Fn() -> Result<()>) -> Result<()> {
    let mut left: Vec<Box<CStr>> = Vec::new();
    maps.list(&mut |item| {
        if item.name.bytes().ends_with(RECENT) {
            left.push(item.name.as_c_str().into());
        }
        Ok(())
    })?;
    let mut synced = false;
    for name in left {
        let whole = name.to_bytes().strip_suffix(RECENT).unwrap_or_default();
        let sidecar = c_string(whole.to_vec());
        let name = Name::new(&name)?;
        let file = maps.open_file(name, OpenMode::READ)?;
        if SidecarJournal::is_of(&*file, run)? {
            match maps.open_file(Name::new(&sidecar)?, OpenMode::READ | OpenMode::WRITE) {
                Ok(sidecar) => {
                    if !synced {
                        sync()?;
                        synced = true;
                    }
                    SidecarJournal::adopt(&*file, &*sidecar)?;
                }
                Err(e) if e.errno() == Errno::NOENT => {}
                Err(e) => return Err(e),
            }
        }
        maps.remove(name)?;
    }
    Ok(())
}

/// The name of a sidecar.
pub(crate) fn named(number: u64) -> Box<CStr> {
    c_string(format!("{number:016x}").into_bytes())
}

/// A sidecar, and the file for bits of it that are not durable yet, as far as they are there.
pub(crate) fn both(maps: &dyn BranchDir, number: u64) -> Result<Vec<Arc<dyn BranchFile>>> {
    let mut there = Vec::new();
    for name in [named(number), recent_of(number)] {
        match maps.open_file(Name::new(&name)?, OpenMode::READ) {
            Err(e) if e.errno() == Errno::NOENT => break,
            file => there.push(file?),
        }
    }
    Ok(there)
}

fn missing_sidecar(number: u64) -> Error {
    Error::new(Errno::IO, "the map of a partial file's blocks is missing")
        .damage()
        .at(named(number).to_bytes())
}

impl Layer {
    /// Opens a sidecar; `run`: of the machine.
    pub(crate) fn sidecar(&self, number: u64, writable: bool, run: Option<Run>) -> Result<Sidecar> {
        let maps = self.maps.as_ref().ok_or_else(|| missing_sidecar(number))?;
        let mode = if writable { OpenMode::READ | OpenMode::WRITE } else { OpenMode::READ };
        let alone = if writable { Some(self.open_maps.enter(number)?) } else { None };
        let name = named(number);
        match maps.open_file(Name::new(&name)?, mode) {
            Ok(file) => {
                let recent = run.filter(|_| writable);
                let recent = recent.map(|run| SidecarJournal::new(maps, recent_of(number), run));
                Ok(Sidecar::new(file, recent, alone))
            }
            Err(e) if e.errno() == Errno::NOENT => Err(missing_sidecar(number)),
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
    for name in [recent_of(number), named(number)] {
        if let Ok(name) = Name::new(&name)
            && let Err(error) = maps.remove(name)
            && error.errno() != Errno::NOENT
        {
            tracing::debug!(%error, "removing a block map");
        }
    }
}
