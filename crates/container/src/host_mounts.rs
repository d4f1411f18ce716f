//! What a container that is restored with ids of its own sees of the host.
//!
//! CRIU binds it when it is root of the container already, and so nobody to the host, who may not enter every directory on the way: not that of a
//! pool's sockets. So it is bound beside the container's tree first, where only the runtime sees it: in a namespace of mounts that ends with it,
//! however that ends.

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_bind_recursive, mount_change};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_sys::unshare_mounts;

/// The option of [`super::exec_helper::SUBCOMMAND`] for each: what is there, and where it is shown.
pub(super) const OPTION: &str = "--show";
/// What they are called there, with a number.
const NAME: &str = "shown-";

/// Pairs of what is on the host and where it is shown.
#[derive(Debug, Default)]
pub(super) struct HostMounts(Vec<[PathBuf; 2]>);

impl HostMounts {
    /// Has what is at `path` be shown in `dir`, a container's: `path` is there from now on.
    pub(super) fn show(&mut self, dir: &Path, path: &mut PathBuf) -> Result<(), Failure> {
        let at = dir.join(format!("{NAME}{}", self.0.len()));
        let made = if path.is_dir() { fs::create_dir(&at) } else { fs::write(&at, "") };
        made.map_err(|e| Failure::at(&at, e))?;
        self.0.push([std::mem::replace(path, at.clone()), at]);
        Ok(())
    }

    pub(super) fn options(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter().flat_map(|[from, at]| [OsStr::new(OPTION), from.as_os_str(), at.as_os_str()])
    }
}

/// Shows this process what its options say, pairs of paths. Without any, nothing happens.
pub(super) fn show(pairs: &[OsString]) -> Result<(), Failure> {
    if pairs.is_empty() {
        return Ok(());
    }
    let failed = |e: Errno| Failure::system("a namespace of mounts").because(io::Error::from(e));
    unshare_mounts().map_err(failed)?;
    // What is unmounted goes here as well.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(failed)?;
    for pair in pairs.chunks(2) {
        let [from, at] = pair else { continue };
        mount_bind_recursive(from, at).map_err(|e| Failure::at(Path::new(from), io::Error::from(e)))?;
    }
    Ok(())
}
