//! Completing an upper layer that is not mounted.

use crate::config::{BlockMap, Config};
use crate::failure::Failure;
use crate::instance::tree;
use crate::layers;
use crate::layers::ceph::CephLayer;
use crate::layers::lock::DirLock;
use crate::layers::source::LayerSource;
use rustix::fs::{CWD, Mode, lgetxattr};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_union::Extent;
pub use vellum_union::Flattening;

/// Longest list of layers that an upper records (Linux's limit for an extended attribute).
const RECORD_MAX: usize = 65_536;

/// Copies everything into `upper` that its files still take from the layers below. `lowers`: those layers, the top one first;
/// none: those that the upper records. `watch` sees every step and ends the work by answering false.
pub fn run(
    upper: &Path,
    lowers: &[PathBuf],
    work: Option<&Path>,
    watch: &mut dyn FnMut(&Flattening) -> bool,
) -> Result<Flattening, Failure> {
    let named = [upper].into_iter().chain(lowers.iter().map(PathBuf::as_path)).chain(work);
    if let Some(layer) = named.map(Path::as_os_str).find_map(CephLayer::named) {
        return Err(Failure::input(format!(
            "layer {layer}: vellum flatten completes layers of this host only"
        ))
        .remedy("mount it with its lower layers, and copy what the mount shows"));
    }
    let (given, shown) = (upper, upper.display());
    let failed =
        |e| Failure::input(format!("upper layer {shown}")).because(e).remedy("give the directory of one");
    let upper = upper.canonicalize().map_err(failed)?;
    let lowers = match lowers {
        // A whole layer needs none.
        [] if crate::layers::store::is_upper(&upper) && !crate::layers::store::needs_lowers(&upper) => {
            Vec::new()
        }
        [] => recorded(&upper)?,
        named => named.to_vec(),
    };
    let unknown = lowers.is_empty();
    let made = if work.is_none() { Some(WorkDir::make(&upper)?) } else { None };
    let config = Config {
        work: work.or_else(|| made.as_ref().map(|made| made.0.as_path())).map(LayerSource::from),
        upper: Some(upper.into()),
        lowers: lowers.into_iter().map(LayerSource::from).collect(),
        // What was recorded in a sidecar is read from there in any case.
        block_map: BlockMap::Holes,
        ..Config::default()
    };
    let mut layers = layers::open(&config, Path::new("/"))?.into_branches()?;
    let locks = std::mem::take(&mut layers.locks);
    let union = tree::build_kept(&config, layers, tree::Kept::default())?;
    let result = union
        .flatten(Extent::ALL, watch)
        .map_err(|e| Failure::system(format!("upper layer {shown}")).because(e));
    let result = match result {
        // Written before layers said so.
        Ok(done) if unknown && done.files > 0 => Err(unrecorded(given)),
        other => other,
    };
    drop(union);
    drop(locks);
    result
}

/// The layers that an upper records with its first partial file.
fn recorded(upper: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut value = vec![0; RECORD_MAX];
    for name in ["trusted.vellum.lowers", "user.vellum.lowers"] {
        match lgetxattr(upper, name, value.as_mut_slice()) {
            Ok(len) => {
                let list = value.get(..len).unwrap_or_default().split(|byte| *byte == 0);
                if len == 0 {
                    break;
                }
                return Ok(list.map(|path| OsString::from_vec(path.to_vec()).into()).collect());
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(e) => return Err(Failure::system(format!("upper layer {}", upper.display())).because(e)),
        }
    }
    Err(unrecorded(upper))
}

fn unrecorded(upper: &Path) -> Failure {
    Failure::input(format!(
        "upper layer {}: it does not say which layers it belongs to; name them with --lower, the top one first",
        upper.display()
    ))
}

/// Whether somebody writes to a layer at the moment.
pub fn is_in_use(upper: &Path) -> bool {
    DirLock::take("upper layer", upper, Duration::ZERO, "in use").is_err_and(|e| e.exit_status() != 2)
}

/// A directory for unfinished work beside an upper, removed with this.
struct WorkDir(PathBuf);

impl WorkDir {
    fn make(upper: &Path) -> Result<Self, Failure> {
        let beside = upper.parent().unwrap_or(upper);
        let path = beside.join(format!(".vellum-flatten-{}", std::process::id()));
        rustix::fs::mkdirat(CWD, &path, Mode::RWXU).map_err(|e| {
            Failure::input(format!("work directory {}", path.display()))
                .because(e)
                .remedy("name one on the same filesystem with --work")
        })?;
        Ok(Self(path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
