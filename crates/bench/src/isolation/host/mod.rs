//! The experiment of checkpoint isolation on a disk of this machine: others' direct reads and writes, beside an image that is written to the same filesystem.
//!
//! Each figure is a multiple of the same load without an image, measured just before. The machine's other work disturbs both: rounds are
//! repeated, and medians are shown.

mod checkpoint_write;
mod limit;
mod load;
mod loop_ext4;

use crate::failure::{Failure, Result, While};
use crate::machine::Machine;
use limit::Limit;
use load::{Call, Load};
use loop_ext4::LoopExt4;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
/// How long others are measured without an image.
const LOOK: Duration = Duration::from_secs(3);
/// A load runs for so long before it is looked at.
const SETTLES: Duration = Duration::from_millis(500);
/// Part of an image's usual rate that a control group may have.
const LIMITED_TO: f64 = 0.8;

/// What somebody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OtherLoad {
    /// Whether he writes.
    pub is_write: bool,
    /// Anywhere, or from the start to the end.
    pub is_random: bool,
    /// Bytes of a call.
    pub bytes: u64,
    /// Bytes per second.
    pub rate: u64,
}

/// The loads that are tried: points of the source's experiment that an ordinary disk can bear.
pub const LOADS: [OtherLoad; 4] = [
    OtherLoad { is_write: false, is_random: true, bytes: 4 * KIB, rate: 5_000_000 },
    OtherLoad { is_write: true, is_random: true, bytes: 4 * KIB, rate: 5_000_000 },
    OtherLoad { is_write: false, is_random: false, bytes: 64 * KIB, rate: 50_000_000 },
    OtherLoad { is_write: true, is_random: false, bytes: 64 * KIB, rate: 50_000_000 },
];

/// How an image is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Through the page cache and made durable, as CRIU's images are.
    Unpaced,
    /// As unpaced, with `ionice -c3`.
    Idle,
    /// Past the page cache, in a control group that may write at four fifths of what an image takes alone.
    Limited,
    /// As unpaced, into another ext4 on the same disk.
    Elsewhere,
    Paced,
}

impl WriteMode {
    pub const ALL: [Self; 5] = [Self::Unpaced, Self::Idle, Self::Limited, Self::Elsewhere, Self::Paced];

    /// As tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unpaced => "unpaced",
            Self::Idle => "ionice -c3",
            Self::Limited => "limited",
            Self::Elsewhere => "other ext4",
            Self::Paced => "paced",
        }
    }
}

/// What to try.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where files are made.
    pub directory: PathBuf,
    /// Bytes of an image.
    pub image: u64,
    /// How often.
    pub rounds: usize,
}

/// One load beside one manner.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub others: OtherLoad,
    /// How the image is written.
    pub manner: WriteMode,
    /// Without an image: mean and 99th percentile of others' calls, in microseconds.
    pub mean_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The mean beside the image, as a multiple.
    pub mean_ratio: f64,
    /// The 99th percentile, likewise.
    pub p99_ratio: f64,
    /// Bytes per second, likewise.
    pub bandwidth_ratio: f64,
    /// Seconds that the image took.
    pub image_seconds: f64,
    /// As a multiple of what one takes alone, unpaced.
    pub image_ratio: f64,
}

/// What manners with a limit go by.
#[derive(Default)]
struct Limits {
    /// Bytes per second of an image alone, unpaced.
    rate: u64,
    group: Option<Limit>,
    elsewhere: Option<LoopExt4>,
}

impl Limits {
    /// Makes what a manner needs.
    fn prepare(&mut self, plan: &Plan, manner: WriteMode) -> Result<()> {
        match manner {
            WriteMode::Limited => {
                let rate = (self.rate as f64 * LIMITED_TO) as u64;
                self.group = Some(Limit::new(&plan.directory, rate)?);
            }
            WriteMode::Elsewhere => self.elsewhere = Some(LoopExt4::new(&plan.directory, plan.image)?),
            _ => {}
        }
        Ok(())
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// The disk's scheduler, the one in use in brackets; empty where it is not known. Not all of them know an idle class.
    pub scheduler: String,
    pub image_bytes: u64,
    /// Seconds that an image takes alone, by manner.
    pub alone: Vec<(WriteMode, f64)>,
    /// Why a manner was not tried.
    pub missing: Vec<(WriteMode, String)>,
    /// Medians of all rounds.
    pub rows: Vec<Row>,
}

/// Tries everything; hands each row to `each` as soon as it is there.
pub fn host(plan: &Plan, mut each: impl FnMut(&str)) -> Result<Report> {
    let load = Load::new(&plan.directory)?;
    let result = measure(plan, &load, &mut each);
    checkpoint_write::remove(&plan.directory);
    result
}

fn measure(plan: &Plan, load: &Load, each: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut report = Report {
        machine: Machine::here(&plan.directory),
        scheduler: scheduler(&plan.directory),
        image_bytes: plan.image,
        alone: Vec::new(),
        missing: Vec::new(),
        rows: Vec::new(),
    };
    let mut limits = Limits::default();
    let mut unpaced = 0.0;
    for manner in WriteMode::ALL {
        if let Err(failure) = limits.prepare(plan, manner) {
            report.missing.push((manner, failure.to_string()));
            continue;
        }
        let mut times = Vec::new();
        for _ in 0..plan.rounds {
            crate::interrupt::check()?;
            times.push(timed(plan, manner, &limits)?.as_secs_f64());
        }
        let seconds = median(times);
        if manner == WriteMode::Unpaced {
            unpaced = seconds;
            limits.rate = (plan.image as f64 / seconds) as u64;
        }
        each(&format!("an image alone, {}: {seconds:.2} s ({:.2})", manner.name(), seconds / unpaced));
        report.alone.push((manner, seconds));
    }
    each(&heading());
    for others in LOADS {
        for (manner, _) in report.alone.clone() {
            let mut rounds = Vec::new();
            for _ in 0..plan.rounds {
                crate::interrupt::check()?;
                rounds.push(beside(plan, load, others, manner, &limits, unpaced)?);
            }
            let row = middle(&rounds).ok_or_else(|| Failure::new("no rounds"))?;
            each(&row.line());
            report.rows.push(row);
        }
    }
    Ok(report)
}

/// The scheduler of the disk under a directory, as `/sys` says it.
fn scheduler(directory: &Path) -> String {
    let Ok(found) = rustix::fs::stat(directory) else { return String::new() };
    let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
    let disk = format!("/sys/dev/block/{major}:{minor}");
    // A partition has none of its own.
    let read = |place: &str| std::fs::read_to_string(format!("{disk}/{place}queue/scheduler"));
    read("").or_else(|_| read("../")).unwrap_or_default().trim().to_owned()
}

/// How long an image takes. Nothing of an earlier one is left to be written.
fn timed(plan: &Plan, manner: WriteMode, limits: &Limits) -> Result<Duration> {
    checkpoint_write::remove(&plan.directory);
    let directory = std::fs::File::open(&plan.directory).doing(|| "opening the directory")?;
    rustix::fs::syncfs(directory).doing(|| "waiting for the disk")?;
    std::thread::sleep(SETTLES);
    let begins = Instant::now();
    in_thread(&plan.directory, plan.image, manner, limits)?;
    Ok(begins.elapsed())
}

fn in_thread(directory: &Path, bytes: u64, manner: WriteMode, limits: &Limits) -> Result<()> {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| checkpoint_write::write(directory, bytes, manner, limits));
        writer.join().unwrap_or_else(|_| Err(Failure::new("the thread that writes an image has panicked")))
    })
}

/// One round: others alone, then beside an image.
fn beside(
    plan: &Plan,
    load: &Load,
    others: OtherLoad,
    manner: WriteMode,
    limits: &Limits,
    unpaced: f64,
) -> Result<Row> {
    checkpoint_write::remove(&plan.directory);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| load.run(others, &stop));
        let looked = || -> Result<[Instant; 4]> {
            std::thread::sleep(SETTLES);
            let quiet = Instant::now();
            std::thread::sleep(LOOK);
            let begins = Instant::now();
            in_thread(&plan.directory, plan.image, manner, limits)?;
            Ok([quiet, begins, begins, Instant::now()])
        };
        let looked = looked();
        stop.store(true, Ordering::Relaxed);
        let calls = running.join().unwrap_or_default();
        let [quiet_from, quiet_to, from, to] = looked?;
        let without = LatencySummary::summarize(&calls, others, quiet_from, quiet_to);
        let with = LatencySummary::summarize(&calls, others, from, to);
        let seconds = (to - from).as_secs_f64();
        Ok(Row {
            others,
            manner,
            mean_us: without.mean,
            p99_us: without.p99,
            mean_ratio: with.mean / without.mean,
            p99_ratio: with.p99 / without.p99,
            bandwidth_ratio: with.bandwidth / without.bandwidth,
            image_seconds: seconds,
            image_ratio: seconds / unpaced,
        })
    })
}

/// How calls of some time fared.
struct LatencySummary {
    mean: f64,
    p99: f64,
    bandwidth: f64,
}

impl LatencySummary {
    fn summarize(calls: &[Call], others: OtherLoad, from: Instant, to: Instant) -> Self {
        let began = calls.iter().filter(|call| (from..to).contains(&call.began));
        let mut micros: Vec<f64> = began.map(|call| call.took.as_secs_f64() * 1e6).collect();
        micros.sort_by(f64::total_cmp);
        let ended = calls.iter().filter(|call| (from..to).contains(&(call.began + call.took))).count();
        let at = ((micros.len() as f64 * 0.99).ceil() as usize).saturating_sub(1);
        Self {
            mean: micros.iter().sum::<f64>() / micros.len().max(1) as f64,
            p99: micros.get(at).copied().unwrap_or(0.0),
            bandwidth: (ended as u64 * others.bytes) as f64 / (to - from).as_secs_f64(),
        }
    }
}

/// The medians of rounds.
fn middle(rounds: &[Row]) -> Option<Row> {
    let first = rounds.first()?;
    let of = |value: fn(&Row) -> f64| median(rounds.iter().map(value).collect());
    Some(Row {
        mean_us: of(|row| row.mean_us),
        p99_us: of(|row| row.p99_us),
        mean_ratio: of(|row| row.mean_ratio),
        p99_ratio: of(|row| row.p99_ratio),
        bandwidth_ratio: of(|row| row.bandwidth_ratio),
        image_seconds: of(|row| row.image_seconds),
        image_ratio: of(|row| row.image_ratio),
        ..first.clone()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn heading() -> String {
    format!(
        "\n{:<30}{:<12}{:>9}{:>9}{:>8}{:>8}{:>8}{:>9}{:>9}",
        "others", "image", "mean us", "p99 us", "mean x", "p99 x", "MB/s x", "image s", "image x"
    )
}

impl Row {
    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let OtherLoad { is_write, is_random, bytes, rate } = self.others;
        let mut text = String::new();
        let what = if is_write { "write" } else { "read" };
        let order = if is_random { "random" } else { "in order" };
        let _ = write!(text, "{what:<6}{order:<9}{:>4} KiB{:>4} MB/s  ", bytes / KIB, rate / 1_000_000);
        let _ = write!(
            text,
            "{:<12}{:>9.0}{:>9.0}{:>8.2}{:>8.2}{:>8.2}{:>9.2}{:>9.2}",
            self.manner.name(),
            self.mean_us,
            self.p99_us,
            self.mean_ratio,
            self.p99_ratio,
            self.bandwidth_ratio,
            self.image_seconds,
            self.image_ratio
        );
        text
    }
}
