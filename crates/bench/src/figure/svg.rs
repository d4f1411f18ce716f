//! A picture as it is being written.

use crate::page::html::escaped;
use std::fmt::Write;

/// Width of a figure, in the SVG's units, which are pixels where nothing is scaled.
pub(super) const WIDTH: f64 = 960.0;

/// On which side of its place a text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Anchor {
    #[default]
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) anchor: Anchor,
    pub(super) colour: &'static str,
}

impl Default for Text {
    fn default() -> Self {
        Self { size: 12.0, bold: false, anchor: Anchor::Start, colour: "#222222" }
    }
}

/// An SVG picture on white.
#[derive(Debug)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">"
        );
        let mut svg = Self(text);
        svg.rect(0.0, 0.0, width, height, "#ffffff");
        svg
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through points, with a mark at each.
    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str) {
        let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.0,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>",
            list.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
        }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, words: &str, look: Text) {
        let anchor = match look.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if look.bold { " font-weight=\"bold\"" } else { "" };
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\" text-anchor=\"{anchor}\" fill=\"{}\"{weight}>{}</text>",
            look.size,
            look.colour,
            escaped(words)
        );
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}
