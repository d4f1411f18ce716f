//! Completing an upper layer that is not mounted.

use crate::config::{BlockMap, Config};
use crate::failure::Failure;
use crate::instance::tree;
use crate::layers;
use crate::layers::ceph::{CephLayer, arrive, without_ceph_output};
use crate::layers::flatten_remains::work_name;
use crate::layers::lock::DirLock;
use crate::layers::source::LayerSource;
use rustix::fs::{CWD, Mode, lgetxattr};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_union::Extent;
pub use vellum_union::FlattenRun;

/// Longest list of layers that an upper records (Linux's limit for an extended attribute).
const RECORD_MAX: usize = 65_536;

/// An upper layer that is to be completed.
#[derive(Clone, Debug)]
pub struct FlattenRequest {
    pub upper: LayerSource,
    /// Those below, the top one first; none: those that the upper records.
    pub lowers: Vec<LayerSource>,
    /// Its work directory; None: one is made beside it.
    pub work: Option<LayerSource>,
}

/// Copies everything into an upper that its files still take from the layers below. `watch` sees every step and ends the work by answering
/// false. Where one of them is on CephFS, threads are started.
pub fn run(
    wanted: &FlattenRequest,
    watch: &mut dyn FnMut(&FlattenRun) -> bool,
) -> Result<FlattenRun, Failure> {
    let shown = &wanted.upper;
    let (upper, lowers) = match &wanted.upper {
        LayerSource::Ceph(layer) => (remote_layer(layer, &wanted.lowers)?, wanted.lowers.clone()),
        local => local_layers(local, &wanted.lowers)?,
    };
    let unknown = lowers.is_empty();
    let mut made = if wanted.work.is_none() { Some(WorkDir::make(&upper)?) } else { None };
    let mut config = Config {
        work: wanted.work.clone().or_else(|| made.as_ref().map(WorkDir::source)),
        upper: Some(upper),
        lowers,
        // What was recorded in a sidecar is read from there in any case.
        block_map: BlockMap::Holes,
        ..Config::default()
    };
    if let Some(cluster) =
        config.upper.as_ref().and_then(LayerSource::ceph).map(|layer| layer.cluster.clone())
    {
        config.reach_by(&cluster);
    }
    let open = || layers::open(&config, Path::new("/"))?.into_branches();
    let mut layers = if config.ceph_layers().next().is_some() {
        arrive();
        without_ceph_output(open)?
    } else {
        open()?
    };
    let locks = std::mem::take(&mut layers.locks);
    // Nobody else is at work in it.
    if let Some(work) = &mut made {
        work.is_ours = true;
    }
    let union = tree::build(&config, layers, |_| {})?;
    let result = union
        .flatten(Extent::ALL, watch)
        .map_err(|e| Failure::system(format!("upper layer {shown}")).because(e));
    let result = match result {
        // Written before layers said so.
        Ok(done) if unknown && done.files > 0 => Err(unrecorded(shown)),
        other => other,
    };
    drop(union);
    // As long as nobody else can be at work in it.
    drop(made);
    drop(locks);
    result
}

/// An upper layer of this host, and what it is completed from.
fn local_layers(
    upper: &LayerSource,
    lowers: &[LayerSource],
) -> Result<(LayerSource, Vec<LayerSource>), Failure> {
    let failed =
        |e| Failure::input(format!("upper layer {upper}")).because(e).remedy("give the directory of one");
    let dir = upper.directory().ok_or_else(|| failed(Errno::NOTDIR.into()))?;
    let dir = dir.canonicalize().map_err(failed)?;
    let lowers = match lowers {
        // A whole layer needs none.
        [] if crate::layers::store::is_upper(&dir) && !crate::layers::store::needs_lowers(&dir) => Vec::new(),
        [] => {
            let lowers = match crate::layers::store::engine_record(&dir) {
                (lowers, _) if !lowers.is_empty() => lowers,
                (_, true) => recorded(&dir)?,
                (_, false) => return Err(unrecorded(&dir.into())),
            };
            lowers.into_iter().map(LayerSource::from).collect()
        }
        named => named.to_vec(),
    };
    Ok((dir.into(), lowers))
}

/// One on CephFS, which names of other layers are not kept on: they would be those of the host that has written it.
fn remote_layer(upper: &CephLayer, lowers: &[LayerSource]) -> Result<LayerSource, Failure> {
    let upper = upper.resolve()?;
    if !lowers.is_empty() {
        return Ok(LayerSource::Ceph(upper));
    }
    if upper.visit()?.is_complete()? {
        return Ok(LayerSource::Ceph(upper));
    }
    Err(unrecorded(&LayerSource::Ceph(upper)))
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
    Err(unrecorded(&upper.into()))
}

fn unrecorded(upper: &LayerSource) -> Failure {
    Failure::input(format!(
        "upper layer {upper}: it does not say which layers it belongs to; name them with --lower, the top one first"
    ))
}

/// Whether somebody writes to a layer at the moment.
pub fn is_in_use(upper: &Path) -> bool {
    DirLock::take("upper layer", upper, Duration::ZERO, "in use").is_err_and(|e| e.exit_status() != 2)
}

/// A directory for unfinished work beside an upper, removed with this if it is ours. It has one name for each upper, so that what a process
/// left behind that was killed is found by the next one, and by the next mount; its lock says whether another one is at work.
struct WorkDir {
    place: FlattenTarget,
    is_ours: bool,
}

enum FlattenTarget {
    Here(PathBuf),
    There(CephLayer),
}

impl WorkDir {
    fn make(upper: &LayerSource) -> Result<Self, Failure> {
        if let LayerSource::Ceph(upper) = upper {
            let above = upper.parent().ok_or_else(|| {
                Failure::input(format!(
                    "upper layer {upper}: nothing can be made beside the filesystem's root"
                ))
                .remedy("give a directory below it")
            })?;
            let name = work_name(upper.file_name());
            let is_ours = above.visit()?.make_dir(name.as_ref())?;
            return Ok(Self { place: FlattenTarget::There(upper.sibling(name.as_ref())), is_ours });
        }
        let upper = upper.directory().unwrap_or(Path::new("/"));
        let path = upper.parent().unwrap_or(upper).join(work_name(upper.file_name()));
        let is_ours = match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => {
                return Err(Failure::input(format!("work directory {}", path.display()))
                    .because(e)
                    .remedy("name one on the same filesystem with --work"));
            }
        };
        Ok(Self { place: FlattenTarget::Here(path), is_ours })
    }

    fn source(&self) -> LayerSource {
        match &self.place {
            FlattenTarget::Here(path) => path.as_path().into(),
            FlattenTarget::There(layer) => LayerSource::Ceph(layer.clone()),
        }
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        match &self.place {
            FlattenTarget::Here(path) => {
                let _ = std::fs::remove_dir_all(path);
            }
            FlattenTarget::There(layer) => {
                let above = layer.parent().map(|above| above.visit());
                let removed = above.zip(layer.file_name()).map(|(above, name)| above?.remove_all(name));
                if let Some(Err(failure)) = removed {
                    tracing::warn!("{failure}");
                }
            }
        }
    }
}
