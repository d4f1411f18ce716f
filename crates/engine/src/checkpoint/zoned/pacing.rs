//! How fast the object is written: so that others on the device wait no longer than they would anyway.
//!
//! What is written goes to the medium in groups, each of which waits for its turn and for the medium. A file's page cache would otherwise take all of
//! it at once, and write it back as fast as the disk goes.

use crate::checkpoint::pace::Pace;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use vellum_zoned::device::ZonedDevice;
use vellum_zoned::pace::Budget;
use vellum_zoned::paced::Disk;
use vellum_zoned::store::Error;

/// Bytes of a group.
const GROUP: u64 = 4 << 20;
/// Bytes that a filesystem writes for itself with a group: its journal, and where zones are written to.
const BESIDE: u64 = 64 << 10;
/// Bytes per second, at the least, however long others wait: a checkpoint has to end.
const LEAST: u64 = 64 << 20;

/// How fast.
#[derive(Debug)]
pub(super) enum Pacing {
    /// As the device takes it.
    None,
    /// As others allow.
    Others(Groups, Disk),
    /// At most so many bytes per second; the next group goes then.
    Rate(Groups, u64, Instant),
}

/// The group that is being written.
#[derive(Debug)]
pub(super) struct Groups {
    device: Arc<dyn ZonedDevice>,
    /// It has had its turn.
    may_go: bool,
    written: u64,
}

impl Groups {
    /// Takes what was written; how much the group was, if it is on the medium now.
    fn add(&mut self, bytes: u64) -> Result<Option<u64>, Error> {
        self.written += bytes;
        if self.written >= GROUP { self.flush().map(Some) } else { Ok(None) }
    }

    fn flush(&mut self) -> Result<u64, Error> {
        if self.written > 0 {
            self.device.flush()?;
        }
        self.may_go = false;
        Ok(std::mem::take(&mut self.written))
    }
}

impl Pacing {
    /// As is asked for, on the device that `path` names.
    pub(super) fn new(pace: Pace, path: &Path, device: &Arc<dyn ZonedDevice>) -> Self {
        let groups = Groups { device: Arc::clone(device), may_go: false, written: 0 };
        match pace {
            Pace::None => Self::None,
            Pace::Rate(rate) => Self::Rate(groups, rate, Instant::now()),
            Pace::Auto => {
                let (is_file, budget) = (path.is_file(), Budget::of_unknown(LEAST));
                let above = path.parent().filter(|above| !above.as_os_str().is_empty());
                let above = above.unwrap_or(Path::new("."));
                let disk = if is_file { Disk::of(above, budget) } else { Disk::of_device(path, budget) };
                match disk {
                    Ok(disk) => Self::Others(groups, disk),
                    Err(e) => {
                        tracing::info!(
                            "{}: what others wait for cannot be seen ({e}); nothing is held back",
                            path.display()
                        );
                        Self::None
                    }
                }
            }
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
            Self::Rate(groups, rate, next) if !groups.may_go => {
                groups.may_go = true;
                let now = Instant::now();
                thread::sleep(next.saturating_duration_since(now));
                *next = now.max(*next) + Duration::from_secs_f64(GROUP as f64 / *rate as f64);
            }
            _ => {}
        }
    }

    /// So much was written.
    pub(super) fn written(&mut self, bytes: u64) -> Result<(), Error> {
        match self {
            Self::None => Ok(()),
            Self::Rate(groups, ..) => groups.add(bytes).map(drop),
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
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        match self {
            Self::None => Ok(()),
            Self::Others(groups, _) | Self::Rate(groups, ..) => groups.flush().map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_zoned::device::Conventional;

    fn device(file: std::fs::File) -> Arc<dyn ZonedDevice> {
        Arc::new(Conventional::create(file, 4096, 64, 256).unwrap())
    }

    /// Seconds that so many MiB take.
    fn takes(pacing: &mut Pacing, mib: u64) -> f64 {
        let begin = Instant::now();
        for _ in 0..mib {
            pacing.wait_for_turn();
            pacing.written(1 << 20).unwrap();
        }
        pacing.settle().unwrap();
        begin.elapsed().as_secs_f64()
    }

    #[test]
    fn a_rate_is_kept() {
        let device = device(tempfile::tempfile().unwrap());
        let mut pacing = Pacing::new(Pace::Rate(40 << 20), Path::new("/x"), &device);
        // The first group goes at once, and the last one is not waited for: 16 MiB after it, of 20.
        assert!(takes(&mut pacing, 20) >= 0.4);
    }

    #[test]
    fn beside_others_it_ends() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        let device = device(file.reopen().unwrap());
        let mut pacing = Pacing::new(Pace::Auto, file.path(), &device);
        assert!(takes(&mut pacing, 64) > 0.0);
        // A group that was not waited for, because somebody waits for it, ends as well.
        pacing.written(GROUP).unwrap();
        assert!(takes(&mut pacing, 8) > 0.0);
    }

    #[test]
    fn paces_are_read() {
        for (text, pace) in [("auto", Pace::Auto), ("none", Pace::None), ("200M", Pace::Rate(200 << 20))] {
            assert_eq!(text.parse(), Ok(pace));
        }
        for bad in ["", "fast", "0", "1000", "-1M"] {
            assert!(bad.parse::<Pace>().unwrap_err().contains("200M"), "{bad}");
        }
    }
}
