//! What the four groups do, each in a process of its own.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::workload::disk;
use crate::workload::personality::{self, Personality};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Read and written at once.
const PIECE: usize = 1 << 20;
/// Threads are a quarter of those that are published, since each has a MiB of its own.
const THREADS: usize = 4;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Filebench's file server.
    Fileserver,
    /// Its web server.
    Webserver,
    /// Its mail server.
    Varmail,
    /// The readers of its video server.
    Videoserver,
    /// Two units are written, and one of them is read, again and again.
    InOrder,
}

/// What a process has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessResult {
    pub operations: u64,
    /// Bytes that it has read.
    pub read: u64,
    /// Bytes that the disk has read for it.
    pub fetched: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Load {
    /// As tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Webserver => "webserver",
            Self::Varmail => "varmail",
            Self::Videoserver => "videoserver",
            Self::InOrder => "in-order",
        }
    }

    /// With files of so many bytes, which is not what is published.
    fn personality(self, bytes: u64) -> Option<Personality> {
        let published = |count: usize| count;
        let (mut personality, size) = match self {
            Self::Fileserver => (personality::fileserver(&published), 128 << 10),
            Self::Webserver => (personality::webserver(&published), 16 << 10),
            Self::Varmail => (personality::varmail(&published), 16 << 10),
            Self::Videoserver => (personality::videoserver(&published), 16 << 20),
            Self::InOrder => return None,
        };
        let threads = |published: usize| (published / THREADS).max(1);
        for role in &mut personality.roles {
            (role.threads, role.loops) = (threads(role.threads), usize::MAX);
        }
        // A thread with files of its own needs some of each kind.
        let own = personality.roles.iter().filter(|role| role.own_files).map(|role| role.threads).max();
        personality.files.count = ((bytes / size) as usize).max(20 * own.unwrap_or(0)).max(2);
        Some(personality)
    }

    /// Makes its files.
    pub fn prepare(self, directory: &Path, bytes: u64) -> Result<()> {
        match self.personality(bytes) {
            Some(personality) => disk::prepare(&personality, directory),
            None => Ok(()),
        }
    }

    fn run(self, directory: &Path, bytes: u64, time: Duration) -> Result<u64> {
        let end = Instant::now() + time;
        match self.personality(bytes) {
            Some(personality) => disk::run_until(&personality, directory, end),
            None => in_order(directory, bytes / 2, end),
        }
    }
}

/// Writes two units of so many bytes, and reads the first of them, again and again. How many pieces were written and read.
fn in_order(directory: &Path, unit: u64, end: Instant) -> Result<u64> {
    let mut piece = vec![0x5a; PIECE];
    let path = directory.join("file");
    let pieces = (unit / PIECE as u64).max(1);
    let mut done = 0;
    loop {
        let mut file = File::create(&path).doing(|| "making a file")?;
        let mut reader = File::open(&path).doing(|| "opening a file")?;
        for number in 0..3 * pieces {
            interrupt::check()?;
            if Instant::now() >= end {
                return Ok(done);
            }
            if number < 2 * pieces {
                file.write_all(&piece).doing(|| "writing")?;
            } else {
                reader.read_exact(&mut piece).doing(|| "reading")?;
            }
            done += 1;
        }
    }
}

/// Runs, and says what came of it. The caller has put this process into its group by then.
pub(crate) fn measure(load: Load, directory: &Path, bytes: u64, seconds: f64) -> Result<ProcessResult> {
    let time = Duration::try_from_secs_f64(seconds).doing(|| "the time")?;
    let (before, begin) = (counters()?, Instant::now());
    let operations = load.run(directory, bytes, time)?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), counters()?);
    let [read, fetched] = [0, 1].map(|which| after[which].saturating_sub(before[which]));
    Ok(ProcessResult { operations, read, fetched, seconds })
}

/// Bytes read by this process, and those that a disk has read for it.
fn counters() -> Result<[u64; 2]> {
    let text = fs::read_to_string("/proc/self/io").doing(|| "reading what was read")?;
    let of = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| Failure::new("/proc/self/io says nothing of reads"))
    };
    Ok([of("rchar")?, of("read_bytes")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_files_have_the_requested_size() {
        for (load, size) in [(Load::Videoserver, 16 << 20), (Load::Webserver, 16 << 10)] {
            let files = load.personality(256 << 20).unwrap().files;
            assert_eq!(files.count as u64 * size, 256 << 20, "{load:?}");
        }
    }

    #[test]
    fn loads_run_until_their_time_ends() {
        for load in [Load::Fileserver, Load::Webserver, Load::Varmail, Load::Videoserver, Load::InOrder] {
            let directory = tempfile::tempdir().unwrap();
            let bytes = 8 << 20;
            load.prepare(directory.path(), bytes).unwrap();
            let operations = load.run(directory.path(), bytes, Duration::from_millis(50)).unwrap();
            assert!(operations > 0, "{load:?}");
        }
    }
}
