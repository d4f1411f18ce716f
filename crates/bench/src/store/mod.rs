//! The zoned store beside what a disk and its filesystem can do: images in order, random overwrites, and how often a block is written in
//! the end.
//!
//! Images are compared with direct reads and writes of a file of the same filesystem, overwrites with a file there. Everybody's file has
//! been written in full before, and rounds are in turn, each beginning with another one.

mod amplification;
mod counting;
mod images;
mod overwrites;
mod report;

pub use amplification::{Amplification, Moment, Pattern};
pub use report::{Report, Row};

use crate::compare::style;
use crate::failure::{Failure, Result, While};
use crate::machine::Machine;
use crate::statistics::least;
use images::Images;
use indicatif::ProgressBar;
use overwrites::Overwrites;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_zoned::device::emulated::{Pace, Random};
use vellum_zoned::device::{Access, AlignedBuf, Conventional, find};
use vellum_zoned::store::{Placement, Store};

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Bytes of an image.
const IMAGE: u64 = 1 << 30;
/// Bytes of what is overwritten.
const OVERWRITTEN: u64 = 256 << 20;
/// Overwrites that are each made durable.
const SYNCED: u64 = 500;
/// Overwrites that are made durable together.
const UNSYNCED: u64 = 30_000;
/// Bytes of a zone of the store's file.
const ZONE: u64 = 16 << 20;
/// Written at once when a file is made.
const PIECE: usize = 1 << 20;

/// What to try.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where files are made.
    pub directory: PathBuf,
    /// How often.
    pub rounds: usize,
    /// A factor for sizes and counts.
    pub scale: f64,
}

/// Something that is done by the store, and by somebody else.
trait Contest {
    /// As tables call it.
    fn name(&self) -> &'static str;
    /// Whom the store is compared with.
    fn peer(&self) -> &'static str;
    /// The store must have at least this part of the other one's rate.
    fn bar(&self) -> f64;
    /// Bytes that one time is for.
    fn bytes(&self) -> u64;
    /// Seconds of the other one.
    fn peer_seconds(&mut self) -> Result<f64>;
    /// Seconds of the store.
    fn store_seconds(&mut self) -> Result<f64>;
}

/// Tries everything.
pub fn store(plan: &Plan) -> Result<Report> {
    let machine = Machine::here(&plan.directory);
    let scaled = |count: u64| ((count as f64 * plan.scale) as u64).max(1);
    let image = scaled(IMAGE).next_multiple_of(PIECE as u64);
    let overwritten = scaled(OVERWRITTEN).next_multiple_of(PIECE as u64);
    // An image at a time, and what is overwritten half full.
    let length = (2 * image + 4 * overwritten).next_multiple_of(ZONE).max(64 * ZONE);
    let bed = Bed::new(&plan.directory, length)?;
    let mut contests: Vec<Box<dyn Contest>> = vec![
        Box::new(Images::write(&bed, image)?),
        Box::new(Images::read(&bed, image)?),
        Box::new(Overwrites::new(&bed, overwritten, scaled(SYNCED), true)?),
        Box::new(Overwrites::new(&bed, overwritten, scaled(UNSYNCED), false)?),
    ];
    let progress = ProgressBar::new((contests.len() * plan.rounds + Pattern::ALL.len()) as u64);
    progress.set_style(style());
    let mut rows = Vec::new();
    for contest in &mut contests {
        progress.set_message(contest.name());
        rows.push(rounds(&mut **contest, plan.rounds, &progress)?);
    }
    let mut amplification = Vec::new();
    for pattern in Pattern::ALL {
        progress.set_message(pattern.name());
        crate::stop::check()?;
        amplification.push(amplification::measure(pattern, plan.scale)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let load_after = crate::machine::load();
    Ok(Report { machine, load_after, image_bytes: image, rows, amplification })
}

fn rounds(contest: &mut dyn Contest, rounds: usize, progress: &ProgressBar) -> Result<Row> {
    let (mut peer, mut own) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        crate::stop::check()?;
        if round % 2 == 0 {
            peer.push(contest.peer_seconds()?);
            own.push(contest.store_seconds()?);
        } else {
            own.push(contest.store_seconds()?);
            peer.push(contest.peer_seconds()?);
        }
        progress.inc(1);
    }
    let ratio = least(&peer) / least(&own);
    Ok(Row {
        name: contest.name(),
        peer: contest.peer(),
        bytes: contest.bytes(),
        bar: contest.bar(),
        ratio,
        peer_seconds: peer,
        store_seconds: own,
    })
}

/// The store's file, and where others' files are.
struct Bed {
    directory: PathBuf,
    /// Of the store's file.
    path: PathBuf,
    store: Store,
}

impl Bed {
    fn new(directory: &Path, length: u64) -> Result<Self> {
        let path = directory.join("store");
        let what = || format!("making a store in {}", path.display());
        // Blocks that a filesystem has yet to find are no business of the store's.
        let file = File::options().read(true).write(true).create_new(true).open(&path).doing(what)?;
        fill(&file, length + (1 << 20))?;
        Conventional::create(file, BLOCK as u32, (length / ZONE) as u32, ZONE / BLOCK).doing(what)?;
        let found = find(&path, Access::Write, Pace::None).doing(what)?;
        let store = Store::format(Arc::clone(&found.device), Placement::NONE).doing(what)?;
        Ok(Self { directory: directory.to_owned(), path, store })
    }

    /// A file of `length` bytes, all of them written, for direct I/O or not. It has no name.
    fn file(&self, length: u64, is_direct: bool) -> Result<File> {
        let mut flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        if is_direct {
            flags |= OFlags::DIRECT;
        }
        let file = open(&self.directory, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.doing(|| format!("making a file in {}", self.directory.display()))?);
        fill(&file, length)?;
        Ok(file)
    }
}

/// Bytes that no disk makes fewer of.
fn noise(length: usize) -> AlignedBuf {
    let mut piece = AlignedBuf::zeroed(length);
    let mut random = Random::new(1);
    for word in piece.as_mut_slice().chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
    piece
}

fn fill(file: &File, length: u64) -> Result<()> {
    let piece = noise(PIECE);
    for at in (0..length).step_by(PIECE) {
        crate::stop::check()?;
        let some = (length - at).min(PIECE as u64) as usize;
        file.write_all_at(&piece.as_slice()[..some], at).doing(|| "filling a file")?;
    }
    file.sync_all().doing(|| "filling a file")
}

/// The error of a store.
fn of_store<T>(result: vellum_zoned::store::Result<T>) -> Result<T> {
    result.map_err(|error| Failure::new(format!("the store: {error}")))
}
