//! A program that runs where another one has the place of a third: podman finds runtimes by paths of its own, and a container's runtime cannot
//! be another one for one command.

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use vellum_service::Failure;
use vellum_sys::unshare_mounts;

/// The subcommand of `vellum` that calls [`exec_in_mount_namespace`].
pub const APART: &str = "internal-apart";

/// Becomes `program`, in a namespace of mounts of its own. There `place`, a file, is what `instead` is, and what it was is at `real`, an
/// empty file. Returns only when it cannot.
#[must_use]
pub fn exec_in_mount_namespace(
    place: &Path,
    instead: &Path,
    real: &Path,
    program: &OsString,
    arguments: &[OsString],
) -> Failure {
    let failed = |why: &dyn std::fmt::Display| Failure::system(format!("a namespace of mounts: {why}"));
    if let Err(e) = unshare_mounts() {
        return failed(&e);
    }
    let done = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .and_then(|()| mount_bind(place, real))
        .and_then(|()| mount_bind(instead, place));
    if let Err(e) = done {
        return failed(&e);
    }
    let e = Command::new(program).args(arguments).exec();
    Failure::system(format!("{}", Path::new(program).display())).because(e)
}
