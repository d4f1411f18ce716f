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

/// The layer's name in the directory of links, which engines keep that write down what is below.
const LINK: &str = "link";

/// An upper layer in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// How the engine calls it.
    pub name: String,
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

/// What an engine says of the layers below one that is in its store, and whether the layer's own record may be believed where it says nothing.
///
/// An image may bring such a record along, and name any files of this host. Where the engine writes down what is below, it alone is believed;
/// elsewhere a layer that has a work directory, as somebody writes to it.
#[must_use]
pub fn engine_record(upper: &Path) -> (Vec<PathBuf>, bool) {
    let is_of_store = upper.file_name().is_some_and(|name| CONTENTS.iter().any(|contents| name == *contents));
    let Some(layer) = upper.parent().filter(|_| is_of_store) else { return (Vec::new(), true) };
    let lowers = layer.parent().map(|place| below(place, layer)).unwrap_or_default();
    let is_believed = layer.join("work").is_dir() && !layer.join(LINK).exists();
    (lowers, is_believed)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn a_record_inside_an_image_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let said = |path: &str| {
            create_dir_all(at(path)).unwrap();
            engine_record(&at(path))
        };
        // No engine's: whoever has mounted it knows it.
        assert_eq!(said("upper"), (Vec::new(), true));
        // containerd writes nothing down: a layer that nobody writes to is an image's.
        assert_eq!(said("snapshots/1/fs"), (Vec::new(), false));
        create_dir_all(at("snapshots/1/work")).unwrap();
        assert_eq!(said("snapshots/1/fs"), (Vec::new(), true));
        // podman does: the lowest layer of an image has none below, whatever it says.
        create_dir_all(at("overlay/a/work")).unwrap();
        write(at("overlay/a/link"), "A").unwrap();
        assert_eq!(said("overlay/a/diff"), (Vec::new(), false));
        create_dir_all(at("overlay/l/A")).unwrap();
        write(at("overlay/a/lower"), "l/A").unwrap();
        assert_eq!(said("overlay/a/diff"), (vec![at("overlay/l/A")], false));
    }
}
