//! The directory that is mounted on. It is resolved before the mount and never again: afterwards the path leads to
//! ourselves.

use crate::failure::Failure;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_sys::wait_until;
pub use vellum_sys::{Mount, mounts, parse_mounts, top_mount};

/// The kernel's type of our mounts.
pub const FS_TYPE: &str = "fuse.vellum";

/// The absolute path of `path`, without symbolic links. A mount of ours whose service is dead is taken away first.
pub fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    match directory(path) {
        Err(e) if is_dead(&e) => {
            remove_dead(path)?;
            directory(path).map_err(|e| refused(path, &e))
        }
        other => other.map_err(|e| refused(path, &e)),
    }
}

/// Whether an error says that a mount's service has died, before the question or while it was being answered.
#[must_use]
pub fn is_dead(e: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(e);
    matches!(errno, Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
}

fn directory(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    if !path.metadata()?.is_dir() {
        return Err(rustix::io::Errno::NOTDIR.into());
    }
    Ok(path)
}

fn refused(path: &Path, e: &io::Error) -> Failure {
    let shown = path.display();
    match e.kind() {
        io::ErrorKind::NotFound => {
            Failure::input(format!("mount point {shown}: no such directory; create it first"))
        }
        io::ErrorKind::NotADirectory => {
            Failure::input(format!("mount point {shown}: not a directory; give one"))
        }
        _ if is_dead(e) => Failure::system(format!(
            "mount point {shown}: a mount whose service has died is in the way; run umount {shown}"
        )),
        _ => Failure::input(format!("mount point {shown}"))
            .because(e)
            .remedy("give a directory that can be entered"),
    }
}

fn remove_dead(path: &Path) -> Result<(), Failure> {
    let at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let e = rustix::io::Errno::NOTCONN.into();
    match top_mount(&at) {
        Some(mount) if mount.fs_type == FS_TYPE => {
            tracing::warn!(mountpoint = %at.display(), "taking away a mount whose service has died");
            crate::mounts::unmount::unmount(&at, true)
        }
        _ => Err(refused(path, &e)),
    }
}

/// Where the FUSE filesystems are mounted whose connections a process (its number, or `self`) holds: by the numbers of the connections,
/// which are those of the devices. In the order, and by the names, in which the process sees them: it may be in another mount
/// namespace.
#[must_use]
pub fn mounts_of_process(process: &str) -> Vec<PathBuf> {
    let connections = connections_of(process);
    let held = mounts(process).into_iter().filter(|mount| connections.contains(&mount.device));
    held.map(|mount| mount.point).collect()
}

/// The FUSE connections that a process holds, as the devices that their filesystems have.
pub(super) fn connections_of(process: &str) -> Vec<String> {
    let held = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
    let texts = held.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let device = |text: String| {
        let number = text.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
        Some(format!("0:{}", number.trim()))
    };
    texts.filter_map(device).collect()
}

/// Waits until a process has closed its last descriptor of the connection with this number, but not for ever: false then.
#[must_use]
pub fn wait_for_close(process: u32, connection: &str, patience: Duration) -> bool {
    let is_it = |text: String| {
        text.lines().any(|line| line.strip_prefix("fuse_connection:").is_some_and(|n| n.trim() == connection))
    };
    wait_until(patience, Duration::from_millis(1), || {
        let held = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
        !held.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).any(is_it)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_instead_of_a_directory_is_bad_input() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, word) in [(dir.path().join("missing/x"), "create it"), (file, "not a directory")] {
            let failure = resolve(&path).unwrap_err();
            assert_eq!(failure.exit_status(), 2);
            assert!(failure.to_string().contains(word), "{failure}");
        }
    }
}
