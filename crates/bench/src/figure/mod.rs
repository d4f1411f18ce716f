//! Figures of a run, as SVG and PNG: how long the first write to a file takes, and the other experiments beside the peers.

mod axis;
mod bars;
mod lines;
mod results;
mod svg;

use crate::failure::{Failure, Result, While};
use results::Results;
use std::path::Path;
use std::sync::Arc;
use svg::{Svg, Text};

/// Width of a figure, in the SVG's units, which are pixels where nothing is scaled.
const WIDTH: f64 = 960.0;
/// Height of the lines, the axis' names included.
const LINES_HEIGHT: f64 = 330.0;
/// Pixels of the PNG for a unit of the SVG.
const PNG_SCALE: f32 = 2.0;

/// What a subject looks like everywhere: its colour (distinguishable without red and green), and its name in the legend.
const LOOKS: &[(&str, &str, &str)] = &[
    ("overlayfs", "#7f7f7f", "kernel overlayfs"),
    ("fuse-overlayfs", "#d9a441", "fuse-overlayfs 1.10"),
    ("fuse-overlayfs-2", "#b5651d", "fuse-overlayfs 2.0"),
    ("unionfs-fuse", "#b07aa1", "unionfs-fuse"),
    ("vellum-cached", "#0b6fb8", "Vellum cached"),
    ("vellum-passthrough", "#59b3e6", "Vellum passthrough"),
];

/// Makes the figure of the results in the JSON file `from`, as `to`.svg and `to`.png.
///
/// # Errors
///
/// The file cannot be read or is no report, it has no results of experiments on blocks, or the pictures cannot be written.
pub fn make(from: &Path, to: &Path) -> Result<()> {
    let named = || format!("{}: give a file that `vellum-bench compare --json` has written", from.display());
    let text = std::fs::read_to_string(from).doing(named)?;
    let results: Results =
        serde_json::from_str(&text).map_err(|error| Failure::bad_input(format!("{}: {error}", named())))?;
    let drawing =
        draw(&results).map_err(|error| Failure::bad_input(format!("{}: {error}", from.display())))?;
    let svg = to.with_extension("svg");
    std::fs::write(&svg, &drawing).doing(|| format!("writing {}", svg.display()))?;
    let png = to.with_extension("png");
    rasterise(&drawing, &png).map_err(|error| Failure::new(format!("{}: {error}", png.display())))
}

fn draw(results: &Results) -> std::result::Result<String, &'static str> {
    let subjects: Vec<_> = LOOKS.iter().filter(|(name, ..)| results.has_subject(name)).collect();
    let rows = bars::rows(results);
    let height = 96.0 + LINES_HEIGHT + 30.0 + bars::height(rows.len(), subjects.len()) + 44.0;
    let mut svg = Svg::new(WIDTH, height);
    svg.text(
        24.0,
        34.0,
        "Writing to a large file of a lower layer",
        Text { size: 20.0, bold: true, ..Text::default() },
    );
    legend(&mut svg, &subjects);
    lines::draw(&mut svg, results, 96.0)?;
    bars::draw(&mut svg, results, &rows, 96.0 + LINES_HEIGHT + 30.0);
    let note = Text { size: 11.0, colour: "#666666", ..Text::default() };
    svg.text(24.0, height - 16.0, &results.conditions(), note);
    Ok(svg.finish())
}

fn legend(svg: &mut Svg, subjects: &[&(&str, &str, &str)]) {
    let mut x = 24.0;
    for (_, colour, title) in subjects {
        svg.rect(x, 52.0, 12.0, 12.0, colour);
        svg.text(x + 18.0, 63.0, title, Text::default());
        x += 40.0 + 7.0 * title.len() as f64;
    }
}

/// The look of a subject.
fn colour_of(subject: &str) -> &'static str {
    LOOKS.iter().find(|(name, ..)| *name == subject).map_or("#000000", |(_, colour, _)| colour)
}

fn rasterise(drawing: &str, to: &Path) -> std::result::Result<(), String> {
    let mut fonts = resvg::usvg::fontdb::Database::new();
    fonts.load_system_fonts();
    if fonts.is_empty() {
        return Err("no font is installed, and the picture has words in it; install fonts-dejavu-core".into());
    }
    let options = resvg::usvg::Options { fontdb: Arc::new(fonts), ..resvg::usvg::Options::default() };
    let tree = resvg::usvg::Tree::from_str(drawing, &options).map_err(|error| error.to_string())?;
    let pixels = tree.size().to_int_size().scale_by(PNG_SCALE).ok_or("the picture is too large")?;
    let mut map =
        resvg::tiny_skia::Pixmap::new(pixels.width(), pixels.height()).ok_or("the picture is too large")?;
    let scale = resvg::tiny_skia::Transform::from_scale(PNG_SCALE, PNG_SCALE);
    resvg::render(&tree, scale, &mut map.as_mut());
    map.save_png(to).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = include_str!("small.json");

    #[test]
    fn a_report_becomes_a_picture() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("r.json");
        std::fs::write(&json, SMALL).unwrap();
        make(&json, &dir.path().join("out")).unwrap();
        let svg = std::fs::read_to_string(dir.path().join("out.svg")).unwrap();
        for word in ["Vellum cached", "kernel overlayfs", "10 GiB", "second write, same block", "&lt;cpu&gt;"]
        {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let png = std::fs::read(dir.path().join("out.png")).unwrap();
        assert_eq!(png.get(..4), Some(&b"\x89PNG"[..]));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("r.json");
        for text in ["", "{}", "[1]", r#"{"machine":{},"tasks":[]}"#] {
            std::fs::write(&json, text).unwrap();
            assert!(make(&json, &dir.path().join("out")).unwrap_err().bad_input, "{text}");
        }
        let empty = SMALL.replace("block-", "blocks-");
        std::fs::write(&json, empty).unwrap();
        let error = make(&json, &dir.path().join("out")).unwrap_err().to_string();
        assert!(error.contains("block-first"), "{error}");
        assert!(!dir.path().join("out.svg").exists());
    }
}
