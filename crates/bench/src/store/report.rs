//! What was found, as a table and as JSON.

use super::amplification::Amplification;
use crate::machine::Machine;
use crate::statistics::least;
use serde::Serialize;
use std::fmt::Write;

/// A block is to be written at most so often.
const AMPLIFICATION_BAR: f64 = 2.5;

/// The store beside somebody else.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub name: &'static str,
    /// Whom the store is compared with.
    pub peer: &'static str,
    /// Bytes that a time is for.
    pub bytes: u64,
    /// What `ratio` is to be at least.
    pub bar: f64,
    /// The store's best rate, as a part of the other one's best.
    pub ratio: f64,
    /// Of each round.
    pub peer_seconds: Vec<f64>,
    /// Of each round.
    pub store_seconds: Vec<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// The load average afterwards.
    pub load_after: f64,
    pub image_bytes: u64,
    /// The store beside others.
    pub rows: Vec<Row>,
    /// Blocks written in the end for a block, over time.
    pub amplification: Vec<Amplification>,
}

impl Report {
    #[must_use]
    pub fn tables(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:<38}{:<16}{:>12}{:>12}{:>8}{:>7}",
            "best of all rounds", "beside", "its MB/s", "store MB/s", "x", "bar"
        );
        for row in &self.rows {
            let rate = |seconds: &[f64]| row.bytes as f64 / least(seconds) / 1e6;
            let (peer, own) = (rate(&row.peer_seconds), rate(&row.store_seconds));
            let met = if row.ratio >= row.bar { "met" } else { "not met" };
            let _ = writeln!(
                text,
                "{:<38}{:<16}{peer:>12.1}{own:>12.1}{:>8.2}{:>7.2} {met}",
                row.name, row.peer, row.ratio, row.bar
            );
        }
        for amplification in &self.amplification {
            let _ = writeln!(
                text,
                "\nwrites of a block, 80 % full, overwritten: {}\n{:<14}{:>8}{:>8}",
                amplification.pattern.name(),
                "overwritten",
                "data",
                "all"
            );
            for moment in &amplification.moments {
                let bar = if moment.data > AMPLIFICATION_BAR { "  above 2.5" } else { "" };
                let _ = writeln!(
                    text,
                    "{:<14.2}{:>8.2}{:>8.2}{bar}",
                    moment.overwritten, moment.data, moment.all
                );
            }
        }
        text
    }
}
