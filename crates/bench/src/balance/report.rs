//! What was found, as a table and as JSON.

use super::load::{Load, ProcessResult};
use crate::machine::Machine;
use crate::statistics::median;
use serde::Serialize;
use std::fmt::Write;

/// The throughput of all together is to be at least this part of what it is without.
const THROUGHPUT_BAR: f64 = 0.98;
/// Points of hits that may be lost at the most.
const HITS_BAR: f64 = 0.3;

/// A workload, or all of an experiment, with and without. Lists have an entry for each round.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub experiment: &'static str,
    /// None: all of them together.
    pub load: Option<Load>,
    /// Of its group.
    pub weight: Option<u32>,
    /// Operations per second.
    pub without: Vec<f64>,
    /// Operations per second.
    pub with: Vec<f64>,
    /// The median with, as a part of the median without.
    pub ratio: f64,
    /// Points of hits more than without, of bytes that were read: medians.
    pub hits: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// The load average afterwards.
    pub load_after: f64,
    /// What the groups may have together.
    pub memory_bytes: u64,
    /// In the order of the experiments.
    pub rows: Vec<Row>,
}

/// What one does, or all: operations per second in a round, and hits.
fn rate_and_hits(dones: &[ProcessResult]) -> (f64, f64) {
    let rate = |done: &ProcessResult| done.operations as f64 / done.seconds.max(f64::MIN_POSITIVE);
    let sum = |value: fn(&ProcessResult) -> u64| dones.iter().map(value).sum::<u64>() as f64;
    // A disk reads ahead, also what is dropped again before anybody has read it.
    let fetched = (sum(|done| done.fetched) / sum(|done| done.read).max(1.0)).min(1.0);
    (dones.iter().map(rate).sum(), 100.0 * (1.0 - fetched))
}

/// A row for each workload where they differ, and one for all.
pub(super) fn rows(
    experiment: &'static str,
    loads: [Load; 4],
    weights: [u32; 4],
    without: &[[ProcessResult; 4]],
    with: &[[ProcessResult; 4]],
) -> Vec<Row> {
    let row = |load, weight, pick: &dyn Fn(&[ProcessResult; 4]) -> (f64, f64)| {
        let [without, with] =
            [without, with].map(|rounds| rounds.iter().map(pick).unzip::<_, _, Vec<f64>, Vec<f64>>());
        let ratio = median(&with.0) / median(&without.0).max(f64::MIN_POSITIVE);
        let hits = median(&with.1) - median(&without.1);
        Row { experiment, load, weight, without: without.0, with: with.0, ratio, hits }
    };
    let each = (0..4).map(|number| {
        row(Some(loads[number]), Some(weights[number]), &|dones| {
            rate_and_hits(std::slice::from_ref(&dones[number]))
        })
    });
    each.chain([row(None, None, &|dones| rate_and_hits(dones))]).collect()
}

impl Report {
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut last = "";
        for row in &self.rows {
            if row.experiment != last {
                last = row.experiment;
                let _ = writeln!(
                    text,
                    "{last}\n  {:<14}{:>8}{:>14}{:>14}{:>8}{:>12}",
                    "", "weight", "without/s", "with/s", "x", "hits"
                );
            }
            let name = row.load.map_or("all", Load::name);
            let weight = row.weight.map_or(String::new(), |weight| weight.to_string());
            let (without, with) = (median(&row.without), median(&row.with));
            // What the heavy ones gain, the light ones lose: only all of them together have a bar.
            let is_met = row.ratio >= THROUGHPUT_BAR && row.hits >= -HITS_BAR;
            let met = if is_met || row.load.is_some() { "" } else { "  below" };
            let _ = writeln!(
                text,
                "  {name:<14}{weight:>8}{without:>14.1}{with:>14.1}{:>8.3}{:>+12.2}{met}",
                row.ratio, row.hits
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_hits_are_of_each_and_of_all() {
        let done = |operations, fetched, seconds| ProcessResult { operations, read: 100, fetched, seconds };
        let without = [[done(10, 50, 1.0), done(20, 50, 2.0), done(10, 0, 1.0), done(10, 0, 1.0)]];
        let with = [[done(20, 40, 1.0), done(20, 50, 1.0), done(10, 0, 1.0), done(10, 0, 1.0)]];
        let rows = rows("x", [Load::InOrder; 4], [1; 4], &without, &with);
        let found: Vec<_> = rows.iter().map(|row| (row.ratio, row.hits)).collect();
        assert_eq!(found[0], (2.0, 10.0));
        assert_eq!(found[1], (2.0, 0.0));
        assert_eq!(found[2], (1.0, 0.0));
        // 40 in a second, and 60.
        assert!((found[4].0 - 1.5).abs() < 1e-9 && (found[4].1 - 2.5).abs() < 1e-9, "{:?}", found[4]);
    }
}
