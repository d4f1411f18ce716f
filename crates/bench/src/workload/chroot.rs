//! A program in a mounted tree, as in a container: the tree is its root directory, and everything that it is, loads and reads comes
//! through the mount.
//!
//! Its mounts (devices, proc, what it gets as input) are in a mount namespace of its own, and gone when it ends.

use crate::failure::{Failure, Result, While};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    unmount,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory in a tree that tasks work in.
pub const WORK: &str = "/work";
/// Where the library is, and the directory of its socket, on the tmpfs at /run.
const LIBRARY: &str = "/run/vellum/libvellum.so";
const SOCKETS: &str = "/run/vellum/pool";
/// The variables by which the library is loaded, and finds its pool.
const PRELOAD: &str = "LD_PRELOAD";
const SOCKET: &str = "VELLUM_SOCKET";

/// A tree, and what is bound into it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chroot {
    /// The tree.
    pub root: PathBuf,
    /// Directories and where in the tree they are bound. The mount points are there.
    pub binds: Vec<(PathBuf, String)>,
    /// What the shell of the tree does.
    pub script: String,
}

/// Makes the tree this process's root directory, and returns the program that is to be executed next.
pub(crate) fn enter(inside: &Chroot) -> Result<Command> {
    let Chroot { root, binds, script } = inside;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).doing(|| "a mount namespace (root may)")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).doing(|| "a mount namespace of its own")?;
    // A mount of its own, whatever the tree is, which can become the root of the namespace.
    mount_bind_recursive(root, root).doing(|| "binding the tree")?;
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    mount_bind_recursive("/dev", at("dev")).doing(|| "binding /dev")?;
    let mount_new = |kind: &str, path: &str| {
        mount(kind, at(path), kind, MountFlags::empty(), None).doing(|| format!("mounting {kind}"))
    };
    mount_new("proc", "proc")?;
    mount_new("tmpfs", "run")?;
    for (from, to) in binds {
        mount_bind(from, at(to)).doing(|| format!("binding {}", from.display()))?;
    }
    let mut command = Command::new("/bin/sh");
    // The last words of what fails are in the report.
    command.arg("-ec").arg(format!("exec 2>&1 >/dev/null; {script}")).env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", WORK);
    command.env("TMPDIR", WORK).env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    if let (Some(library), Some(socket)) = (std::env::var_os(PRELOAD), std::env::var_os(SOCKET)) {
        install_library(&library, Path::new(&socket), &at)?;
        let name = Path::new(&socket).file_name().unwrap_or_default();
        command.env(PRELOAD, LIBRARY).env(SOCKET, Path::new(SOCKETS).join(name));
    }
    // Not by chroot: this namespace would hold all other mounts of the machine, and their services would live on without them.
    std::env::set_current_dir(root).doing(|| "chdir")?;
    rustix::process::pivot_root(".", ".").doing(|| format!("pivot_root to {}", root.display()))?;
    unmount(".", UnmountFlags::DETACH).doing(|| "leaving the old root")?;
    std::env::set_current_dir("/").doing(|| "chdir")?;
    Ok(command)
}

fn install_library(library: &OsString, socket: &Path, at: &dyn Fn(&str) -> PathBuf) -> Result<()> {
    fs::create_dir_all(at(SOCKETS)).doing(|| "a place for the library")?;
    fs::write(at(LIBRARY), "").doing(|| "a place for the library")?;
    mount_bind(library, at(LIBRARY)).doing(|| "binding the library")?;
    mount_bind(socket.parent().unwrap_or(socket), at(SOCKETS)).doing(|| "binding the pool's socket")
}

/// Becomes the program; returns only when that failed.
pub(crate) fn exec_program(mut command: Command) -> Failure {
    Failure::new(format!("the tree's shell: {}", command.exec()))
}
