//! How fast an object is written: so that others on the disk wait no longer than they would anyway.
//!
//! What is written goes to the medium in groups, each of which waits for its turn and for the medium. A
//! file's page cache would otherwise take all of it at once, and write it back as fast as the disk goes.

use super::pace::Pace;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use vellum_zoned::pace::{Budget, Meter, Nanos};
use vellum_zoned::paced_file::Disk;

/// Bytes of a group. Others wait for the one that is under way: with four times as many the 99th percentile
/// of their waits was twice as long on a disk of 2 GB/s, and the checkpoint no sooner there.
pub(super) const GROUP: u64 = 1 << 20;
/// Bytes that a filesystem writes for itself with a group: its journal, and where zones are written to.
const BESIDE: u64 = 64 << 10;
/// Bytes per second, at the least, however long others wait: a checkpoint has to end.
const LEAST: u64 = 64 << 20;
/// What a group at a rate may be late by without a loss, in nanoseconds: the thread wakes up late, and the medium takes longer for some.
const CREDIT: Nanos = 50_000_000;

/// How fast: in groups, of which each has its turn.
#[derive(Debug)]
pub(super) struct WritePacer {
    rule: Rule,
    /// The group that is being written has had its turn.
    may_go: bool,
    /// Bytes of it.
    written: u64,
}

#[derive(Debug)]
enum Rule {
    /// As the device takes it.
    None,
    /// As others allow.
    Others(Disk),
    /// At most so many bytes per second.
    Rate(Rate),
}

/// Bytes per second, and when the next group goes.
#[derive(Debug)]
struct Rate {
    rate: u64,
    began: Instant,
    meter: Meter,
}

impl Rate {
    fn wait(&mut self) {
        let at = Duration::from_nanos(self.meter.due());
        thread::sleep(at.saturating_sub(self.began.elapsed()));
        self.meter.sent(self.began.elapsed().as_nanos() as Nanos, GROUP, self.rate as f64, CREDIT);
    }
}

impl WritePacer {
    /// As is asked for. `disk`: finds what others wait for, on what is at `path`.
    pub(super) fn on(pace: Pace, path: &Path, disk: impl FnOnce(Budget) -> io::Result<Disk>) -> Self {
        let rule = match pace {
            Pace::None => Rule::None,
            Pace::Rate(rate) => Rule::Rate(Rate { rate, began: Instant::now(), meter: Meter::default() }),
            Pace::Auto => match disk(Budget::of_unknown(LEAST)) {
                Ok(disk) => Rule::Others(disk),
                Err(e) => {
                    tracing::info!(
                        "{}: the latency of the disk cannot be measured ({e}); no pacing",
                        path.display()
                    );
                    Rule::None
                }
            },
        };
        Self { rule, may_go: false, written: 0 }
    }

    /// Before `bytes` are written: waits until it is their turn. `hurry`: they go at once, for a container
    /// stands still, and are not taken for others' work.
    pub(super) fn before(&mut self, bytes: u64, hurry: bool) {
        if self.may_go {
            return;
        }
        match &mut self.rule {
            Rule::None => {}
            Rule::Others(disk) if hurry => disk.expect(bytes + BESIDE),
            Rule::Rate(_) if hurry => {}
            Rule::Others(disk) => {
                self.may_go = true;
                disk.expect(BESIDE);
                disk.wait_for_turn(GROUP);
            }
            Rule::Rate(rate) => {
                self.may_go = true;
                rate.wait();
            }
        }
    }

    /// So much was written. `flush` waits until it is on the medium.
    pub(super) fn written(&mut self, bytes: u64, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.written += bytes;
        if self.written >= GROUP { self.sync(flush) } else { Ok(()) }
    }

    /// Nothing more is written of this group.
    pub(super) fn sync(&mut self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if std::mem::take(&mut self.written) > 0 && !matches!(self.rule, Rule::None) {
            flush()?;
        }
        if let (true, Rule::Others(disk)) = (std::mem::take(&mut self.may_go), &mut self.rule) {
            disk.done(GROUP);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds that so many MiB take. `flushes`: how often the medium is waited for.
    fn takes(pacing: &mut WritePacer, mib: u64, flushes: &mut u32) -> f64 {
        let begin = Instant::now();
        let mut flush = || {
            *flushes += 1;
            Ok(())
        };
        for _ in 0..mib {
            pacing.before(1 << 20, false);
            pacing.written(1 << 20, &mut flush).unwrap();
        }
        pacing.sync(&mut flush).unwrap();
        begin.elapsed().as_secs_f64()
    }

    #[test]
    fn a_rate_is_kept() {
        let mut flushes = 0;
        let no_disk = |_| panic!("a rate needs to see nobody");
        let mut pacing = WritePacer::on(Pace::Rate(40 << 20), Path::new("/x"), no_disk);
        // The first group goes at once, and the last one is not waited for: 16 MiB after it, of 20. A part of
        // a second of that is the credit.
        assert!(takes(&mut pacing, 20, &mut flushes) >= 0.4 - CREDIT as f64 / 1e9);
        assert_eq!(flushes, 20);
    }

    #[test]
    fn pacing_terminates_beside_other_load() {
        let (mut flushes, dir) = (0, tempfile::tempdir_in("/var/tmp").unwrap());
        let disk = |budget| Disk::of_directory(dir.path(), budget);
        let mut pacing = WritePacer::on(Pace::Auto, dir.path(), disk);
        if matches!(pacing.rule, Rule::None) {
            eprintln!("SKIPPED: no direct I/O in /var/tmp");
            return;
        }
        assert!(takes(&mut pacing, 64, &mut flushes) > 0.0);
        // A group that was not waited for, because somebody waits for it, ends as well; and so does one that is not whole.
        pacing.before(GROUP, true);
        pacing.written(GROUP, || Ok(())).unwrap();
        assert!(takes(&mut pacing, 6, &mut flushes) > 0.0);
        assert!(takes(&mut pacing, 8, &mut flushes) > 0.0);
        assert_eq!(flushes, 64 + 6 + 8);
    }

    #[test]
    fn writes_are_not_paced_where_other_load_is_unknown() {
        let mut flushes = 0;
        let unseen = |_| Err(io::ErrorKind::Unsupported.into());
        let mut pacing = WritePacer::on(Pace::Auto, Path::new("/x"), unseen);
        assert!(matches!(pacing.rule, Rule::None));
        takes(&mut pacing, 8, &mut flushes);
        assert_eq!(flushes, 0);
    }
}
