//! Uppers in the store of a container engine.
//!
//! podman, buildah and Docker (driver fuse-overlayfs) keep a directory for each layer, with `diff` for what it holds, `work`, and
//! `lower`, which names the layers below as symbolic links in the directory `l`; containerd keeps `fs` and `work`.

use rustix::fs::lgetxattr;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories of a store in which layers may be.
const PLACES: [&str; 4] = ["", "overlay", "fuse-overlayfs", "snapshots"];
/// What holds a layer's files, in the layer's directory.
const CONTENTS: [&str; 2] = ["diff", "fs"];

/// An upper layer in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// How the engine calls it.
    pub name: String,
    /// The upper.
    pub upper: PathBuf,
    /// Its work directory, if it is there.
    pub work: Option<PathBuf>,
    /// The layers below, the top one first, as far as the engine says.
    pub lowers: Vec<PathBuf>,
}

/// Whether a directory is a layer that Vellum has written to.
#[must_use]
pub fn is_upper(dir: &Path) -> bool {
    has(dir, &["trusted.vellum.format", "user.vellum.format"])
}

/// Whether a layer says that files of it take data from others.
#[must_use]
pub fn needs_lowers(upper: &Path) -> bool {
    has(upper, &["trusted.vellum.lowers", "user.vellum.lowers"])
}

fn has(dir: &Path, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| !matches!(lgetxattr(dir, *name, &mut [0u8; 0]), Err(Errno::NODATA | Errno::OPNOTSUPP)))
        && dir.is_dir()
}

/// All layers of a store that Vellum has written to, by name; None: the directory is no store.
pub fn layers(store: &Path) -> std::io::Result<Option<Vec<Layer>>> {
    let mut is_store = false;
    let mut found = Vec::new();
    for place in PLACES {
        let place = store.join(place);
        let Ok(entries) = std::fs::read_dir(&place) else { continue };
        for entry in entries {
            let entry = entry?;
            let Some(upper) = CONTENTS.iter().map(|name| entry.path().join(name)).find(|dir| dir.is_dir())
            else {
                continue;
            };
            is_store = true;
            if is_upper(&upper) {
                let work = Some(entry.path().join("work")).filter(|work| work.is_dir());
                let lowers = below(&place, &entry.path());
                let name = entry.file_name().to_string_lossy().into_owned();
                found.push(Layer { name, upper, work, lowers });
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(is_store.then_some(found))
}

/// The layers below one, as the engine has written them down. None of them where one is not there: others may know better.
fn below(place: &Path, layer: &Path) -> Vec<PathBuf> {
    let Ok(text) = std::fs::read(layer.join("lower")) else { return Vec::new() };
    let lines = text.trim_ascii().split(|byte| *byte == b':').filter(|part| !part.is_empty());
    let paths: Vec<PathBuf> = lines.map(|part| place.join(OsStr::from_bytes(part))).collect();
    if paths.iter().all(|path| path.is_dir()) { paths } else { Vec::new() }
}
