//! Where the socket of a store is: by its device, whatever path leads to that, and by who has opened it.

use crate::sandbox::is_initial_namespace;
use rustix::fs::{FileType, FlockOperation, flock, fstat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where those of the host's root are.
const RUNTIME: &str = "/run/vellum/stores";
/// Where those of others are, in what `XDG_RUNTIME_DIR` names.
const RUNTIME_OF_USER: &str = "vellum/stores";

/// What tells a device from all others: of a block device its number, of a file that of its filesystem and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceId {
    is_block: bool,
    first: u64,
    second: u64,
}

impl DeviceId {
    /// Of a device that is open.
    pub fn fstat(device: &impl AsFd) -> rustix::io::Result<Self> {
        let found = fstat(device)?;
        Ok(if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice {
            Self { is_block: true, first: found.st_rdev, second: 0 }
        } else {
            Self { is_block: false, first: found.st_dev, second: found.st_ino }
        })
    }

    /// Of the device that a path names.
    fn at(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let found = fs::metadata(path)?;
        Ok(if found.file_type().is_block_device() {
            Self { is_block: true, first: found.rdev(), second: 0 }
        } else {
            Self { is_block: false, first: found.dev(), second: found.ino() }
        })
    }

    fn name(&self) -> String {
        let kind = if self.is_block { "block" } else { "file" };
        format!("{kind}-{:x}-{:x}", self.first, self.second)
    }
}

/// The directory of this user's store sockets; None: there is none.
pub(super) fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() && is_initial_namespace() {
        return Some(RUNTIME.into());
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty())?;
    Some(PathBuf::from(runtime).join(RUNTIME_OF_USER))
}

/// The right to make and remove store sockets, until it is dropped; None: there is no such directory.
pub(super) fn lock_sockets(dir: Option<&Path>) -> io::Result<Option<File>> {
    let dir = match dir.map(File::open) {
        None => return Ok(None),
        Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Some(dir) => dir?,
    };
    retry_on_intr(|| flock(&dir, FlockOperation::LockExclusive))?;
    Ok(Some(dir))
}

/// Takes away sockets that nobody listens at any more. Who calls has the right to.
pub(super) fn sweep(dir: Option<&Path>) {
    for entry in dir.and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_abandoned(&path).unwrap_or(false) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether nobody listens at a socket. One that is busy is not waited for.
fn is_abandoned(path: &Path) -> rustix::io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(matches!(connect(&socket, &SocketAddrUnix::new(path)?), Err(Errno::CONNREFUSED)))
}

/// Where the socket of the store on a device is, if it has one.
pub(super) fn find(device: &Path) -> Option<PathBuf> {
    Some(directory()?.join(DeviceId::at(device).ok()?.name()))
}

/// Where it is to be. Its directory is made, and nobody else's.
pub(super) fn make(device: &impl AsFd) -> io::Result<PathBuf> {
    let dir = directory().ok_or_else(|| io::Error::other("XDG_RUNTIME_DIR is not set"))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let found = fs::symlink_metadata(&dir)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{}: others can enter it", dir.display())));
    }
    Ok(dir.join(DeviceId::fstat(device)?.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_recognised_by_any_path() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, other) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        fs::write(&file, "").unwrap();
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let open = fs::File::open(&file).unwrap();
        assert_eq!(DeviceId::fstat(&open).unwrap(), DeviceId::at(&link).unwrap());
        assert_ne!(DeviceId::at(&file).unwrap().name(), DeviceId::at(&other).unwrap().name());
    }
}
