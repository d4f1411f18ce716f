//! Figures of a run, as SVG and PNG: how long the first write to a file takes, experiments beside the peers, and zoned devices.

mod bars;
mod experiments;
mod lines;
mod results;
mod subjects;
mod svg;
mod zoned;

use crate::failure::{Failure, Result, While};
use bars::Bars;
pub use experiments::Of;
use results::Results;
use std::path::Path;
use std::sync::Arc;
use subjects::{LOOKS, Look};
use svg::{Svg, Text, WIDTH};

/// Where the legend begins, and the height of its lines.
const LEGEND: f64 = 52.0;
const LEGEND_LINE: f64 = 22.0;
/// Pixels of the PNG for a unit of the SVG.
const PNG_SCALE: f32 = 2.0;

/// Makes a figure of the results in the JSON file `from`, as `to`.svg and `to`.png.
///
/// # Errors
///
/// The file cannot be read or is no report, it has no results of what is to be drawn, or the pictures cannot be written.
pub fn make(from: &Path, to: &Path, of: Of) -> Result<()> {
    let command = match of {
        Of::Amplification => "store",
        Of::Isolation => "isolation",
        _ => "compare",
    };
    let named =
        || format!("{}: give a file that `vellum-bench {command} --json` has written", from.display());
    let text = std::fs::read_to_string(from).doing(named)?;
    let bad = |error: serde_json::Error| Failure::bad_input(format!("{}: {error}", named()));
    let drawn = match of {
        Of::Amplification => zoned::amplification(&serde_json::from_str(&text).map_err(bad)?),
        Of::Isolation => zoned::isolation(&serde_json::from_str(&text).map_err(bad)?),
        _ => draw(&serde_json::from_str(&text).map_err(bad)?, of),
    };
    let drawing = drawn.map_err(|error| Failure::bad_input(format!("{}: {error}", from.display())))?;
    let svg = to.with_extension("svg");
    std::fs::write(&svg, &drawing).doing(|| format!("writing {}", svg.display()))?;
    let png = to.with_extension("png");
    rasterise(&drawing, &png).doing(|| png.display().to_string())
}

fn draw(results: &Results, of: Of) -> std::result::Result<String, &'static str> {
    let lines = of == Of::Blocks;
    let tasks = || {
        let lines = lines::tasks().filter(move |_| lines);
        lines.chain(of.groups().iter().flat_map(|group| group.rows).map(|(task, _)| *task))
    };
    let subjects: Vec<&Look> = LOOKS
        .iter()
        .filter(|look| of.shows(look.subject) && results.has_subject(look.subject, tasks()))
        .collect();
    let bars = Bars::of(results, of.groups(), &subjects);
    if !lines && (bars.is_empty() || subjects.is_empty()) {
        return Err(of.nothing());
    }
    let (places, legend_height) = legend(&subjects);
    let top = LEGEND + legend_height + 22.0;
    let below = top + if lines { lines::HEIGHT + 30.0 } else { 0.0 };
    let height = below + bars.height() + 44.0;
    let mut svg = Svg::new(WIDTH, height);
    svg.text(24.0, 34.0, of.title(), Text { size: 20.0, bold: true, ..Text::default() });
    for (look, (x, y)) in subjects.iter().zip(places) {
        svg.rect(x, y, 12.0, 12.0, look.colour);
        svg.text(x + 18.0, y + 11.0, look.title, Text::default());
    }
    if lines {
        lines::draw(&mut svg, results, &subjects, top).map_err(|()| of.nothing())?;
    }
    bars.draw(&mut svg, below);
    let note = Text { size: 11.0, colour: "#666666", ..Text::default() };
    svg.text(24.0, height - 16.0, &results.conditions(), note);
    Ok(svg.finish())
}

/// Where the subjects are named, in lines as many as it takes, and the height of that.
fn legend(subjects: &[&Look]) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (24.0, LEGEND);
    let mut places = Vec::new();
    for look in subjects {
        let width = 40.0 + 7.0 * look.title.len() as f64;
        if x + width > WIDTH {
            (x, y) = (24.0, y + LEGEND_LINE);
        }
        places.push((x, y));
        x += width;
    }
    (places, y + LEGEND_LINE - LEGEND)
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
        make(&json, &dir.path().join("out"), Of::Blocks).unwrap();
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
            assert!(make(&json, &dir.path().join("out"), Of::Blocks).unwrap_err().bad_input, "{text}");
        }
        let empty = SMALL.replace("block-", "blocks-");
        std::fs::write(&json, empty).unwrap();
        let error = make(&json, &dir.path().join("out"), Of::Blocks).unwrap_err().to_string();
        assert!(error.contains("block-first"), "{error}");
        assert!(!dir.path().join("out.svg").exists());
    }

    fn drawn(of: Of, text: &str) -> std::result::Result<String, &'static str> {
        draw(&serde_json::from_str(text).unwrap(), of)
    }

    #[test]
    fn bars_are_on_the_side_of_their_ratio() {
        let svg = drawn(Of::Everyday, SMALL).unwrap();
        for word in ["Everyday work", "grep -r", "kernel overlayfs on XFS", ">0.0054<", ">12<", "no result"] {
            assert!(svg.contains(word), "{word}");
        }
        // Neither a host beside unions, nor whom nobody measured, nor other experiments.
        for word in ["the host", "passthrough", "block", "DRBL", "NaN", "inf"] {
            assert!(!svg.contains(word), "{word}");
        }
        let colour = |subject: &str| LOOKS.iter().find(|look| look.subject == subject).unwrap().colour;
        let of = |subject: &str| -> Vec<f64> {
            let fill = format!("fill=\"{}\"", colour(subject));
            let rects = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(&fill));
            let x = |line: &str| line.split('"').nth(1).unwrap().parse().unwrap();
            // The first is that of the legend.
            rects.skip(1).map(x).collect()
        };
        let (own, peer) = (of("vellum-cached"), of("unionfs-fuse"));
        assert_eq!((own.len(), peer.len()), (2, 1));
        assert!(own[1] < own[0] && own[0] == peer[0], "{own:?} {peer:?}");
    }

    #[test]
    fn sources_are_beside_the_host() {
        let svg = drawn(Of::Sources, SMALL).unwrap();
        for word in ["the host", "Enhanced OverlayFS", "2 processes read a block", "Vellum passthrough"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!svg.contains("Danaus") && !svg.contains("Vellum cached"));
        for (of, hint) in
            [(Of::Sources, "s1,s2"), (Of::Everyday, "everyday"), (Of::Work, "work"), (Of::Blocks, "blocks")]
        {
            let none = SMALL.replace("\"name\": \"", "\"name\": \"no-");
            assert!(drawn(of, &none).unwrap_err().contains(hint), "{of:?}");
        }
    }

    #[test]
    fn a_long_legend_takes_several_lines() {
        let all: Vec<&Look> = LOOKS.iter().collect();
        let (places, height) = legend(&all);
        assert!(places.iter().zip(&all).all(|((x, _), look)| x + 7.0 * (look.title.len() as f64) < WIDTH));
        assert_eq!((places.len(), height), (all.len(), 3.0 * LEGEND_LINE));
    }
}
