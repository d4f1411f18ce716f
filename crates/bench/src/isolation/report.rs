//! What was found, as a table and as JSON.

use super::load::{LoadResult, OtherLoad};
use super::{KIB, Mode, latencies};
use serde::Serialize;
use std::fmt::Write;
use vellum_zoned::pace::Direction;

/// One point of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub device: &'static str,
    /// Whether others read.
    pub reads: bool,
    /// Bytes of a call of others.
    pub bytes: u64,
    /// Bytes per second that others want.
    pub rate: u64,
    /// Checkpoints at once.
    pub checkpoints: usize,
    /// What was done for others.
    pub mode: Mode,
    /// Mean latency of others' calls undisturbed, in microseconds.
    pub mean_us: f64,
    /// The 99th percentile, likewise.
    pub p99_us: f64,
    /// The mean as a multiple of the undisturbed one.
    pub mean_ratio: f64,
    /// The 99th percentile as a multiple of the undisturbed one.
    pub p99_ratio: f64,
    /// Others' bandwidth as a part of the undisturbed one.
    pub bandwidth_ratio: f64,
    /// How long the images took, as a multiple of what they take alone, written in the same manner; None: they did not end in time.
    pub images_ratio: Option<f64>,
}

/// All points.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub image_bytes: u64,
    /// The points, in order.
    pub rows: Vec<Row>,
}

impl Row {
    /// `seen`: others without images, others with them, images alone.
    pub(super) fn of(
        device: &'static str,
        others: OtherLoad,
        checkpoints: usize,
        mode: Mode,
        seen: [&LoadResult; 3],
    ) -> Self {
        let [without, with, alone] = seen;
        let ((mean, p99), (mean_with, p99_with)) = (latencies(without), latencies(with));
        let took = with.images_took.zip(alone.images_took);
        Self {
            device,
            reads: others.direction == Direction::Read,
            bytes: others.bytes,
            rate: others.rate,
            checkpoints,
            mode,
            mean_us: mean / 1e3,
            p99_us: p99 / 1e3,
            mean_ratio: mean_with / mean,
            p99_ratio: p99_with / p99,
            bandwidth_ratio: with.bandwidth / without.bandwidth,
            images_ratio: took.map(|(took, alone)| took as f64 / alone as f64),
        }
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let what = if self.reads { "read" } else { "write" };
        let images = self.images_ratio.map_or("not in time".to_owned(), |ratio| format!("{ratio:.2}"));
        format!(
            "{:<11}{what:<6}{:>4} KiB{:>5} MB/s{:>3}  {:<8}{:>9.1}{:>9.1}{:>8.2}{:>8.2}{:>8.2}{images:>9}",
            self.device,
            self.bytes / KIB,
            self.rate / 1_000_000,
            self.checkpoints,
            self.mode.name(),
            self.mean_us,
            self.p99_us,
            self.mean_ratio,
            self.p99_ratio,
            self.bandwidth_ratio,
        )
    }
}

/// The heading of the table.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:<35}{:<8}{:>9}{:>9}{:>8}{:>8}{:>8}{:>9}\n",
        "others, checkpoints", "", "mean us", "p99 us", "mean x", "p99 x", "MB/s x", "images x"
    )
}

/// The worst of each device, direction and mode.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "worst of all sizes and rates: {:<8}{:>8}{:>8}{:>9}",
        "mean x", "p99 x", "MB/s x", "images x"
    );
    let mut seen: Vec<(&str, bool, Mode)> = Vec::new();
    for row in &report.rows {
        let key = (row.device, row.reads, row.mode);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let of = report.rows.iter().filter(|other| (other.device, other.reads, other.mode) == key);
        let (mut mean, mut p99, mut bandwidth, mut images) = (0.0_f64, 0.0_f64, f64::MAX, Some(0.0_f64));
        for row in of {
            mean = mean.max(row.mean_ratio);
            p99 = p99.max(row.p99_ratio);
            bandwidth = bandwidth.min(row.bandwidth_ratio);
            images = images.zip(row.images_ratio).map(|(a, b)| a.max(b));
        }
        let what = if row.reads { "reads" } else { "writes" };
        let images = images.map_or("not in time".to_owned(), |images| format!("{images:.2}"));
        let name = row.mode.name();
        let _ = writeln!(
            text,
            "{:<11}{what:<8}{name:<9}{mean:>8.2}{p99:>9.2}{bandwidth:>8.2}{images:>9}",
            row.device
        );
    }
    text
}
