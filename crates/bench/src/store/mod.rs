//! The zoned store beside what a disk and its filesystem can do: images in order, random overwrites, and how often a block is written in
//! the end.
//!
//! Images are compared with direct reads and writes of a file of the same filesystem, overwrites with a file there. Everybody's file has
//! been written in full before, and rounds are in turn, each beginning with another one.

mod amplification;
mod fixture;
mod images;
mod overwrites;
mod report;

pub use amplification::{Amplification, Moment, Pattern};
pub use report::{Report, Row};

use crate::compare::style;
use crate::failure::Result;
use crate::machine::Machine;
use crate::statistics::least;
use fixture::{Contest, Fixture, PIECE, ZONE};
use images::Images;
use indicatif::ProgressBar;
use overwrites::Overwrites;
use std::path::PathBuf;

/// Bytes of an image.
const IMAGE: u64 = 1 << 30;
/// Bytes of what is overwritten.
const OVERWRITTEN: u64 = 256 << 20;
/// Overwrites that are each made durable.
const SYNCED: u64 = 500;
/// Overwrites that are made durable together.
const UNSYNCED: u64 = 30_000;

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

/// Tries everything.
pub fn store(plan: &Plan) -> Result<Report> {
    let machine = Machine::detect(&plan.directory);
    let scaled = |count: u64| ((count as f64 * plan.scale) as u64).max(1);
    let image = scaled(IMAGE).next_multiple_of(PIECE as u64);
    let overwritten = scaled(OVERWRITTEN).next_multiple_of(PIECE as u64);
    // An image at a time, and what is overwritten half full.
    let length = (2 * image + 4 * overwritten).next_multiple_of(ZONE).max(64 * ZONE);
    let bed = Fixture::new(&plan.directory, length)?;
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
        crate::interrupt::check()?;
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
        crate::interrupt::check()?;
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
