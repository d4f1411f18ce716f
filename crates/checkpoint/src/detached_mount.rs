//! A mount that has no place in the tree: this process and programs of this user reach it by a descriptor. So nothing is left of it when this process
//! is killed.

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountPropagationFlags, mount_change};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use vellum_fuse::{FuseMount, MountOptions, mount};
use vellum_sys::unshare_mounts;

/// Such a mount; it lives as long as somebody has something of it open.
#[derive(Debug)]
pub(super) struct DetachedMount {
    path: PathBuf,
    #[expect(dead_code, reason = "the mount lives as long as somebody has it open")]
    dir: OwnedFd,
}

impl DetachedMount {
    /// Mounts, on a directory that is made for a moment in `scratch`. Nobody may ask for anything by its path before the connection is served. An error
    /// says why in words.
    pub(super) fn new(options: MountOptions, scratch: &Path) -> Result<(Self, FuseMount), String> {
        let at =
            tempfile::Builder::new().prefix(".images-").tempdir_in(scratch).map_err(|e| e.to_string())?;
        let place = at.path().to_owned();
        // A namespace of mounts ends with its last thread, however that ends.
        let mounting =
            thread::Builder::new().name("mount".to_owned()).spawn(move || mount_detached(&place, &options));
        let mounted = mounting.map_err(|e| e.to_string())?.join();
        let (mounted, dir) = mounted.map_err(|_| "a thread has panicked".to_owned())??;
        let path = format!("/proc/{}/fd/{}", std::process::id(), dir.as_raw_fd()).into();
        Ok((Self { path, dir }, mounted))
    }

    /// A path to it, for programs of this user.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Mounts in a namespace of this thread's own: the connection, and the directory.
fn mount_detached(at: &Path, options: &MountOptions) -> Result<(FuseMount, OwnedFd), String> {
    unshare_mounts().map_err(|e| format!("no namespace of mounts: {e}"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| format!("mounts of its own: {e}"))?;
    let mounted = mount(at, options).map_err(|e| e.to_string())?;
    let dir = open(at, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    Ok((mounted, dir.map_err(|e| format!("{}: {e}", at.display()))?))
}
