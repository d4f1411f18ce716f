//! Layers on CephFS, in the cluster that the environment names (`CEPH_CONF`, as in `scripts/ceph-local`).
//!
//! Vellum reaches them by itself. For all others they are shown by ceph-fuse, mounted anew before each measurement, so that all begin
//! with a client that knows nothing; one for all mounts of a task. Uppers are on this host, or there too.

use crate::failure::{Failure, Result, While};
use crate::stop;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The file that says so to processes that work in a place.
const NOTE: &str = "cephfs.json";
/// Where ceph-fuse is mounted.
const MOUNT: &str = "cephfs";
/// How long its mount may stay busy.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Which layers lie on CephFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
pub enum Far {
    /// Lower ones.
    Lower,
    /// Lower ones, uppers and their work directories.
    Both,
}

/// The part of a place that lies on CephFS.
#[derive(Debug)]
pub(crate) struct Ceph {
    pub(crate) far: Far,
    /// Where ceph-fuse is mounted.
    mount: PathBuf,
    /// The place's directory in it.
    pub(crate) dir: PathBuf,
    ours: bool,
}

impl Ceph {
    /// Makes it, for a place at `top`.
    pub(crate) fn make(top: &Path, name: &Path, far: Far) -> Result<Self> {
        let mount = top.join(MOUNT);
        let ceph = Self { far, dir: mount.join(name), mount, ours: true };
        let text = serde_json::to_vec(&(far, &ceph.dir)).doing(|| "a note")?;
        fs::write(top.join(NOTE), text).doing(|| "writing a note")?;
        fs::create_dir(&ceph.mount).doing(|| "making a mount point")?;
        ceph.begin()?;
        fs::create_dir(&ceph.dir).doing(|| "making a directory on CephFS")?;
        Ok(ceph)
    }

    /// That of another process's place, if it has one.
    pub(crate) fn of_another(top: &Path) -> Option<Self> {
        let text = fs::read(top.join(NOTE)).ok()?;
        let (far, dir) = serde_json::from_slice(&text).ok()?;
        Some(Self { far, dir, mount: top.join(MOUNT), ours: false })
    }

    /// What Vellum calls a path in it; None: it is not in it.
    pub(crate) fn called(mount: &Path, path: &Path) -> Option<String> {
        Some(format!("ceph:/{}", path.strip_prefix(mount).ok()?.display()))
    }

    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount
    }

    fn begin(&self) -> Result<()> {
        stop::register(&self.mount);
        let output = Command::new("ceph-fuse").arg(&self.mount).output().doing(|| "ceph-fuse")?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("no message");
        Err(Failure::new(format!("ceph-fuse: {}: {last}", output.status)))
    }

    fn end(&self) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = unmount(&self.mount, UnmountFlags::empty()) {
            if error == rustix::io::Errno::INVAL {
                break;
            }
            if start.elapsed() > PATIENCE {
                return Err(Failure::new(format!("{}: {error}", self.mount.display())));
            }
            std::thread::sleep(PAUSE);
        }
        stop::unregister(&self.mount);
        Ok(())
    }

    /// Mounts it anew: nothing of what was read or written is known any more.
    pub(crate) fn begin_anew(&self) -> Result<()> {
        self.end()?;
        self.begin()
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        if let Err(error) = stop::remove(&self.dir) {
            eprintln!("vellum-bench: removing {}: {error}", self.dir.display());
        }
        if let Err(failure) = self.end() {
            eprintln!("vellum-bench: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_names_for_vellum() {
        let mount = Path::new("/a/cephfs");
        assert_eq!(Ceph::called(mount, Path::new("/a/cephfs/b/lower")), Some("ceph:/b/lower".into()));
        assert_eq!(Ceph::called(mount, Path::new("/a/upper")), None);
    }

    #[test]
    fn places_without_a_note_have_no_part_there() {
        assert!(Ceph::of_another(Path::new("/nonexistent")).is_none());
    }
}
