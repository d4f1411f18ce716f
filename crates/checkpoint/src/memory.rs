//! A first pass over a container's memory, while it runs: when it stands still, only what it has written since is read.
//!
//! The kernel marks pages that are written (soft-dirty), where it can. CRIU stops the processes for a moment, takes their pages without copying them, and
//! writes them when they go on. What it has written is the directory `parent` among its images: by that name it looks for it, when it
//! dumps and when it restores.

use super::pause::{PausableContainer, last_line};
use super::precopy::{Precopy, has_dirty_tracking};
use super::subject::Subject;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;
use vellum_container::criu::{self, Criu};
use vellum_pool::members::processes;
use vellum_service::Failure;

/// What the first pass has read, among CRIU's images.
pub(super) const AHEAD: &str = "parent";
/// CRIU's log, and what it says of how long that took: two magic numbers, a length, and a message.
const LOG: &str = "pre-dump.log";
const STATS: &str = "stats-dump";
const STATS_HEAD: usize = 12;
const STATS_MAX: u64 = 64 << 10;

/// Bytes of memory that CRIU reads of the processes in a group.
fn bytes(group: &Path) -> u64 {
    let of = |process: u32| fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    processes(group).into_iter().map(|process| bytes_of(&of(process))).sum()
}

fn bytes_of(status: &str) -> u64 {
    let one = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let kib =
            matches!(name, "RssAnon" | "RssShmem" | "VmSwap").then(|| rest.trim().strip_suffix(" kB"))?;
        kib?.parse::<u64>().ok()?.checked_mul(1024)
    };
    status.lines().filter_map(one).sum()
}

/// Refuses a container whose memory is not read ahead, if that is asked for.
pub(super) fn check_precopy(how: Precopy, subject: &dyn Subject) -> Result<(), Failure> {
    match subject.can_be_read_ahead() {
        Err(why) if how == Precopy::Always => Err(Failure::input(format!(
            "container {}: {why}, so its memory is read at once; leave out --memory-ahead always",
            subject.name()
        ))),
        _ => Ok(()),
    }
}

/// What it takes for a first pass.
pub(super) struct FirstPass<'a> {
    pub(super) how: Precopy,
    pub(super) criu: &'a Criu,
    pub(super) guarded: &'a PausableContainer,
    /// Where CRIU writes images, and where its log.
    pub(super) images: &'a Path,
    pub(super) work: &'a Path,
}

impl FirstPass<'_> {
    /// Whether it is to be made.
    pub(super) fn is_needed(&self) -> bool {
        let bytes = self.guarded.freezer().map_or(0, |freezer| bytes(freezer.group()));
        self.how.is_needed(bytes, has_dirty_tracking)
    }

    /// Makes it: how long the processes have stood still. None: it was not possible, and nothing is left of it.
    pub(super) fn make(&self) -> Result<Option<Duration>, Failure> {
        let images = self.images.join(AHEAD);
        let failed = |e: io::Error| Failure::at(&images, e);
        fs::create_dir(&images).map_err(failed)?;
        let log = self.work.join(LOG);
        let why = match self.pass(&images)? {
            None => return Ok(Some(read_pause(&self.work.join(STATS)).unwrap_or_default())),
            Some(stderr) => criu::explain(&log).unwrap_or_else(|| last_line(&stderr)),
        };
        if self.how == Precopy::Always {
            let why = Failure::system(format!("its memory cannot be read while it runs: {why}"));
            return Err(why.remedy(format!("{} says more", log.display())));
        }
        tracing::warn!("all memory is read in the pause: {why}");
        fs::remove_dir_all(&images).map_err(failed)?;
        Ok(None)
    }

    /// Has CRIU write into a directory. None: all is well; otherwise what it has said.
    fn pass(&self, images: &Path) -> Result<Option<Vec<u8>>, Failure> {
        let Some(freezer) = self.guarded.freezer() else {
            return Err(Failure::system("the runtime does not say which processes are the container's"));
        };
        let program = self.criu.program();
        let failed = |e: io::Error| Failure::at(program, e);
        // Not by the runtime: it would have CRIU stop the group, and look every tenth of a second whether that has happened.
        let mut command = self.guarded.call_of(program).map_err(failed)?;
        command.args(["pre-dump", "--no-default-config", "--track-mem", "--tree"]);
        command.arg(freezer.init().to_string()).arg("--images-dir").arg(images);
        command.arg("--work-dir").arg(self.work).args(["--log-file", LOG]).env_remove(criu::CONFIGURATION);
        let output = command.output().map_err(failed)?;
        Ok((!output.status.success()).then_some(output.stderr))
    }
}

/// How long processes have stood still, as CRIU says in a file.
fn read_pause(file: &Path) -> Option<Duration> {
    let mut bytes = Vec::new();
    File::open(file).ok()?.take(STATS_MAX).read_to_end(&mut bytes).ok()?;
    parse_pause(&bytes)
}

fn parse_pause(stats: &[u8]) -> Option<Duration> {
    let dump = fields(fields(stats.get(STATS_HEAD..)?)?.bytes(1)?)?;
    // Until all of them stood still, and until they went on.
    Some(Duration::from_micros(dump.number(1)?.checked_add(dump.number(2)?)?))
}

/// The fields of a message: by their number, a number or bytes.
struct Fields<'a>(Vec<(u64, Field<'a>)>);

#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn number(&self, field: u64) -> Option<u64> {
        self.0.iter().find_map(|one| match one {
            (number, Field::Number(value)) if *number == field => Some(*value),
            _ => None,
        })
    }

    fn bytes(&self, field: u64) -> Option<&'a [u8]> {
        self.0.iter().find_map(|one| match one {
            (number, Field::Bytes(value)) if *number == field => Some(*value),
            _ => None,
        })
    }
}

fn fields(mut from: &[u8]) -> Option<Fields<'_>> {
    let mut fields = Vec::new();
    while !from.is_empty() {
        let key = varint(&mut from)?;
        let value = varint(&mut from)?;
        let field = match key & 7 {
            0 => Field::Number(value),
            2 => {
                let (some, rest) = from.split_at_checked(usize::try_from(value).ok()?)?;
                from = rest;
                Field::Bytes(some)
            }
            _ => return None,
        };
        fields.push((key >> 3, field));
    }
    Some(Fields(fields))
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_criu_reads_is_counted() {
        let status = "Name:\tx\nVmRSS:\t 9000 kB\nRssAnon:\t    2000 kB\nRssFile:\t 6000 kB\nRssShmem:\t 30 kB\nVmSwap:\t 4 kB\n";
        assert_eq!(bytes_of(status), 2034 * 1024);
        assert_eq!(bytes_of("RssAnon:\t-1 kB\nRssShmem: 18446744073709551615 kB\nVmSwap:\n"), 0);
        let held = std::hint::black_box(vec![1_u8; 8 << 20]);
        assert!(bytes_of(&fs::read_to_string("/proc/self/status").unwrap()) > held.len() as u64);
    }

    /// Two magic numbers, a length, and in a message another one: 1469, 867, and more.
    #[test]
    fn the_pause_is_read_from_criu_statistics() {
        let dump = [0x08, 0xbd, 0x0b, 0x10, 0xe3, 0x06, 0x18, 0x05, 0x20, 0x80, 0x01];
        let head = [&[0x40; 8][..], &[13, 0, 0, 0]].concat();
        let whole = [&head[..], &[0x0a, 11], &dump].concat();
        assert_eq!(parse_pause(&whole), Some(Duration::from_micros(1469 + 867)));
        for end in 0..whole.len() {
            let _ = parse_pause(&whole[..end]);
        }
        for bad in [&[0x0a][..], &[0x0a, 12, 0x08], &[0x0b, 1], &[0x80; 12], &[0x12, 0], &[]] {
            assert_eq!(parse_pause(&[&head[..], bad].concat()), None, "{bad:?}");
        }
    }
}
