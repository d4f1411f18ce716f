//! The container's tree: mounted and taken away as `vellum mount` and `vellum umount` do.

use crate::name::PoolName;
use crate::uids::UidRange;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vellum_service::Failure;
use vellum_service::lock::DirLock;
use vellum_service::mountpoint::mounts;
use vellum_service::unmount::unmount;

/// How long what still uses a tree may take to end before the tree is taken away under it.
const BUSY: Duration = Duration::from_secs(2);
/// How long a service may take to write what it has.
const SERVICE_WAIT: Duration = Duration::from_secs(30);
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
    /// Mounts it, by the program `vellum`, so that everything about pools is done in one place. `ids`: what its owners are shown as, the
    /// same as the container's own.
    pub(super) fn mount(
        &self,
        vellum: &Path,
        pool: Option<&PoolName>,
        ids: Option<UidRange>,
    ) -> Result<(), Failure> {
        let mut command = Command::new(vellum);
        command.arg("mount");
        for lower in self.lowers {
            command.arg("--lower").arg(lower);
        }
        command.arg("--upper").arg(self.upper).arg("--work").arg(self.work);
        if let Some(pool) = pool {
            command.arg("--pool").arg(pool.as_str());
        }
        if let Some(ids) = ids {
            command.arg("-o").arg(ids.mount_options());
        }
        command.arg("--").arg("vellum").arg(self.merged);
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
        let output = output.map_err(|e| Failure::system(format!("{}: {e}", vellum.display())))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // Log lines may come first.
        let line =
            said.lines().rev().find_map(|line| line.strip_prefix("vellum: ")).unwrap_or("it was not mounted");
        Err(if output.status.code() == Some(2) { Failure::input(line) } else { Failure::system(line) })
    }
}

/// The upper layer's root shows as the tree's: it has to look like that of the layer below.
pub(super) fn resemble(upper: &Path, lower: &Path) -> std::io::Result<()> {
    let below = fs::metadata(lower)?;
    std::os::unix::fs::chown(upper, Some(below.uid()), Some(below.gid()))?;
    fs::set_permissions(upper, fs::Permissions::from_mode(below.mode() & 0o7777))
}

/// Takes away what is mounted at `merged`, now or in a moment by a command that was about to, and waits until its service has let go of
/// `upper`. Who still uses the tree keeps it for himself, and then there is no waiting.
pub(super) fn take_away(merged: &Path, upper: &Path) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut in_use = false;
    while begin.elapsed() < SERVICE_WAIT {
        if is_mounted(merged)
            && let Err(why) = unmount(merged, false)
            && begin.elapsed() > BUSY
            && is_mounted(merged)
        {
            tracing::debug!("{why}; it is taken away under who uses it");
            unmount(merged, true)?;
            in_use = true;
        }
        if !is_mounted(merged) && (in_use || is_free(upper)) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    match is_mounted(merged) {
        true => Err(Failure::system(format!("{}: cannot be unmounted", merged.display()))),
        false => {
            tracing::warn!("{}: the service of its mount has not ended", upper.display());
            Ok(())
        }
    }
}

/// Whether no service has the layer. What cannot be opened has none.
fn is_free(upper: &Path) -> bool {
    match DirLock::take("upper layer", upper, Duration::ZERO, "in use") {
        Ok(_) => true,
        Err(why) => why.exit_status() == 2,
    }
}

fn is_mounted(point: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounts(&table).any(|mount| mount.point == point)
}
