//! After a mount has ended: its upper layer is made readable without Vellum, as far as that is done in some seconds.
//!
//! A file that takes data from other layers reads as zeros where somebody reads the upper as a plain directory. So what is missing
//! is copied, by the service that served the mount and holds the right to its upper, until somebody else wants that.

use crate::config::Config;
use crate::layers::lock::DirLock;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use vellum_union::{Extent, Union};
use vellum_vfs::Result;

/// Bytes per second, unless the rate of idle times is given.
const RATE: u64 = 128 << 20;
/// Longest time without a look whether somebody waits.
const LOOK: Duration = Duration::from_millis(10);

/// Hundredths of a filesystem that are left free by what nobody has asked for.
const SPARE: u64 = 5;
/// So much may wait to be written when somebody else wants the layer: a sync cannot be interrupted, and keeps the layer busy.
const SYNCED_AFTER: u64 = 4 << 20;

/// A step of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many bytes have been copied.
    Copied(u64),
    /// They are being made durable. Until the next step nothing is changed.
    Syncing,
}

/// A tree whose upper layer takes data from other layers.
pub(crate) trait Complete {
    /// Copies up to `bytes` of them, so that the layer can be read without the others. `may_continue` sees each step, and ends the work by
    /// answering false. Says what was done, in one line.
    fn complete(&self, bytes: u64, may_continue: &mut dyn FnMut(Step) -> bool) -> Result<Option<String>>;
}

impl Complete for Union {
    fn complete(&self, bytes: u64, may_continue: &mut dyn FnMut(Step) -> bool) -> Result<Option<String>> {
        if !self.needs_lowers() {
            return Ok(None);
        }
        let extent = Extent { bytes, spare: SPARE, synced_after: SYNCED_AFTER };
        let done = self.flatten(extent, &mut |state| {
            may_continue(if state.syncing { Step::Syncing } else { Step::Copied(state.bytes_done) })
        })?;
        if let Some((path, why)) = done.failed.first() {
            tracing::warn!(path, %why, files = done.files_failed, "files that take data from other layers stay so");
        }
        Ok((done.files > 0).then(|| {
            format!("{} of {} files completed that took data from other layers", done.files_done, done.files)
        }))
    }
}

/// Completes what may be completed. Nothing happens where nothing is missing.
pub(crate) fn complete(tree: &impl Complete, config: &Config, locks: &[DirLock]) {
    let right = Right { locks, phase: Mutex::new(Phase::Changes) };
    let bytes = config.fill_at_end.0;
    if bytes == 0 || !config.writable() || locks.is_empty() || right.has_waiters() {
        return;
    }
    let rate = config.background_fill.unwrap_or(RATE).max(1);
    let begin = Instant::now();
    let done = std::thread::scope(|scope| {
        let mut watched = false;
        let _end = AtEnd(&right);
        tree.complete(bytes, &mut |step| match step {
            Step::Syncing => {
                if !watched {
                    let watch = std::thread::Builder::new().name("vellum-right".into());
                    watched = watch.spawn_scoped(scope, || right.give_when_wanted()).is_ok();
                }
                // Somebody else may change files of an idle mount.
                right.pass_to(if config.background_fill.is_none() { Phase::Waits } else { Phase::Changes })
            }
            Step::Copied(copied) => {
                let due = Duration::from_secs_f64(copied as f64 / rate as f64);
                right.pass_to(Phase::Changes) && right.pause(due.saturating_sub(begin.elapsed()))
            }
        })
    });
    let upper = config.upper.as_ref().map(ToString::to_string);
    match done {
        Ok(None) => {}
        Ok(Some(what)) => tracing::info!(upper, "{what}"),
        Err(error) => {
            tracing::warn!(upper, %error, "files that take data from other layers stay so")
        }
    }
}

/// The right to the layer. While this process only waits for a disk, it is given to whoever wants it.
struct Right<'a> {
    locks: &'a [DirLock],
    phase: Mutex<Phase>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The layer is being changed.
    Changes,
    /// The disk is waited for, and nothing is changed.
    Waits,
    /// It is somebody else's.
    Given,
    /// There is nothing left to do.
    Done,
}

/// Says that there is nothing left to do, also after a panic: the scope waits for the thread that looks.
struct AtEnd<'a>(&'a Right<'a>);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.pass_to(Phase::Done);
    }
}

impl Right<'_> {
    fn has_waiters(&self) -> bool {
        self.locks.iter().any(DirLock::has_waiters)
    }

    /// False: it has been given away.
    fn pass_to(&self, phase: Phase) -> bool {
        let mut now = self.phase.lock();
        if *now == Phase::Given {
            return false;
        }
        *now = phase;
        true
    }

    /// False: somebody wants it.
    fn pause(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            if self.has_waiters() {
                return false;
            }
            match end.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return true,
                Some(rest) => std::thread::sleep(rest.min(LOOK)),
            }
        }
    }

    fn give_when_wanted(&self) {
        loop {
            {
                let mut phase = self.phase.lock();
                match *phase {
                    Phase::Waits if self.has_waiters() => {
                        self.locks.iter().for_each(DirLock::release);
                        *phase = Phase::Given;
                        return;
                    }
                    Phase::Changes | Phase::Waits => {}
                    Phase::Given | Phase::Done => return,
                }
            }
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayerSource;
    use std::path::Path;
    use std::sync::mpsc;

    /// A tree whose disk takes as long for a sync as somebody else takes to get the layer.
    struct Slow {
        syncs: mpsc::SyncSender<()>,
        /// Somebody else has it.
        taken: Mutex<mpsc::Receiver<()>>,
        /// Steps after that.
        after: Mutex<Vec<bool>>,
    }

    impl Complete for Slow {
        fn complete(&self, _: u64, may_continue: &mut dyn FnMut(Step) -> bool) -> Result<Option<String>> {
            assert!(may_continue(Step::Copied(1)) && may_continue(Step::Syncing));
            self.syncs.send(()).unwrap();
            let taken = self.taken.lock().recv_timeout(Duration::from_secs(30));
            assert_eq!(taken, Ok(()), "nobody gets the layer while a disk is waited for");
            self.after.lock().push(may_continue(Step::Copied(1)));
            Ok(None)
        }
    }

    /// A tree that panics while its disk is waited for.
    struct Faulty;

    impl Complete for Faulty {
        fn complete(&self, _: u64, may_continue: &mut dyn FnMut(Step) -> bool) -> Result<Option<String>> {
            assert!(may_continue(Step::Syncing));
            panic!("a fault of ours");
        }
    }

    fn layers(dir: &Path) -> (Config, [DirLock; 2]) {
        let take = |path: &Path| DirLock::take("upperdir", path, Duration::from_secs(20), "taken").unwrap();
        let (upper, work) = (dir.join("upper"), dir.join("work"));
        for path in [&upper, &work] {
            std::fs::create_dir(path).unwrap();
        }
        let source = |path: &Path| Some(LayerSource::named(path.into()));
        let config = Config { upper: source(&upper), work: source(&work), ..Config::default() };
        (config, [take(&upper), take(&work)])
    }

    #[test]
    fn a_panic_in_the_flatten_releases_the_layer() {
        let dir = tempfile::tempdir().unwrap();
        let (config, locks) = layers(dir.path());
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let ended = std::panic::catch_unwind(|| complete(&Faulty, &config, &locks));
            done.send(ended.is_err())
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(true), "the end of the mount hangs");
    }

    #[test]
    fn the_next_mount_does_not_wait_for_the_sync() {
        let dir = tempfile::tempdir().unwrap();
        let take = |path: &Path| DirLock::take("upperdir", path, Duration::from_secs(20), "taken").unwrap();
        let (upper, work) = (dir.path().join("upper"), dir.path().join("work"));
        let (config, locks) = layers(dir.path());
        let (syncs, syncing) = mpsc::sync_channel(1);
        let (taken, is_taken) = mpsc::sync_channel(1);
        let tree = Slow { syncs, taken: Mutex::new(is_taken), after: Mutex::default() };
        std::thread::scope(|scope| {
            let take = &take;
            let (upper, work) = (&upper, &work);
            scope.spawn(move || {
                syncing.recv().unwrap();
                let _both = (take(upper), take(work));
                taken.send(()).unwrap();
            });
            complete(&tree, &config, &locks);
        });
        assert_eq!(*tree.after.lock(), [false], "it went on with a layer of somebody else");
    }
}
