//! The time of the first write over the size of the file.

use super::results::Results;
use super::subjects::Look;
use super::svg::{Anchor, Svg, Text, WIDTH};
use crate::page::axis::Axis;
use crate::page::numbers;

/// The experiments, by the size of their file in MiB.
const SIZES: &[(&str, f64, &str)] = &[
    ("block-first-1m", 1.0, "1 MiB"),
    ("block-first-16m", 16.0, "16 MiB"),
    ("block-first-256m", 256.0, "256 MiB"),
    ("block-first-1g", 1024.0, "1 GiB"),
    ("block-first-10g", 10_240.0, "10 GiB"),
];

/// Height of the whole, the axis' names included.
pub(super) const HEIGHT: f64 = 330.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 40.0;

/// The tasks that are looked at.
pub(super) fn tasks() -> impl Iterator<Item = &'static str> {
    SIZES.iter().map(|(task, ..)| *task)
}

/// Draws the lines; an error when there is none.
pub(super) fn draw(svg: &mut Svg, results: &Results, subjects: &[&Look], top: f64) -> Result<(), ()> {
    let sizes: Vec<_> =
        SIZES.iter().filter_map(|(task, mib, title)| Some((results.task(task)?, *mib, *title))).collect();
    if sizes.is_empty() {
        return Err(());
    }
    svg.text(
        24.0,
        top,
        "First write of one byte: open, write, close",
        Text { size: 14.0, bold: true, ..Text::default() },
    );
    let values =
        sizes.iter().flat_map(|(task, ..)| subjects.iter().filter_map(|look| task.seconds(look.subject)));
    let bottom = top + HEIGHT - 30.0;
    let axis = Axis::decades(values);
    let up = |seconds: f64| bottom - axis.at(seconds) * (bottom - top - 20.0);
    let across = |mib: f64| LEFT + mib.log2() / 10_240_f64.log2() * (WIDTH - LEFT - RIGHT - 30.0) + 15.0;
    for tick in axis.powers() {
        svg.line((LEFT, up(tick)), (WIDTH - RIGHT, up(tick)), "#e2e2e2", 1.0);
        svg.text(
            LEFT - 8.0,
            up(tick) + 4.0,
            &numbers::trimmed(&numbers::time(tick)),
            Text { anchor: Anchor::End, ..Text::default() },
        );
    }
    for (_, mib, title) in &sizes {
        svg.text(across(*mib), bottom + 20.0, title, Text { anchor: Anchor::Middle, ..Text::default() });
    }
    for look in subjects {
        let points: Vec<_> = sizes
            .iter()
            .filter_map(|(task, mib, _)| Some((across(*mib), up(task.seconds(look.subject)?))))
            .collect();
        if !points.is_empty() {
            svg.path(&points, look.colour);
        }
    }
    Ok(())
}
