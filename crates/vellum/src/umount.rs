//! `vellum umount`.

use crate::query::{ask, read};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use vellum_service::Failure;
use vellum_service::instance::INSTANCE;
use vellum_service::instance::inspect::InstanceReport;
use vellum_service::mounts::mount_copies::MountCopy;
use vellum_service::mounts::mountpoint::{self, Mount};
use vellum_service::mounts::unmount;

/// How long a service is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// After so long it may be that somebody else has the mount, too.
const USUAL: Duration = Duration::from_millis(100);

/// Takes the mount at `path` away. What is to be said, though it is gone from here: where it lives on.
pub fn run(path: &Path, lazy: bool) -> Result<Option<String>, Failure> {
    let at = place(path)?;
    match mountpoint::top_mount(&at) {
        Some(Mount { fs_type, .. }) if !fs_type.starts_with("fuse.") => {
            Err(Failure::input(format!("{}: a mount of type {fs_type}; use umount for it", at.display())))
        }
        Some(mount) if !lazy => {
            let service = service_of(&at);
            unmount::unmount(&at, lazy)?;
            // Whoever unmounts may want the layers next.
            if let (Some(service), Some(("0", number))) = (service, mount.device.split_once(':'))
                && !mountpoint::wait_for_close(service, number, USUAL)
            {
                if let Some(elsewhere) = MountCopy::of_device(&mount.device) {
                    return Ok(Some(format!("{}: unmounted here, but {elsewhere}", at.display())));
                }
                if !mountpoint::wait_for_close(service, number, PATIENCE) {
                    tracing::debug!(service, "it still has the layers");
                }
            }
            Ok(None)
        }
        _ => unmount::unmount(&at, lazy).map(|()| None),
    }
}

/// The process that serves the mount at a path. None: it does not say so, or not in time.
fn service_of(at: &Path) -> Option<u32> {
    let (to_us, from_it) = mpsc::channel();
    let at = at.to_owned();
    // It may hang in the kernel, and ends with this process then.
    std::thread::spawn(move || {
        let said = ask(&at, INSTANCE.to_owned()).and_then(|answer| read::<InstanceReport>(&answer));
        let _ = to_us.send(said.ok().map(|report| report.pid));
    });
    from_it.recv_timeout(PATIENCE).ok()?
}

/// The absolute path without looking into the mount itself, whose service may be dead.
fn place(path: &Path) -> Result<PathBuf, Failure> {
    let absolute =
        std::path::absolute(path).map_err(|e| Failure::input(format!("{}", path.display())).because(e))?;
    let Some(name) = absolute.file_name().map(OsStr::to_owned) else { return Ok(absolute) };
    let parent = absolute.parent().unwrap_or(Path::new("/"));
    let parent =
        parent.canonicalize().map_err(|e| Failure::input(format!("{}", path.display())).because(e))?;
    Ok(parent.join(name))
}
