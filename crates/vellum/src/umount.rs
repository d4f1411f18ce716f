//! `vellum umount`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vellum_service::{Failure, mountpoint, unmount};

/// Takes the mount at `path` away.
pub fn run(path: &Path, lazy: bool) -> Result<(), Failure> {
    let at = place(path)?;
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let top = mountpoint::mounts(&table).filter(|mount| mount.point == at).last();
    match top {
        Some(mount) if !mount.fs_type.starts_with(b"fuse.") => {
            let fs_type = String::from_utf8_lossy(&mount.fs_type).into_owned();
            Err(Failure::input(format!("{}: a mount of type {fs_type}; use umount for it", at.display())))
        }
        _ => unmount::unmount(&at, lazy),
    }
}

/// The absolute path without looking into the mount itself, whose service may be dead.
fn place(path: &Path) -> Result<PathBuf, Failure> {
    let absolute =
        std::path::absolute(path).map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
    let Some(name) = absolute.file_name().map(OsStr::to_owned) else { return Ok(absolute) };
    let parent = absolute.parent().unwrap_or(Path::new("/"));
    let parent = parent.canonicalize().map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
    Ok(parent.join(name))
}
