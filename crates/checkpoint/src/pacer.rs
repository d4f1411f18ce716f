//! How fast an object is written: so that others on the disk wait no longer than they would anyway.
//!
//! What is written goes to the medium in groups, each of which waits for its turn and for the medium. A file's page cache would otherwise take all of
//! it at once, and write it back as fast as the disk goes.

use super::pace::Pace;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use vellum_zoned::pace::{Budget, Meter, Nanos};
use vellum_zoned::paced_file::Disk;

/// Bytes of a group. Others wait for the one that is under way: with four times as many the 99th percentile of their waits was twice as long on a disk of 2 GB/s,
/// and the checkpoint no sooner there.
pub(super) const GROUP: u64 = 1 << 20;
/// Bytes that a filesystem writes for itself with a group: its journal, and where zones are written to.
const BESIDE: u64 = 64 << 10;
/// Bytes per second, at the least, however long others wait: a checkpoint has to end.
const LEAST: u64 = 64 << 20;
/// What a group at a rate may be late by without a loss, in nanoseconds: the thread wakes up late, and the medium takes longer for some.
const CREDIT: Nanos = 50_000_000;

/// Where groups go.
pub(super) trait Medium {
    type Error;

    /// Waits until what was written is on it.
    fn flush(&self) -> Result<(), Self::Error>;
}

/// How fast.
#[derive(Debug)]
pub(super) enum WritePacer<M> {
    /// As the device takes it.
    None,
    /// As others allow.
    Others(Groups<M>, Disk),
    /// At most so many bytes per second.
    Rate(Groups<M>, Rate),
}

/// Bytes per second, and when the next group goes.
#[derive(Debug)]
pub(super) struct Rate {
    rate: u64,
    began: Instant,
    meter: Meter,
}

/// The group that is being written.
#[derive(Debug)]
pub(super) struct Groups<M> {
    medium: M,
    /// It has had its turn.
    may_go: bool,
    written: u64,
}

impl<M: Medium> Groups<M> {
    /// Takes what was written; how much the group was, if it is on the medium now.
    fn add(&mut self, bytes: u64) -> Result<Option<u64>, M::Error> {
        self.written += bytes;
        if self.written >= GROUP { self.flush().map(Some) } else { Ok(None) }
    }

    fn flush(&mut self) -> Result<u64, M::Error> {
        if self.written > 0 {
            self.medium.flush()?;
        }
        self.may_go = false;
        Ok(std::mem::take(&mut self.written))
    }
}

impl Rate {
    fn wait(&mut self) {
        let at = Duration::from_nanos(self.meter.due());
        thread::sleep(at.saturating_sub(self.began.elapsed()));
        self.meter.sent(self.began.elapsed().as_nanos() as Nanos, GROUP, self.rate as f64, CREDIT);
    }
}

impl<M: Medium> WritePacer<M> {
    /// As is asked for. `disk`: finds what others wait for, on what is at `path`.
    pub(super) fn on(
        pace: Pace,
        path: &Path,
        medium: M,
        disk: impl FnOnce(Budget) -> io::Result<Disk>,
    ) -> Self {
        let groups = Groups { medium, may_go: false, written: 0 };
        match pace {
            Pace::None => Self::None,
            Pace::Rate(rate) => {
                Self::Rate(groups, Rate { rate, began: Instant::now(), meter: Meter::default() })
            }
            Pace::Auto => match disk(Budget::of_unknown(LEAST)) {
                Ok(disk) => Self::Others(groups, disk),
                Err(e) => {
                    tracing::info!(
                        "{}: the latency of the disk cannot be measured ({e}); no pacing",
                        path.display()
                    );
                    Self::None
                }
            },
        }
    }

    /// Waits until more may be written.
    pub(super) fn wait_for_turn(&mut self) {
        match self {
            Self::Others(groups, disk) if !groups.may_go => {
                groups.may_go = true;
                disk.expect(BESIDE);
                disk.wait_for_turn(GROUP);
            }
            Self::Rate(groups, rate) if !groups.may_go => {
                groups.may_go = true;
                rate.wait();
            }
            _ => {}
        }
    }

    /// So much is written now, whether it is its turn or not, for a container stands still. It is not taken for others' work.
    pub(super) fn hurry(&mut self, bytes: u64) {
        if let Self::Others(groups, disk) = self
            && !groups.may_go
        {
            disk.expect(bytes + BESIDE);
        }
    }

    /// So much was written.
    pub(super) fn written(&mut self, bytes: u64) -> Result<(), M::Error> {
        match self {
            Self::None => Ok(()),
            Self::Rate(groups, _) => groups.add(bytes).map(drop),
            Self::Others(groups, disk) => {
                let had_turn = groups.may_go;
                if groups.add(bytes)?.is_some() && had_turn {
                    disk.done(GROUP);
                }
                Ok(())
            }
        }
    }

    /// Nothing more is written.
    pub(super) fn sync(&mut self) -> Result<(), M::Error> {
        match self {
            Self::None => Ok(()),
            Self::Rate(groups, _) => groups.flush().map(drop),
            Self::Others(groups, disk) => {
                let had_turn = groups.may_go;
                groups.flush()?;
                if had_turn {
                    disk.done(GROUP);
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is waited for.
    #[derive(Default)]
    struct Counts(std::cell::Cell<u32>);

    impl Medium for &Counts {
        type Error = io::Error;

        fn flush(&self) -> io::Result<()> {
            self.0.set(self.0.get() + 1);
            Ok(())
        }
    }

    /// Seconds that so many MiB take.
    fn takes(pacing: &mut WritePacer<&Counts>, mib: u64) -> f64 {
        let begin = Instant::now();
        for _ in 0..mib {
            pacing.wait_for_turn();
            pacing.written(1 << 20).unwrap();
        }
        pacing.sync().unwrap();
        begin.elapsed().as_secs_f64()
    }

    #[test]
    fn a_rate_is_kept() {
        let medium = Counts::default();
        let no_disk = |_| panic!("a rate needs to see nobody");
        let mut pacing = WritePacer::on(Pace::Rate(40 << 20), Path::new("/x"), &medium, no_disk);
        // The first group goes at once, and the last one is not waited for: 16 MiB after it, of 20. A part of a second of that is the credit.
        assert!(takes(&mut pacing, 20) >= 0.4 - CREDIT as f64 / 1e9);
        assert_eq!(medium.0.get(), 20);
    }

    #[test]
    fn beside_others_it_ends() {
        let (medium, dir) = (Counts::default(), tempfile::tempdir_in("/var/tmp").unwrap());
        let mut pacing =
            WritePacer::on(Pace::Auto, dir.path(), &medium, |budget| Disk::of_directory(dir.path(), budget));
        if matches!(pacing, WritePacer::None) {
            eprintln!("SKIPPED: no direct I/O in /var/tmp");
            return;
        }
        assert!(takes(&mut pacing, 64) > 0.0);
        // A group that was not waited for, because somebody waits for it, ends as well; and so does one that is not whole.
        pacing.hurry(GROUP);
        pacing.written(GROUP).unwrap();
        assert!(takes(&mut pacing, 6) > 0.0);
        assert!(takes(&mut pacing, 8) > 0.0);
        assert_eq!(medium.0.get(), 64 + 1 + 6 + 8);
    }

    #[test]
    fn where_nobody_is_seen_nothing_is_held_back() {
        let medium = Counts::default();
        let unseen = |_| Err(io::ErrorKind::Unsupported.into());
        let mut pacing = WritePacer::on(Pace::Auto, Path::new("/x"), &medium, unseen);
        assert!(matches!(pacing, WritePacer::None));
        takes(&mut pacing, 8);
        assert_eq!(medium.0.get(), 0);
    }
}
