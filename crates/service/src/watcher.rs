//! `auto_unmount`: a second, sleeping process that takes the mount away when the service dies, whatever it dies of.

use crate::failure::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;
use std::path::Path;
use vellum_sys::{Fork, HeldSignals, fork};

/// Keeps the watcher asleep; the kernel closes it when the process dies.
#[derive(Debug)]
pub struct Watched(#[expect(dead_code, reason = "its end is the signal")] OwnedFd);

/// Starts a watcher of the mount that will be at `mountpoint`. Call before any thread has been started, and before
/// anything has been opened that must not be held open by it.
pub fn start(mountpoint: &Path, _held: &HeldSignals) -> Result<Watched, Failure> {
    let failed =
        |e: Errno| Failure::system(format!("option auto_unmount: cannot start the watching process: {e}"));
    let (watchers, services) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    match fork().map_err(failed)? {
        Fork::Parent(_) => Ok(Watched(services)),
        Fork::Child => {
            // Its signals are held as the service's are: they are for the service, which will end, and it after.
            drop(services);
            watch(&watchers, mountpoint);
            std::process::exit(0);
        }
    }
}

fn watch(service: &OwnedFd, mountpoint: &Path) {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let mut byte = [0];
    while matches!(read(service, &mut byte), Err(Errno::INTR)) {}
    // Only the remains of a dead service: another mount may be there by now.
    let dead = std::fs::metadata(mountpoint).is_err_and(|e| crate::mountpoint::is_dead(&e));
    if dead && let Err(e) = crate::unmount::unmount(mountpoint, true) {
        tracing::warn!("{e}");
    }
}
