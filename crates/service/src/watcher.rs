//! A second, sleeping process that takes the mount away: when the service asks for it, and with `auto_unmount` also when the service
//! dies, whatever it dies of.
//!
//! The service itself cannot: what it needs for that, a set-user-id helper or the right to change mounts, it has given up
//! ([`crate::sandbox`]). This process has one mount point, one way to be asked, and two answers.

use crate::config::Config;
use crate::failure::Failure;
use crate::sandbox;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, read, retry_on_intr, write};
use std::os::fd::OwnedFd;
use std::path::Path;
use vellum_fuse::SessionHandle;
use vellum_sys::{Fork, HeldSignals, fork};

/// The service asks for the mount to be taken away now.
const NOW: u8 = b'n';
/// The same, lazily.
const LAZILY: u8 = b'l';
/// It has been done. Any other answer is a line that says why not.
const DONE: &[u8] = b"+";
/// Longest answer in bytes.
const ANSWER_MAX: usize = 1024;

/// Its name in lists of processes.
const NAME: &std::ffi::CStr = c"vellum-unmount";

/// The service's end of the way to the watcher; the kernel closes it when the process dies.
#[derive(Debug)]
pub struct Watched(OwnedFd);

/// Starts a watcher if the mount needs one. Without one that only signals need, the mount can still be served.
pub fn start_if_needed(
    config: &Config,
    mountpoint: &Path,
    held: &HeldSignals,
) -> Result<Option<Watched>, Failure> {
    if !config.auto_unmount && !config.sandbox.is_enforced() {
        return Ok(None);
    }
    match start(mountpoint, config.auto_unmount, held) {
        Err(e) if !config.auto_unmount => {
            tracing::warn!("signals will not unmount: {e}");
            Ok(None)
        }
        started => started.map(Some),
    }
}

/// Starts a watcher of the mount that will be at `mountpoint`. Call before any thread has been started, and before anything has been
/// opened that must not be held open by it. `auto_unmount`: it unmounts also when the service has died.
fn start(mountpoint: &Path, auto_unmount: bool, _held: &HeldSignals) -> Result<Watched, Failure> {
    let failed = |e: Errno| Failure::system(format!("cannot start the process that unmounts: {e}"));
    let (watchers, services) = vellum_sys::mount::socket_pair().map_err(failed)?;
    match fork().map_err(failed)? {
        Fork::Parent(_) => Ok(Watched(services)),
        Fork::Child => {
            // Its signals are held as the service's are: they are for the service, which will end, and it after.
            drop(services);
            watch(&watchers, mountpoint, auto_unmount);
            std::process::exit(0);
        }
    }
}

/// Takes the mount of `session` away: by the watcher if there is one, else by itself. The error is a line for the log.
pub fn unmount(watched: Option<&Watched>, session: &SessionHandle, lazy: bool) -> Result<(), String> {
    match watched {
        Some(watched) => watched.unmount(lazy),
        None => session.unmount(lazy).map_err(|e| e.to_string()),
    }
}

impl Watched {
    fn unmount(&self, lazy: bool) -> Result<(), String> {
        let failed = |e: Errno| format!("the process that unmounts does not answer: {e}");
        retry_on_intr(|| write(&self.0, &[if lazy { LAZILY } else { NOW }])).map_err(failed)?;
        let mut answer = [0; ANSWER_MAX];
        let len = retry_on_intr(|| read(&self.0, &mut answer)).map_err(failed)?;
        match answer.get(..len).unwrap_or_default() {
            DONE => Ok(()),
            [] => Err(failed(Errno::PIPE)),
            line => Err(String::from_utf8_lossy(line).into_owned()),
        }
    }
}

fn watch(service: &OwnedFd, mountpoint: &Path, auto_unmount: bool) {
    let _ = rustix::thread::set_name(NAME);
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    // An ordinary user has none, and needs a helper that has.
    if let Err(e) = sandbox::restrict_to_unmounting() {
        tracing::debug!("the watcher keeps its capabilities: {e}");
    }
    let mut byte = [0];
    while let Ok(1) = retry_on_intr(|| read(service, &mut byte)) {
        let answer = vellum_fuse::unmount(mountpoint, byte == [LAZILY]).map_err(|e| e.to_string());
        let line = answer.as_ref().map_or_else(|why| why.as_bytes(), |()| DONE);
        let line = line.get(..ANSWER_MAX).unwrap_or(line);
        let _ = retry_on_intr(|| write(service, line));
    }
    if !auto_unmount {
        return;
    }
    // Only the remains of a dead service: another mount may be there by now.
    let dead = std::fs::metadata(mountpoint).is_err_and(|e| crate::mountpoint::is_dead(&e));
    if dead && let Err(e) = crate::unmount::unmount(mountpoint, true) {
        tracing::warn!("{e}");
    }
}
