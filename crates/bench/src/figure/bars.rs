//! The other experiments on blocks, relative to kernel overlayfs.

use super::axis::Axis;
use super::results::{Results, Task};
use super::svg::{Anchor, Svg, Text};
use super::{LOOKS, WIDTH};

/// The experiments and what they do.
const ROWS: &[(&str, &str)] = &[
    ("block-same", "second write, same block"),
    ("block-others", "second write, other blocks"),
    ("block-stride", "one byte into every block, cold"),
    ("block-stride-warm", "one byte into every block, warm"),
    ("block-read-lower", "read, one block written"),
    ("block-read-half", "read, half from each layer"),
    ("block-random-410", "1 % at random in 410 B"),
    ("block-random-4k", "1 % at random in 4 KiB"),
    ("block-random-41k", "1 % at random in 40 KiB"),
    ("block-random-410k", "1 % at random in 400 KiB"),
];

const BAR: f64 = 9.0;
const GAP: f64 = 10.0;
const LEFT: f64 = 260.0;
const RIGHT: f64 = 60.0;
const HEAD: f64 = 34.0;

/// The rows that were measured.
pub(super) fn rows(results: &Results) -> Vec<(&'static str, &Task)> {
    ROWS.iter().filter_map(|(task, title)| Some((*title, results.task(task)?))).collect()
}

fn row_height(subjects: usize) -> f64 {
    // Kernel overlayfs is the line at 1.
    BAR * subjects.saturating_sub(1).max(1) as f64 + GAP
}

pub(super) fn height(rows: usize, subjects: usize) -> f64 {
    if rows == 0 { 0.0 } else { HEAD + row_height(subjects) * rows as f64 + 24.0 }
}

pub(super) fn draw(svg: &mut Svg, results: &Results, rows: &[(&str, &Task)], top: f64) {
    if rows.is_empty() {
        return;
    }
    let subjects: Vec<_> =
        LOOKS.iter().filter(|(name, ..)| *name != "overlayfs" && results.has_subject(name)).collect();
    let title = "Time relative to kernel overlayfs (1); shorter is faster";
    svg.text(24.0, top, title, Text { size: 14.0, bold: true, ..Text::default() });
    let ratios = rows.iter().flat_map(|(_, task)| subjects.iter().filter_map(|(name, ..)| task.ratio(name)));
    let axis = Axis::over(ratios.chain([1.0]), LEFT, WIDTH - RIGHT);
    let bottom = top + HEAD + row_height(subjects.len() + 1) * rows.len() as f64;
    for tick in axis.ticks() {
        let (colour, width) = if tick == 1.0 { ("#7f7f7f", 2.0) } else { ("#e2e2e2", 1.0) };
        svg.line((axis.at(tick), top + 16.0), (axis.at(tick), bottom), colour, width);
        svg.text(
            axis.at(tick),
            bottom + 18.0,
            &times(tick),
            Text { anchor: Anchor::Middle, ..Text::default() },
        );
    }
    for (number, (title, task)) in rows.iter().enumerate() {
        let mut y = top + HEAD + number as f64 * row_height(subjects.len() + 1);
        let middle = y + BAR * subjects.len() as f64 / 2.0 + 4.0;
        svg.text(LEFT - 12.0, middle, title, Text { anchor: Anchor::End, ..Text::default() });
        for (name, colour, _) in &subjects {
            if let Some(ratio) = task.ratio(name) {
                let end = axis.at(ratio).clamp(axis.begin(), axis.end());
                svg.rect(axis.begin(), y, (end - axis.begin()).max(1.0), BAR - 1.0, colour);
                svg.text(end + 4.0, y + 8.0, &times(ratio), Text { size: 9.0, ..Text::default() });
            }
            y += BAR;
        }
    }
}

/// Two digits that say something, without zeros at the end.
fn times(ratio: f64) -> String {
    let digits = if ratio >= 9.95 { 0 } else { (1.0 - ratio.log10().floor()).clamp(0.0, 9.0) as usize };
    let text = format!("{ratio:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::times;

    #[test]
    fn ratios_are_short() {
        let of = [1e-5, 0.0042, 0.1, 0.87, 0.996, 1.0, 1.5, 9.99, 10.0, 123.4].map(times);
        assert_eq!(of, ["0.00001", "0.0042", "0.1", "0.87", "1", "1", "1.5", "10", "10", "123"]);
    }
}
