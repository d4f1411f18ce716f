//! The container's tree: mounted and taken away as any other.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use vellum_pool::Mount;
use vellum_pool::PoolName;
use vellum_pool::UidRange;
use vellum_service::config::{Config, FillAtEnd};
use vellum_service::layers::ceph::CephRight;
use vellum_service::layers::lock::DirLock;
use vellum_service::mounts::mountpoint::top_mount;
use vellum_service::mounts::unmount::{end, unmount};
use vellum_service::{Failure, LayerSource};

/// How long what still uses a tree may take to end before the tree is taken away under it.
const BUSY: Duration = Duration::from_secs(2);
/// How long a service may take to write what it has.
pub(super) const SERVICE_WAIT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The directories of a tree.
#[derive(Clone, Debug)]
pub(super) struct Union<'a> {
    /// The top one first.
    pub(super) lowers: &'a [LayerSource],
    pub(super) upper: LayerSource,
    pub(super) work: LayerSource,
    pub(super) merged: &'a Path,
}

impl Union<'_> {
    /// Mounts it as any other tree. `ids`: what its owners are shown as, the same as the container's own; `asked`: everything else that
    /// was asked for. This process has threads, so the program `vellum` does it.
    pub(super) fn mount(
        &self,
        vellum: &Path,
        pool: Option<&PoolName>,
        ids: Option<UidRange>,
        asked: Config,
    ) -> Result<(), Failure> {
        let mut config = Config {
            mountpoint: self.merged.to_owned(),
            lowers: self.lowers.to_vec(),
            upper: Some(self.upper.clone()),
            work: Some(self.work.clone()),
            // What the container leaves is removed at once, or the service's end is waited for.
            fill_at_end: FillAtEnd(0),
            ..asked
        };
        if let Some(ids) = ids {
            config.show_ids(&ids.mapping())?;
        }
        Mount { config, pool: pool.cloned(), foreground: false }.mount_by_helper(vellum)
    }
}

/// The upper layer's root shows as the tree's: it has to look like that of the layer below.
pub(super) fn copy_root_attributes(upper: &Path, lower: &LayerSource) -> Result<(), Failure> {
    let (uid, gid, mode) = match lower {
        LayerSource::Ceph(layer) => layer.visit()?.owner_and_mode()?,
        local => {
            let path = local.directory().unwrap_or(upper);
            let below = fs::metadata(path).map_err(|e| Failure::at(path, e))?;
            (below.uid(), below.gid(), below.mode() & 0o7777)
        }
    };
    std::os::unix::fs::chown(upper, Some(uid), Some(gid)).map_err(|e| Failure::at(upper, e))?;
    fs::set_permissions(upper, fs::Permissions::from_mode(mode)).map_err(|e| Failure::at(upper, e))
}

/// Takes away what is mounted at `merged`, now or in a moment by a command that was about to, and waits until its service has let go of
/// `upper`. The right to `upper`, if it is there: as long as that is held, nobody else serves it. An error: the service goes on.
///
/// `kept`: what was written is of use to somebody. Then all of it is written first, and who still uses the tree keeps it. Otherwise the
/// tree ends for all. `patience`: how long it is waited for where nothing is mounted any more.
pub(super) fn unmount_and_wait(
    merged: &Path,
    upper: &LayerSource,
    kept: bool,
    patience: Duration,
) -> Result<Right, Failure> {
    let begin = Instant::now();
    let mut patience = patience;
    if kept
        && is_mounted(merged)
        && let Err(why) = vellum_service::instance::sync::sync(merged)
    {
        tracing::warn!("{why}; what the container wrote may be lost with the power");
    }
    loop {
        let mounted = is_mounted(merged);
        if mounted {
            patience = patience.max(2 * BUSY);
            if !kept {
                end(merged)?;
            } else if let Err(why) = unmount(merged, false)
                && begin.elapsed() > BUSY
            {
                tracing::debug!("{why}; it is taken away under who uses it");
                unmount(merged, true)?;
            }
        } else if let Some(right) = lock_upper(upper)? {
            return Ok(right);
        }
        if begin.elapsed() > patience {
            return Err(Failure::system(if mounted {
                format!("{}: cannot be unmounted", merged.display())
            } else {
                format!(
                    "{upper}: a program has it open, and its service continues; a later vellum run removes the rest"
                )
            }));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The right to a layer, with which nobody serves it. What cannot be opened has none, and there is no right to it.
#[derive(Default)]
pub(super) struct Right {
    _here: Option<DirLock>,
    _far: Option<CephRight>,
}

/// None: a service has it.
fn lock_upper(upper: &LayerSource) -> Result<Option<Right>, Failure> {
    let path = match upper {
        LayerSource::Ceph(layer) => {
            return Ok(layer.write_lock()?.map(|right| Right { _far: Some(right), ..Right::default() }));
        }
        local => local.directory().unwrap_or(Path::new("")),
    };
    Ok(match DirLock::take("upper layer", path, Duration::ZERO, "in use") {
        Ok(right) => Some(Right { _here: Some(right), ..Right::default() }),
        Err(why) if why.exit_status() == 2 => Some(Right::default()),
        Err(_) => None,
    })
}

fn is_mounted(point: &Path) -> bool {
    top_mount(point).is_some()
}
