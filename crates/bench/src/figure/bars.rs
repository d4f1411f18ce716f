//! Experiments relative to kernel overlayfs: bars to the left of 1 are faster, those to the right are slower.

use super::results::{Results, Task};
use super::subjects::Look;
use super::svg::{Anchor, Svg, Text, WIDTH};
use crate::page::axis::Axis;

/// Experiments that belong together: their tasks, and what they do.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) rows: &'static [(&'static str, &'static str)],
}

const BAR: f64 = 12.0;
/// What is as fast as overlayfs still shows beside its line.
const BAR_MIN: f64 = 3.0;
const GAP: f64 = 12.0;
const HEAD: f64 = 44.0;
const GROUP_HEAD: f64 = 30.0;
const FOOT: f64 = 24.0;
/// Between these is the axis; beyond them is room for the number of a bar.
const LEFT: f64 = 300.0;
const RIGHT: f64 = WIDTH - 64.0;
/// The axis reaches at least from here to there, or else noise fills the picture.
const SPAN: (f64, f64) = (0.5, 2.0);
/// So many powers of ten are marks enough.
const POWERS: usize = 3;
const MUTED: &str = "#666666";

/// What of some groups was measured, and on which subjects.
pub(super) struct Bars<'a> {
    subjects: Vec<&'static Look>,
    groups: Vec<(&'static str, Vec<Row<'a>>)>,
}

type Row<'a> = (&'static str, &'a Task);

impl<'a> Bars<'a> {
    /// Of `subjects`, kernel overlayfs is the line at 1.
    pub(super) fn of(results: &'a Results, groups: &[Group], subjects: &[&'static Look]) -> Self {
        let rows = |group: &Group| {
            let found = group.rows.iter().filter_map(|(task, title)| Some((*title, results.task(task)?)));
            (group.title, found.collect::<Vec<_>>())
        };
        Self {
            subjects: subjects.iter().copied().filter(|look| look.subject != "overlayfs").collect(),
            groups: groups.iter().map(rows).filter(|(_, rows)| !rows.is_empty()).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn height(&self) -> f64 {
        if self.is_empty() { 0.0 } else { HEAD + self.rows_height() + FOOT }
    }

    fn rows_height(&self) -> f64 {
        self.groups.iter().map(|(title, rows)| head(title) + self.row_height() * rows.len() as f64).sum()
    }

    fn row_height(&self) -> f64 {
        BAR * self.subjects.len().max(1) as f64 + GAP
    }

    pub(super) fn draw(&self, svg: &mut Svg, top: f64) {
        if self.is_empty() {
            return;
        }
        let title = "Time relative to kernel overlayfs (1); logarithmic scale";
        svg.text(24.0, top, title, Text { size: 14.0, bold: true, ..Text::default() });
        let tasks = || self.groups.iter().flat_map(|(_, rows)| rows).map(|(_, task)| *task);
        let ratios: Vec<f64> = tasks()
            .flat_map(|task| self.subjects.iter().filter_map(|look| task.ratio(look.subject)))
            .collect();
        let low = ratios.iter().copied().fold(SPAN.0, f64::min);
        let axis = Axis::logarithmic(low, ratios.iter().copied().fold(SPAN.1, f64::max));
        marks(svg, &axis, top + 34.0, top + HEAD + self.rows_height());
        let mut y = top + HEAD;
        for (title, rows) in &self.groups {
            if !title.is_empty() {
                svg.text(24.0, y + 18.0, title, Text { bold: true, ..Text::default() });
            }
            y += head(title);
            for row in rows {
                self.row(svg, &axis, row, y);
                y += self.row_height();
            }
        }
    }

    fn row(&self, svg: &mut Svg, axis: &Axis, (title, task): &Row<'_>, top: f64) {
        let middle = top + BAR * self.subjects.len() as f64 / 2.0 + 4.0;
        svg.text(LEFT - 60.0, middle, title, Text { anchor: Anchor::End, size: 13.0, ..Text::default() });
        let one = place(axis, 1.0);
        for (number, look) in self.subjects.iter().enumerate() {
            let y = top + BAR * number as f64;
            let small = Text { size: 10.0, ..Text::default() };
            let Some(ratio) = task.ratio(look.subject) else {
                svg.text(one + 5.0, y + 9.5, "no result", Text { colour: MUTED, ..small });
                continue;
            };
            let end = place(axis, ratio);
            let width = (end - one).abs().max(BAR_MIN);
            svg.rect(if ratio < 1.0 { one - width } else { one }, y, width, BAR - 1.5, look.colour);
            let (x, anchor) = if ratio < 1.0 { (end - 5.0, Anchor::End) } else { (end + 5.0, Anchor::Start) };
            svg.text(x, y + 9.5, &times(ratio), Text { anchor, ..small });
        }
    }
}

/// Room for the title of a group.
fn head(title: &str) -> f64 {
    if title.is_empty() { 0.0 } else { GROUP_HEAD }
}

fn place(axis: &Axis, ratio: f64) -> f64 {
    LEFT + axis.at(ratio) * (RIGHT - LEFT)
}

/// Lines at round ratios, and on which side of 1 is what.
fn marks(svg: &mut Svg, axis: &Axis, top: f64, bottom: f64) {
    let powers = axis.powers();
    let between: &[f64] = if powers.len() < POWERS { &[0.2, 0.5, 1.0, 2.0, 5.0] } else { &[1.0] };
    let mut all: Vec<f64> =
        powers.iter().flat_map(|power| between.iter().map(move |part| part * power)).collect();
    // Of 1 and of 10, the one's 2 is the other's 0.2.
    all.dedup_by(|a, b| (*a / *b - 1.0).abs() < 1e-9);
    for ratio in all.into_iter().filter(|ratio| axis.has(*ratio)) {
        let x = place(axis, ratio);
        let (colour, width) = if ratio == 1.0 { ("#9aa1a9", 2.0) } else { ("#e2e2e2", 1.0) };
        svg.line((x, top), (x, bottom), colour, width);
        svg.text(x, bottom + 18.0, &times(ratio), Text { anchor: Anchor::Middle, ..Text::default() });
    }
    let one = place(axis, 1.0);
    let note = Text { size: 11.0, colour: MUTED, ..Text::default() };
    svg.text(one - 8.0, top - 6.0, "\u{2190} faster", Text { anchor: Anchor::End, ..note });
    svg.text(one + 8.0, top - 6.0, "slower \u{2192}", note);
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
