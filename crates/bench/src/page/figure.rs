//! A bar for each subject of a task, as SVG within the page.
//!
//! Places are percentages and sizes are pixels: bars become shorter on a small screen, words stay as large as they are.

use super::axis::Axis;
use super::html::Html;
use super::naming;
use super::numbers::{bytes, time, trimmed};
use super::results::{Results, Subject, Task};

/// Where bars begin and end, in percent of the width.
const BARS: f64 = 35.0;
const BARS_END: f64 = 82.0;
/// Pixels.
const ROW: f64 = 28.0;
const BAR: f64 = 14.0;
const AXIS: f64 = 24.0;
/// Characters of a name for which there is room.
const NAME_MAX: usize = 20;

/// What a subject's bar looks like: the style sheet has the colours.
const LOOKS: &[(&str, &str)] = &[
    ("host", "kernel"),
    ("overlayfs", "kernel"),
    ("overlayfs-xfs", "kernel"),
    ("fuse-overlayfs", "peer"),
    ("fuse-overlayfs-2", "peer"),
    ("unionfs-fuse", "peer"),
    ("host-own", "kernel"),
    ("fuse-overlayfs-own", "peer"),
    ("fuse-overlayfs-2-own", "peer"),
    ("unionfs-fuse-own", "peer"),
    ("vellum-cached", "own"),
    ("vellum-passthrough", "own passthrough"),
    ("vellum-cached-back", "own"),
    ("vellum-passthrough-back", "own passthrough"),
    ("vellum-library", "own library"),
    ("vellum-cached-pools", "own"),
    ("vellum-passthrough-pools", "own passthrough"),
    ("vellum-shares", "own"),
];

/// A row of the figure.
struct Row<'a> {
    name: &'a str,
    middle: f64,
    smallest: f64,
    largest: f64,
}

/// Writes the figure of a task, or nothing when nothing was measured.
pub(super) fn write(html: &mut Html, results: &Results, task: &Task) {
    let rounds = results.runs.get(task.run).map_or(0, |run| run.rounds);
    let rows: Vec<Row<'_>> = task.results.iter().filter_map(|result| row(task, result)).collect();
    let values: Vec<f64> = rows.iter().flat_map(|row| [row.smallest, row.middle, row.largest]).collect();
    let Some(axis) = Axis::over(&values) else { return };
    let what = if task.is_of_memory() { "Resident memory of the service" } else { "Time of one pass" };
    let scale = if axis.logarithmic { "; logarithmic scale" } else { "" };
    html.element("figure", &[], |html| {
        let height = format!("{:.0}", ROW * rows.len() as f64 + AXIS);
        html.element("svg", &[("role", "img"), ("width", "100%"), ("height", &height)], |html| {
            html.words(
                "title",
                &[],
                &format!(
                    "{}: {} by subject, median of {rounds} rounds",
                    naming::full(results, task),
                    what.to_lowercase()
                ),
            );
            ticks(html, task, &axis, ROW * rows.len() as f64);
            for (number, row) in rows.iter().enumerate() {
                bar(html, task, &axis, row, ROW * number as f64);
            }
        });
        let words = format!("{what}: the median, and a line from the smallest to the largest sample{scale}.");
        html.words("figcaption", &[], &words);
    });
}

fn row<'a>(task: &Task, result: &'a Subject) -> Option<Row<'a>> {
    let drawable = |value: &f64| value.is_finite() && *value > 0.0;
    let (middle, mut samples) = match task.is_of_memory() {
        true => (result.resident_bytes, result.values(|sample| sample.resident_bytes)),
        false => (result.seconds, result.values(|sample| Some(sample.seconds))),
    };
    let middle = middle.filter(drawable)?;
    samples.retain(drawable);
    let smallest = samples.iter().copied().fold(middle, f64::min);
    let largest = samples.iter().copied().fold(middle, f64::max);
    Some(Row { name: &result.subject, middle, smallest, largest })
}

fn ticks(html: &mut Html, task: &Task, axis: &Axis, bottom: f64) {
    // Words of neighbours must not touch on a phone; the last but one goes when the last is near.
    let mut free = 0.0;
    for tick in axis.ticks() {
        let x = place(axis, tick);
        line(html, "grid", (&x, 0.0), (&x, bottom));
        let at = axis.at(tick);
        if at >= free {
            free = at + 0.24;
            text(html, ("axis", "middle"), &x, bottom + 16.0, &trimmed(&value(task, tick)));
        }
    }
}

fn bar(html: &mut Html, task: &Task, axis: &Axis, row: &Row<'_>, top: f64) {
    let middle = top + ROW / 2.0;
    let look = LOOKS.iter().find(|(name, _)| *name == row.name).map_or("other", |(_, look)| *look);
    text(html, ("name", "start"), "0", middle + 4.0, &short(row.name));
    let width = percent((axis.at(row.middle) * (BARS_END - BARS)).max(0.3));
    html.empty(
        "rect",
        &[
            ("class", &format!("bar {look}")),
            ("x", &percent(BARS)),
            ("y", &pixels(middle - BAR / 2.0)),
            ("width", &width),
            ("height", &pixels(BAR)),
            ("rx", "2"),
        ],
    );
    if row.largest > row.smallest {
        let ends = [place(axis, row.smallest), place(axis, row.largest)];
        let [from, to] = &ends;
        line(html, "whisker", (from, middle), (to, middle));
        for end in &ends {
            line(html, "whisker", (end, middle - 3.0), (end, middle + 3.0));
        }
    }
    text(html, ("value", "end"), "100%", middle + 4.0, &value(task, row.middle));
}

fn value(task: &Task, value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if task.is_of_memory() { bytes(value) } else { time(value) }
}

fn short(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_MAX - 1).chain(['\u{2026}']).collect()
}

fn place(axis: &Axis, value: f64) -> String {
    percent(BARS + axis.at(value) * (BARS_END - BARS))
}

fn percent(part: f64) -> String {
    format!("{part:.2}%")
}

fn pixels(length: f64) -> String {
    format!("{length:.1}")
}

fn line(html: &mut Html, class: &str, from: (&str, f64), to: (&str, f64)) {
    let (y1, y2) = (pixels(from.1), pixels(to.1));
    html.empty("line", &[("class", class), ("x1", from.0), ("y1", &y1), ("x2", to.0), ("y2", &y2)]);
}

fn text(html: &mut Html, (class, anchor): (&str, &str), x: &str, y: f64, words: &str) {
    html.words("text", &[("class", class), ("x", x), ("y", &pixels(y)), ("text-anchor", anchor)], words);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::html::unbalanced;
    use crate::page::{SMALL, results};

    fn figure(number: usize) -> String {
        let results = results::of(&[SMALL]).unwrap();
        let mut html = Html::default();
        write(&mut html, &results, results.tasks.get(number).unwrap());
        html.finish().replace('\u{a0}', " ")
    }

    #[test]
    fn every_subject_with_a_result_has_a_bar() {
        let same = figure(1);
        assert_eq!((same.matches("<rect").count(), same.matches("bar own").count()), (4, 2));
        for word in ["role=\"img\"", "<title>block-same: time", "900.00 ms", "logarithmic"] {
            assert!(same.contains(word), "{word}: {same}");
        }
        assert!(!same.contains("NaN") && !same.contains("inf"));
        assert!(!figure(0).contains("logarithmic"));
    }

    #[test]
    fn memory_is_drawn_where_it_is_judged() {
        let memory = figure(3);
        assert!(memory.contains("520 MiB") && memory.contains("Resident memory"), "{memory}");
        assert_eq!(memory.matches("<rect").count(), 2);
    }

    #[test]
    fn hostile_names_stay_words() {
        let hostile = figure(4);
        assert!(!hostile.contains("<script") && !hostile.contains("<b>"), "{hostile}");
        assert_eq!(unbalanced(&hostile), None);
        assert_eq!(short("a-name-that-is-longer-than-that"), "a-name-that-is-long…");
    }
}
