//! Ctrl-C: end soon, and leave nothing mounted.
//!
//! A signal sets a flag that the main thread looks at between steps; it then ends by its ordinary way out, which
//! unmounts everything. When it does not come round in time (it hangs in a filesystem that does not answer), or at
//! a second signal, what is registered here is taken away by force: first the processes, and then the mounts, of which FUSE's
//! answer no request any more, so that whoever waits for an answer has an error.
//!
//! What does not end [in time](within) is taken away like that, too.

use crate::descendants;
use crate::failure::{Failure, Result, While};
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the main thread may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often force is tried.
const FORCE_TRIES: u32 = 20;
/// Between tries.
const FORCE_PAUSE: Duration = Duration::from_millis(50);

/// The exit status after a signal, as shells know it for SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// How long what was given up may take to clear up after itself, before everything is taken away once more.
const GRACE: Duration = Duration::from_secs(20);

static ASKED: AtomicBool = AtomicBool::new(false);
static LATE: AtomicBool = AtomicBool::new(false);
static MOUNTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static PLACES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static DIRS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

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
pub fn is_requested() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error when the user wants to stop, or when what is being done has taken too long.
pub fn check() -> Result<()> {
    match (is_requested(), LATE.load(Ordering::Relaxed)) {
        (true, _) => Err(Failure::new("interrupted")),
        (false, true) => Err(Failure::new("too late")),
        (false, false) => Ok(()),
    }
}

/// Does something that may take so long. If it has not returned then, all processes below this one and all mounts are taken away, by which
/// it does, and it has failed.
pub fn with_timeout<T>(limit: Duration, what: impl FnOnce() -> Result<T>) -> Result<T> {
    let (done, until_done) = channel::<()>();
    let watch = std::thread::Builder::new().name("limit".into());
    let watch = watch.spawn(move || give_up_after(limit, &until_done)).doing(|| "starting a thread")?;
    let found = what();
    drop(done);
    let late = watch.join().unwrap_or(false);
    LATE.store(false, Ordering::Relaxed);
    descendants::reap();
    if late && !is_requested() {
        return Err(Failure::new(format!("did not finish within {} s", limit.as_secs_f64())));
    }
    found
}

/// Whether it was not done in time.
fn give_up_after(limit: Duration, done: &Receiver<()>) -> bool {
    let (mut patience, mut late) = (limit, false);
    while done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        (patience, late) = (GRACE, true);
        LATE.store(true, Ordering::Relaxed);
        kill_all();
    }
    late
}

/// Kills all processes below this one, and detaches all registered mounts; whoever waits for one of them has an error.
fn kill_all() {
    descendants::kill();
    let mounts = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for mount in mounts.iter().rev() {
        // It may not be there yet, or not any more.
        let _ = unmount(mount, UnmountFlags::DETACH | UnmountFlags::FORCE);
    }
    // Those that could not die, for they waited.
    descendants::kill();
}

/// Remembers a mount, for the way out by force.
pub fn register(mount: &Path) {
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner).push(mount.to_owned());
}

/// Forgets a mount that is gone.
pub fn unregister(mount: &Path) {
    for mounts in [&MOUNTS, &PLACES] {
        mounts.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| other != mount);
    }
}

/// Remembers the mount of a place in which others are made: it is there until the end.
pub fn register_place(mount: &Path) {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner).push(mount.to_owned());
}

/// Remembers a directory of ours, for the way out by force.
pub fn register_dir(dir: &Path) {
    DIRS.lock().unwrap_or_else(PoisonError::into_inner).push(dir.to_owned());
}

/// Takes away and removes everything that is registered, and ends the process.
fn force() -> ! {
    let list = |of: &Mutex<Vec<PathBuf>>| of.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (mounts, places) = (list(&MOUNTS), list(&PLACES));
    for _ in 0..FORCE_TRIES {
        kill_all();
        for place in places.iter().rev() {
            let _ = unmount(place, UnmountFlags::DETACH);
        }
        // The main thread may be in the middle of mounting; it does not begin to any more.
        std::thread::sleep(FORCE_PAUSE);
        if !mounts.iter().chain(&places).any(|mount| is_mounted_below(mount)) {
            break;
        }
    }
    for dir in DIRS.lock().unwrap_or_else(PoisonError::into_inner).iter().rev() {
        // Never into something that is still mounted.
        let left = is_mounted_below(dir) || (std::fs::remove_dir(dir).is_err() && remove(dir).is_err());
        if left {
            eprintln!("vellum-bench: left behind: {}", dir.display());
        }
    }
    std::process::exit(i32::from(EXIT_INTERRUPTED));
}

/// Removes a directory with all that is in it. The main thread and the way out by force may do so at the same time: what is gone is
/// removed.
pub fn remove(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Whether anything is mounted on `dir` or below it.
fn is_mounted_below(dir: &Path) -> bool {
    is_any_mount(|point| point.starts_with(dir))
}

/// Whether anything is mounted there, whether or not it answers.
pub(crate) fn is_mounted(there: &Path) -> bool {
    is_any_mount(|point| point == there)
}

fn is_any_mount(wanted: impl Fn(&Path) -> bool) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(1).is_some_and(|point| wanted(Path::new(point))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn concurrent_removals_of_a_directory_both_succeed() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path().join("top");
            (0..50).for_each(|n| std::fs::create_dir_all(top.join(format!("{n}/a/b"))).unwrap());
            let together = Barrier::new(2);
            let body = || {
                together.wait();
                remove(&top)
            };
            let (mine, other) = std::thread::scope(|scope| {
                let other = scope.spawn(body);
                (body(), other.join().unwrap())
            });
            assert!(mine.is_ok() && other.is_ok() && !top.exists(), "{mine:?} {other:?}");
        }
        assert!(remove(Path::new("/proc/self")).is_err(), "what cannot be removed is told");
    }
}
