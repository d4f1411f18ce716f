//! What a disk has done, as the kernel counts it, and whether that was ours.

use crate::pace::{Nanos, SECOND};
use rustix::fs::{FileType, major, minor, stat};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;
/// Others have moved more than this many bytes in such a time: they are at work. Less is what a filesystem writes for itself.
const IDLE: u64 = 64 << 10;
const TIME: Nanos = SECOND / 10;

/// The counters of one disk.
#[derive(Debug)]
pub(super) struct Counters {
    file: File,
    others: OtherLoad,
}

/// What is sure of others.
#[derive(Debug, Default)]
struct OtherLoad {
    /// Most bytes so far.
    bytes: Option<u64>,
    /// And when a time began: how many there were.
    began: (Nanos, u64),
}

/// The whole disk that `path` lies on, or is; None of filesystems that lie on no single one.
fn disk_of(path: &Path) -> Option<PathBuf> {
    let found = stat(path).ok()?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
    let device = if is_device { found.st_rdev } else { found.st_dev };
    let sys = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(device), minor(device))).ok()?;
    if sys.join("partition").exists() { Some(sys.parent()?.to_owned()) } else { Some(sys) }
}

impl Counters {
    /// Of the disk that `path` lies on.
    pub(super) fn of_path(path: &Path) -> Option<Self> {
        let file = File::open(disk_of(path)?.join("stat")).ok()?;
        Some(Self { file, others: OtherLoad::default() })
    }

    /// Whether others are at work. `submitted`: bytes that we have asked the disk for so far.
    pub(super) fn others_work(&mut self, now: Nanos, submitted: u64) -> bool {
        // Where nothing can be read, they may be.
        self.bytes().is_none_or(|bytes| self.others.work(now, bytes, submitted))
    }

    /// Bytes read and written since the machine was started.
    fn bytes(&self) -> Option<u64> {
        let mut text = [0; 512];
        let len = self.file.read_at(&mut text, 0).ok()?;
        bytes_of(std::str::from_utf8(text.get(..len)?).ok()?)
    }
}

impl OtherLoad {
    /// Takes what the disk has done. What we have asked for is taken for done, so that nothing of ours is taken for others'.
    fn work(&mut self, now: Nanos, bytes: u64, submitted: u64) -> bool {
        let sure = bytes.saturating_sub(submitted);
        let most = self.bytes.map_or(sure, |before| before.max(sure));
        if self.bytes.replace(most).is_none() || self.began.0 + TIME <= now {
            self.began = (now, most);
        }
        let work = most - self.began.1 > IDLE;
        if work {
            self.began = (now, most);
        }
        work
    }
}

/// Of a line of `/sys/block/DISK/stat` (Documentation/block/stat.rst): the third field is sectors read, the seventh sectors written.
fn bytes_of(line: &str) -> Option<u64> {
    let field = |at: usize| line.split_ascii_whitespace().nth(at)?.parse::<u64>().ok();
    field(2)?.checked_add(field(6)?)?.checked_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_writes_are_not_counted_as_other_load() {
        const MIB: u64 = 1 << 20;
        let mut others = OtherLoad::default();
        assert!(!others.work(0, 7 * MIB, 0));
        // Of ours 2 MiB are under way, then 1, then none; others do nothing.
        for (at, done) in [(1, 0), (2, 1), (3, 2)] {
            assert!(!others.work(at, (7 + done) * MIB, 2 * MIB), "{at}");
        }
        // Others do 4 KiB in each ms, which shows when it is more than a filesystem does for itself.
        let mut seen = 0;
        for at in 1..=100 {
            seen += u32::from(others.work(at * 1_000_000, 9 * MIB + at * 4096, 2 * MIB));
        }
        assert_eq!(seen, 5);
        // A little is nobody.
        for at in 200..1200 {
            let bytes = 9 * MIB + 100 * 4096 + (at - 200) * 100;
            assert!(!others.work(at * 1_000_000, bytes, 2 * MIB), "{at}");
        }
    }

    #[test]
    fn sectors_are_counted() {
        assert_eq!(
            bytes_of(" 61502 7416 3572194 22350 145590 73042 13514712 69947 0 14504"),
            Some(8_748_495_872)
        );
        assert_eq!(bytes_of("1 2 x"), None);
        assert_eq!(bytes_of(""), None);
    }
}
