//! Taking a mount away: directly where allowed, else through fusermount3.

use crate::failure::Failure;
use rustix::io::Errno;
use std::path::Path;
use std::process::{Command, Stdio};

/// The helpers that unmount for ordinary users, in the order in which they are tried.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Takes the mount at `path` away. `lazy`: at once from the tree, and for good when nobody uses it any more.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), Failure> {
    let shown = path.display();
    match vellum_sys::mount::unmount(path, lazy) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => by_helper(path, lazy),
        Err(Errno::BUSY) => {
            Err(Failure::system(format!("{shown}: in use; end what uses it, or unmount with -l")))
        }
        Err(Errno::INVAL) => {
            Err(Failure::input(format!("{shown}: not a mount point; give the directory of a mount")))
        }
        Err(Errno::NOENT) => Err(Failure::input(format!("{shown}: no such directory"))),
        Err(e) => Err(Failure::system(format!("{shown}: cannot unmount")).because(e)),
    }
}

/// Takes the mount at `path` away and ends its filesystem, also for those who have it open elsewhere: from now on they get errors. Where
/// that is not allowed, it is only taken away, and they keep it.
pub fn end(path: &Path) -> Result<(), Failure> {
    match vellum_sys::mount::end(path) {
        Ok(()) => Ok(()),
        Err(_) => unmount(path, true),
    }
}

fn by_helper(path: &Path, lazy: bool) -> Result<(), Failure> {
    let shown = path.display();
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command
            .arg("-u")
            .args(lazy.then_some("-z"))
            .arg("--")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let Ok(output) = command.stderr(Stdio::piped()).output() else { continue };
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::system(format!("{shown}: cannot unmount: {}", said.trim())));
    }
    Err(Failure::system(format!("{shown}: cannot unmount without fusermount3; install the package fuse3")))
}
