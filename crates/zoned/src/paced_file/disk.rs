//! A disk on which paced files are written, and who else is at work there.

use super::counters::Counters;
use super::file::PacedFile;
use super::probe::{self, Probe};
use crate::pace::{Budget, Direction, Nanos, PaceDecision, Pacer, SECOND};
use parking_lot::{Condvar, Mutex};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// From one look at the disk's counters to the next.
const TICK: Duration = Duration::from_millis(3);
/// Others that were seen are taken to be there for so long.
const LINGER: Nanos = SECOND / 10;
/// How often images are held back to see how others are without: what they do changes.
const LOOKS: Nanos = 3 * SECOND;
/// Written at once, and under way at the most, where a disk is measured.
const MEASURED: u64 = 1 << 20;
/// A piece that waits looks again after so long: others may have gone.
const PATIENCE: Duration = Duration::from_millis(10);

/// A disk, as far as paced files are concerned. All that are written side by side have the same one.
#[derive(Clone, Debug)]
pub struct Disk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    pacer: Mutex<Pacer>,
    changed: Condvar,
    /// Bytes that we have asked the disk for.
    submitted: AtomicU64,
    /// Whether others were at work a moment ago.
    is_shared: AtomicBool,
}

impl Disk {
    /// The disk that `directory` lies on, where files may be made. A thread watches it as long as this is used.
    pub fn of_directory(directory: &Path, budget: Budget) -> io::Result<Self> {
        Self::watched(directory, Probe::new(directory)?, budget)
    }

    /// A block device, which is written to by whoever asks. As [`Self::of_directory`].
    pub fn of_device(path: &Path, budget: Budget) -> io::Result<Self> {
        Self::watched(path, Probe::of_device(path)?, budget)
    }

    fn watched(path: &Path, probe: Probe, budget: Budget) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            began: Instant::now(),
            pacer: Mutex::new(Pacer::new(budget)),
            changed: Condvar::new(),
            submitted: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
        });
        let watch = Watch {
            shared: Arc::downgrade(&shared),
            counters: Counters::of_path(path),
            probe,
            others_at: None,
            looked_at: 0,
        };
        std::thread::Builder::new().name("pace".to_owned()).spawn(move || watch.run())?;
        Ok(Self { shared })
    }

    /// How many bytes per second the disk takes, for [`Budget::of_disk`]: so many are written to a file without a name. It disturbs others,
    /// and the disk does not change; once is enough.
    pub fn measure(directory: &Path, bytes: u64) -> io::Result<u64> {
        let budget = Budget {
            slack: 0.0,
            least: u64::MAX,
            first: u64::MAX,
            most: u64::MAX,
            window: MEASURED,
            credit: 0,
        };
        let disk = Self::of_directory(directory, budget)?;
        let mut file = PacedFile::begin(directory, OsStr::new(""), &disk)?;
        let piece = vec![0x5a; MEASURED as usize];
        let begins = Instant::now();
        let pieces = (bytes / MEASURED).max(1);
        (0..pieces).try_for_each(|_| file.write(&piece))?;
        file.sync()?;
        Ok((pieces as f64 * MEASURED as f64 / begins.elapsed().as_secs_f64()) as u64)
    }

    /// Whether others were at work a moment ago.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.is_shared.load(Ordering::Relaxed)
    }

    /// Bytes per second that are granted at the moment while others are at work.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.shared.pacer.lock().rate()
    }

    /// Bytes that are going to be written beside pieces, by the filesystem for itself: they are not others'.
    pub fn expect(&self, bytes: u64) {
        self.shared.submitted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits until a piece of so many bytes may go, and takes it for sent.
    pub fn wait_for_turn(&self, bytes: u64) {
        let mut pacer = self.shared.pacer.lock();
        loop {
            let now = self.shared.now();
            let patience = match pacer.ask(now, bytes) {
                PaceDecision::Now => {
                    pacer.sent(now, bytes);
                    self.shared.submitted.fetch_add(bytes, Ordering::Relaxed);
                    return;
                }
                PaceDecision::At(at) => PATIENCE.min(Duration::from_nanos(at - now)),
                PaceDecision::AfterDone => PATIENCE,
            };
            self.shared.changed.wait_for(&mut pacer, patience);
        }
    }

    /// A piece is on the disk.
    pub fn done(&self, bytes: u64) {
        self.shared.pacer.lock().done(self.shared.now(), bytes);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }
}

/// The thread that watches.
struct Watch {
    shared: Weak<Shared>,
    counters: Option<Counters>,
    probe: Probe,
    /// When others were seen last.
    others_at: Option<Nanos>,
    /// When images were last held back to see others without.
    looked_at: Nanos,
}

impl Watch {
    fn run(mut self) {
        while let Some(shared) = self.shared.upgrade() {
            if let Err(error) = self.look(&shared) {
                tracing::warn!(
                    "a disk cannot be watched any more: {error}; images are not held back for others"
                );
                return;
            }
            drop(shared);
            std::thread::sleep(TICK);
        }
    }

    fn look(&mut self, shared: &Shared) -> io::Result<()> {
        let now = shared.now();
        let submitted = shared.submitted.load(Ordering::Relaxed);
        // Where nobody counts, others may be there.
        let others = self.counters.as_mut().is_none_or(|counters| counters.others_work(now, submitted));
        if others {
            self.others_at = Some(now);
            shared.pacer.lock().others_seen(now);
        }
        let is_shared = self.others_at.is_some_and(|at| now < at + LINGER);
        shared.is_shared.store(is_shared, Ordering::Relaxed);
        if !is_shared {
            // What the disk does when nobody else is there is not what others would find.
            return Ok(());
        }
        shared.submitted.fetch_add(probe::BYTES, Ordering::Relaxed);
        let took = self.probe.read()?.as_nanos() as Nanos;
        let mut pacer = shared.pacer.lock();
        pacer.probed(shared.now(), Direction::Read, probe::BYTES, took);
        if self.looked_at + LOOKS <= now {
            self.looked_at = now;
            pacer.probe(now);
        }
        Ok(())
    }
}
