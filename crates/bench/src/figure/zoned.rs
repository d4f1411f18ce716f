//! Figures of what `store` and `isolation` have found on emulated zoned devices.

use super::svg::{Anchor, Svg, Text, WIDTH};
use crate::page::axis::Axis;
use serde::Deserialize;

/// What `store --json` has written, as far as it is drawn.
#[derive(Debug, Deserialize)]
pub(super) struct StoreReport {
    amplification: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    pattern: String,
    moments: Vec<Moment>,
}

#[derive(Debug, Deserialize)]
struct Moment {
    overwritten: f64,
    data: f64,
    all: f64,
}

/// What `isolation --json` has written, as far as it is drawn.
#[derive(Debug, Deserialize)]
pub(super) struct IsolationReport {
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    device: String,
    reads: bool,
    mode: String,
    p99_ratio: f64,
    images_ratio: Option<f64>,
}

const LEFT: f64 = 60.0;
const TOP: f64 = 96.0;
const HEIGHT: f64 = 300.0;
/// Blocks are to be written at most so often.
const MOST_WRITTEN: f64 = 2.5;
/// Others are to wait at most so many times as long, and images to take at most so many.
const MOST_WAITED: f64 = 1.1;
const MOST_TAKEN: f64 = 1.25;
const BAR: &str = "#b00020";
const COLOURS: [&str; 4] = ["#1f6fb2", "#8fc1e8", "#2b8a3e", "#9bd3a6"];

fn small() -> Text {
    Text { size: 11.0, colour: "#666666", ..Text::default() }
}

/// How often a block is written in the end, over time.
pub(super) fn amplification(report: &StoreReport) -> Result<String, &'static str> {
    let moments = || report.amplification.iter().flat_map(|series| &series.moments);
    let most = moments().map(|moment| moment.all.max(moment.data)).fold(MOST_WRITTEN, f64::max).ceil();
    let last = moments().map(|moment| moment.overwritten).fold(0.0, f64::max);
    if last <= 0.0 {
        return Err("it has no numbers over time: run `store --json`");
    }
    let mut svg = Svg::new(WIDTH, TOP + HEIGHT + 70.0);
    let title = "A block that is overwritten is written so often in the end";
    svg.text(24.0, 34.0, title, Text { size: 20.0, bold: true, ..Text::default() });
    let up = |times: f64| TOP + HEIGHT * (1.0 - times / most);
    let across = |overwritten: f64| LEFT + (WIDTH - LEFT - 40.0) * overwritten / last;
    for tick in 0..=most as u32 {
        let y = up(tick.into());
        svg.line((LEFT, y), (WIDTH - 40.0, y), "#e2e2e2", 1.0);
        let right = Text { anchor: Anchor::End, ..Text::default() };
        svg.text(LEFT - 8.0, y + 4.0, &tick.to_string(), right);
    }
    svg.line((LEFT, up(MOST_WRITTEN)), (WIDTH - 40.0, up(MOST_WRITTEN)), BAR, 1.5);
    for tick in 0..=last as u32 {
        let middle = Text { anchor: Anchor::Middle, ..Text::default() };
        svg.text(across(tick.into()), TOP + HEIGHT + 20.0, &tick.to_string(), middle);
    }
    let mut colours = COLOURS.iter().cycle();
    let mut x = 24.0;
    for series in &report.amplification {
        for (what, of) in [("data", Moment::data as fn(&Moment) -> f64), ("with log", Moment::all)] {
            let colour = colours.next().copied().unwrap_or("#222222");
            let points: Vec<_> =
                series.moments.iter().map(|moment| (across(moment.overwritten), up(of(moment)))).collect();
            svg.path(&points, colour);
            svg.rect(x, 52.0, 12.0, 12.0, colour);
            let name = if series.pattern == "uniform" { "all blocks alike" } else { "80 % to a fifth" };
            svg.text(x + 18.0, 63.0, &format!("{name}, {what}"), Text::default());
            x += 190.0;
        }
    }
    let note = "times that all was overwritten; 80 % full; an emulated device, the same numbers on every machine; red: at most 2.5";
    svg.text(LEFT, TOP + HEIGHT + 48.0, note, small());
    Ok(svg.finish())
}

impl Moment {
    fn data(&self) -> f64 {
        self.data
    }

    fn all(&self) -> f64 {
        self.all
    }
}

const MODES: [&str; 4] = ["neither", "placed", "paced", "both"];

/// How long others wait, and images take, with neither placement nor pacing, with one of them, and with both.
pub(super) fn isolation(report: &IsolationReport) -> Result<String, &'static str> {
    let mut groups: Vec<(&str, bool)> =
        report.rows.iter().map(|row| (row.device.as_str(), row.reads)).collect();
    groups.dedup();
    let worst = |group: (&str, bool), mode: &str| {
        let rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| (row.device.as_str(), row.reads) == group && row.mode == mode)
            .collect();
        let waits = rows.iter().map(|row| row.p99_ratio).reduce(f64::max)?;
        // None: an image did not end in time.
        let takes = rows.iter().map(|row| row.images_ratio).reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)))?;
        Some((waits, takes))
    };
    let found: Vec<_> = groups
        .iter()
        .flat_map(|group| MODES.iter().filter_map(|mode| Some((*group, *mode, worst(*group, mode)?))))
        .collect();
    if found.is_empty() {
        return Err("it has no rows: run `isolation --json`");
    }
    let height = TOP + 24.0 * found.len() as f64 + 12.0 * groups.len() as f64 + 50.0;
    let mut svg = Svg::new(WIDTH, height);
    let bold = Text { bold: true, ..Text::default() };
    let title = "Images of checkpoints beside others, on emulated zoned devices";
    svg.text(24.0, 34.0, title, Text { size: 20.0, bold: true, ..Text::default() });
    let panels = [(230.0, 330.0, MOST_WAITED, 10_000.0), (640.0, 230.0, MOST_TAKEN, 100.0)];
    svg.text(panels[0].0, 66.0, "others' 99th percentile, times undisturbed", bold);
    svg.text(panels[1].0, 66.0, "an image, times alone", bold);
    let mut y = TOP;
    let mut last = None;
    for (group, mode, (waits, takes)) in &found {
        if last.is_some_and(|last| last != group) {
            y += 12.0;
        }
        last = Some(group);
        let what = if group.1 { "reads" } else { "writes" };
        svg.text(24.0, y + 12.0, &format!("{}, {what}: {mode}", group.0), Text::default());
        let colour = MODES.iter().position(|other| other == mode).and_then(|at| COLOURS.get(at));
        for ((left, width, _, most), value) in panels.iter().zip([Some(*waits), *takes]) {
            let axis = Axis::logarithmic(0.9, *most);
            let long = width * axis.at(value.unwrap_or(*most).max(0.9));
            svg.rect(*left, y, long.max(1.0), 16.0, colour.copied().unwrap_or("#222222"));
            let words = match value {
                Some(value) if value > *most => format!("> {most}"),
                Some(value) if value >= 10.0 => format!("{value:.0}"),
                Some(value) => format!("{value:.2}"),
                None => "not in time".to_owned(),
            };
            svg.text(left + long + 6.0, y + 12.0, &words, Text::default());
        }
        y += 24.0;
    }
    for (left, width, bar, most) in panels {
        let x = left + width * Axis::logarithmic(0.9, most).at(bar);
        svg.line((x, TOP - 8.0), (x, y), BAR, 1.5);
    }
    let note = "the worst of all sizes, rates and numbers of images; logarithmic; red: at most 1.1, and at most 1.25";
    svg.text(24.0, height - 16.0, note, small());
    Ok(svg.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_over_time_become_lines() {
        let json = r#"{"amplification": [{"pattern": "uniform", "moments": [
            {"overwritten": 0.5, "data": 1.5, "all": 1.6}, {"overwritten": 2.0, "data": 2.2, "all": 2.4}]}]}"#;
        let svg = amplification(&serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("all blocks alike, with log") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(amplification(&StoreReport { amplification: Vec::new() }).is_err());
    }

    #[test]
    fn the_worst_of_each_mode_becomes_a_bar() {
        let row = |mode: &str, waits: f64, images: &str| {
            format!(
                r#"{{"device": "small-zone", "reads": false, "mode": "{mode}", "p99_ratio": {waits}, "images_ratio": {images}}}"#
            )
        };
        let rows = [row("neither", 20_000.0, "1.1"), row("both", 1.05, "1.2"), row("both", 1.02, "null")];
        let json = format!(r#"{{"rows": [{}]}}"#, rows.join(","));
        let svg = isolation(&serde_json::from_str(&json).unwrap()).unwrap();
        for word in ["small-zone, writes: neither", "&gt; 10000", ">1.05<", "not in time"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(isolation(&IsolationReport { rows: Vec::new() }).is_err());
    }
}
