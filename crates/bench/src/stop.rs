//! Ctrl-C: end soon, and leave nothing mounted.
//!
//! A signal sets a flag that the main thread looks at between steps; it then ends by its ordinary way out, which
//! unmounts everything. When it does not come round in time (it hangs in a filesystem that does not answer), or at
//! a second signal, what is registered here is detached by force.

use crate::failure::{Failure, Result, While};
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the main thread may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(15);

/// The exit status after a signal, as shells know it for SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static MOUNTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Watches for signals from now on.
pub fn watch() -> Result<()> {
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).doing(|| "watching for signals")?;
    let body = move || {
        for _ in signals.forever() {
            if ASKED.swap(true, Ordering::Relaxed) {
                force();
            }
            eprintln!("\nstopping; unmounting what is mounted");
            let late = std::thread::Builder::new().spawn(|| {
                std::thread::sleep(PATIENCE);
                force();
            });
            if late.is_err() {
                force();
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).doing(|| "starting a thread")?;
    Ok(())
}

/// Whether the user wants to stop.
#[must_use]
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error when the user wants to stop.
pub fn check() -> Result<()> {
    if asked() { Err(Failure::new("interrupted")) } else { Ok(()) }
}

/// Remembers a mount, for the way out by force.
pub fn register(mount: &Path) {
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).push(mount.to_owned());
}

/// Forgets a mount that is gone.
pub fn unregister(mount: &Path) {
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| other != mount);
}

/// Detaches everything that is registered, and ends the process.
fn force() -> ! {
    let mounts = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for mount in mounts.iter().rev() {
        let _ = unmount(mount, UnmountFlags::DETACH);
    }
    std::process::exit(i32::from(EXIT_INTERRUPTED));
}
