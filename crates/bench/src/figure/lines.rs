//! The time of the first write over the size of the file.

use super::axis::Axis;
use super::results::Results;
use super::svg::{Anchor, Svg, Text};
use super::{LINES_HEIGHT, LOOKS, WIDTH, colour_of};

/// The experiments, by the size of their file in MiB.
const SIZES: &[(&str, f64, &str)] = &[
    ("block-first-1m", 1.0, "1 MiB"),
    ("block-first-16m", 16.0, "16 MiB"),
    ("block-first-256m", 256.0, "256 MiB"),
    ("block-first-1g", 1024.0, "1 GiB"),
    ("block-first-10g", 10_240.0, "10 GiB"),
];

const LEFT: f64 = 90.0;
const RIGHT: f64 = 40.0;

pub(super) fn draw(svg: &mut Svg, results: &Results, top: f64) -> Result<(), &'static str> {
    let sizes: Vec<_> =
        SIZES.iter().filter_map(|(task, mib, title)| Some((results.task(task)?, *mib, *title))).collect();
    if sizes.is_empty() {
        return Err("it has no result of block-first-1m to block-first-10g: run `compare --tasks blocks`");
    }
    svg.text(
        24.0,
        top,
        "First write of one byte: open, write, close",
        Text { size: 14.0, bold: true, ..Text::default() },
    );
    let subjects = || LOOKS.iter().map(|(subject, ..)| *subject);
    let values = sizes.iter().flat_map(|(task, ..)| subjects().filter_map(|subject| task.seconds(subject)));
    let bottom = top + LINES_HEIGHT - 30.0;
    let time = Axis::over(values, bottom, top + 20.0);
    let across = |mib: f64| LEFT + mib.log2() / 10_240_f64.log2() * (WIDTH - LEFT - RIGHT - 30.0) + 15.0;
    for tick in time.ticks() {
        svg.line((LEFT, time.at(tick)), (WIDTH - RIGHT, time.at(tick)), "#e2e2e2", 1.0);
        svg.text(
            LEFT - 8.0,
            time.at(tick) + 4.0,
            &duration(tick),
            Text { anchor: Anchor::End, ..Text::default() },
        );
    }
    for (_, mib, title) in &sizes {
        svg.text(across(*mib), bottom + 20.0, title, Text { anchor: Anchor::Middle, ..Text::default() });
    }
    for subject in subjects() {
        let points: Vec<_> = sizes
            .iter()
            .filter_map(|(task, mib, _)| Some((across(*mib), time.at(task.seconds(subject)?))))
            .collect();
        if !points.is_empty() {
            svg.path(&points, colour_of(subject));
        }
    }
    Ok(())
}

/// A power of ten of seconds.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.9e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.9 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.0} s"),
    }
}
