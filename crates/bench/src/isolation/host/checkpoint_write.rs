//! An image that is written to a file, in several manners.

use super::loop_ext4::LoopExt4;
use super::{Limits, WriteMode};
use crate::failure::{Failure, Result, While};
use fastrand::Rng;
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::gettid;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use vellum_zoned::device::AlignedBuf;
use vellum_zoned::pace::Budget;
use vellum_zoned::paced_file::{Disk, PacedFile};

/// The file's name.
const NAME: &str = "image";
/// Handed over at once.
const PIECE: usize = 1 << 20;

/// Writes an image of so many bytes in a directory, until it is durable. In a thread of its own, whose priority and control group change.
pub(super) fn write(directory: &Path, bytes: u64, manner: WriteMode, limits: &Limits) -> Result<()> {
    let elsewhere = limits.elsewhere.as_ref().filter(|_| manner == WriteMode::Elsewhere);
    let path = elsewhere.map_or(directory, LoopExt4::directory).join(NAME);
    let what = || format!("writing {}", path.display());
    let piece = piece();
    let pieces = bytes / PIECE as u64;
    match manner {
        WriteMode::Unpaced | WriteMode::Idle | WriteMode::Elsewhere => {
            if manner == WriteMode::Idle {
                be_idle()?;
            }
            let mut file = File::create(&path).doing(what)?;
            (0..pieces).try_for_each(|_| file.write_all(piece.as_slice())).doing(what)?;
            file.sync_all().doing(what)
        }
        WriteMode::Limited => {
            if let Some(group) = &limits.group {
                group.enter()?;
            }
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            let file = File::from(open(&path, flags, Mode::RUSR | Mode::WUSR).doing(what)?);
            let written =
                (0..pieces).try_for_each(|at| file.write_all_at(piece.as_slice(), at * PIECE as u64));
            written.and_then(|()| file.sync_all()).doing(what)
        }
        WriteMode::Paced => {
            let disk = Disk::of_directory(directory, Budget::of_disk(limits.rate)).doing(what)?;
            let mut file = PacedFile::create(directory, NAME.as_ref(), &disk).doing(what)?;
            (0..pieces).try_for_each(|_| file.write(piece.as_slice())).doing(what)?;
            file.finish().doing(what)
        }
    }
}

/// The image is taken away.
pub(super) fn remove(directory: &Path) {
    let _ = std::fs::remove_file(directory.join(NAME));
}

/// Bytes that no disk makes fewer of.
fn piece() -> AlignedBuf {
    let mut piece = AlignedBuf::zeroed(PIECE);
    let mut random = Rng::with_seed(1);
    for word in piece.as_mut_slice().chunks_exact_mut(8) {
        word.copy_from_slice(&random.u64(..).to_le_bytes());
    }
    piece
}

/// This thread's I/O is of the idle class from now on.
fn be_idle() -> Result<()> {
    let thread = gettid().as_raw_nonzero().to_string();
    let mut ionice = Command::new("ionice");
    let done =
        ionice.args(["-c3", "-p", &thread]).stdin(Stdio::null()).status().doing(|| "running ionice")?;
    if done.success() { Ok(()) } else { Err(Failure::new(format!("ionice: {done}"))) }
}
