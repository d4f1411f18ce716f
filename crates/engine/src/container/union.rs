//! The container's tree: mounted and taken away as any other.

use crate::mount::Mount;
use crate::name::PoolName;
use crate::uids::UidRange;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vellum_service::Failure;
use vellum_service::config::{Config, FillAtEnd};
use vellum_service::lock::DirLock;
use vellum_service::mountpoint::mounts;
use vellum_service::unmount::{end, unmount};

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
    pub(super) lowers: &'a [PathBuf],
    pub(super) upper: &'a Path,
    pub(super) work: &'a Path,
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
            lowers: self.lowers.iter().map(|lower| lower.as_path().into()).collect(),
            upper: Some(self.upper.into()),
            work: Some(self.work.into()),
            // What the container leaves is removed at once, or the service's end is waited for.
            fill_at_end: FillAtEnd(0),
            ..asked
        };
        if let Some(ids) = ids {
            config.show_ids(&ids.mapping())?;
        }
        Mount { config, pool: pool.cloned(), foreground: false }.apart(vellum)
    }
}

/// The upper layer's root shows as the tree's: it has to look like that of the layer below.
pub(super) fn resemble(upper: &Path, lower: &Path) -> std::io::Result<()> {
    let below = fs::metadata(lower)?;
    std::os::unix::fs::chown(upper, Some(below.uid()), Some(below.gid()))?;
    fs::set_permissions(upper, fs::Permissions::from_mode(below.mode() & 0o7777))
}

/// Takes away what is mounted at `merged`, now or in a moment by a command that was about to, and waits until its service has let go of
/// `upper`. The right to `upper`, if it is there: as long as that is held, nobody else serves it. An error: the service goes on.
///
/// `kept`: what was written is of use to somebody. Then all of it is written first, and who still uses the tree keeps it. Otherwise the
/// tree ends for all. `patience`: how long it is waited for where nothing is mounted any more.
pub(super) fn take_away(
    merged: &Path,
    upper: &Path,
    kept: bool,
    patience: Duration,
) -> Result<Option<DirLock>, Failure> {
    let begin = Instant::now();
    let mut patience = patience;
    if kept
        && is_mounted(merged)
        && let Err(why) = vellum_service::durable::sync(merged)
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
        } else if let Some(right) = right_to(upper) {
            return Ok(right);
        }
        if begin.elapsed() > patience {
            return Err(Failure::system(if mounted {
                format!("{}: cannot be unmounted", merged.display())
            } else {
                let upper = upper.display();
                format!(
                    "{upper}: somebody has it open, and its service goes on; a later vellum run takes away what is left"
                )
            }));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The right to a layer, with which nobody serves it. None: a service has it. What cannot be opened has none, and there is no right to it.
fn right_to(upper: &Path) -> Option<Option<DirLock>> {
    match DirLock::take("upper layer", upper, Duration::ZERO, "in use") {
        Ok(right) => Some(Some(right)),
        Err(why) if why.exit_status() == 2 => Some(None),
        Err(_) => None,
    }
}

fn is_mounted(point: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounts(&table).any(|mount| mount.point == point)
}
