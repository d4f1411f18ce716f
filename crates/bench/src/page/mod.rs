//! A page of what was measured: one file of HTML that needs nothing else, for a phone as for a large screen.

pub(crate) mod axis;
mod figure;
mod heading;
pub(crate) mod html;
mod kinds;
pub mod markdown;
mod naming;
pub(crate) mod numbers;
mod results;
mod section;
mod sources;
mod summary;
mod table;
mod tables;
mod verdict;

use crate::failure::{Failure, Result, While};
use html::Html;
use results::Results;
use std::path::{Path, PathBuf};

/// The page asks for nothing: whatever a result file holds, a browser is to load and run none of it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

#[cfg(test)]
pub(crate) const SMALL: &str = include_str!("small.json");

/// Makes a page, `to`, of the results in the JSON files `from`; tasks of later files replace those of the same name in
/// earlier ones, when they were done on the same kind of filesystem.
///
/// # Errors
///
/// A file cannot be read or is no report, there is no result in any, or `to` is no name for a page or cannot be written.
pub fn make(from: &[PathBuf], to: &Path) -> Result<()> {
    // Otherwise whoever forgets the page's name loses the last file of results.
    if !to.extension().is_some_and(|name| name == "html" || name == "htm") {
        return Err(Failure::bad_input(format!(
            "{}: the page comes last, and its name ends with .html",
            to.display()
        )));
    }
    let page = page(&Results::read(from)?);
    std::fs::write(to, page).doing(|| format!("writing {}", to.display()))
}

fn page(results: &Results) -> String {
    let mut html = Html::default();
    html.doctype();
    html.element("html", &[("lang", "en")], |html| {
        html.element("head", &[], |html| {
            html.empty("meta", &[("charset", "utf-8")]);
            html.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
            html.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
            html.empty("meta", &[("name", "color-scheme"), ("content", "light dark")]);
            // An icon of nothing, or else a browser asks the server for one.
            html.empty("link", &[("rel", "icon"), ("href", "data:,")]);
            html.words("title", &[], "Vellum beside other filesystems");
            html.style(include_str!("style.css"));
        });
        html.element("body", &[], |html| {
            html.element("main", &[], |html| {
                heading::write(html, results);
                summary::write(html, results);
                heading::write_runs(html, results);
                for (number, task) in results.tasks.iter().enumerate() {
                    section::write(html, results, number, task);
                }
            });
        });
    });
    html.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> String {
        page(&results::of(&[SMALL]).unwrap())
    }

    #[test]
    fn a_report_becomes_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let (json, out) = (dir.path().join("r.json"), dir.path().join("out.html"));
        std::fs::write(&json, SMALL).unwrap();
        make(&[json.clone(), json.clone()], &out).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), small());
        assert!(make(std::slice::from_ref(&json), &json).unwrap_err().to_string().contains(".html"));
        assert_eq!(std::fs::read_to_string(&json).unwrap(), SMALL);
        assert!(!make(&[json], &dir.path().join("none/x.html")).unwrap_err().bad_input);
    }

    #[test]
    fn the_heading_says_what_takes_away_from_the_numbers() {
        let page = small();
        for word in [
            "&lt;cpu&gt; &amp; Sons",
            "Linux 6.1",
            "ext4",
            "2026-01-01 00:00:00 UTC",
            ">noisy<",
            ">interrupted<",
            ">missing<",
            "unionfs-fuse: not found; install &lt;unionfs-fuse&gt;",
            "scale 0.5",
            "vellum 0.1.0; ring=&lt;1&gt;",
        ] {
            assert!(page.contains(word), "{word}");
        }
    }

    #[test]
    fn peers_that_nobody_asked_for_are_missing_too() {
        let text =
            SMALL.replace("{\"name\": \"fuse-overlayfs-2\", \"version\": null, \"options\": null}, ", "");
        let page = page(&results::of(&[&text]).unwrap());
        assert!(page.contains("fuse-overlayfs-2: this run was not to compare it."));
    }

    #[test]
    fn of_several_runs_the_table_comes_first() {
        let other = SMALL.replace("open-read", "x").replace("\"cpu\": \"", "\"cpu\": \"B ");
        let page = page(&results::of(&[SMALL, &other]).unwrap());
        let at = |word: &str| page.find(word).unwrap();
        assert!(at("<table") < at("Run 1: ") && at("Run 1: ") < at("Run 2: "));
        assert_eq!(page.matches("<dl").count(), 2);
        let one = small();
        assert!(one.find("<dl").unwrap() < one.find("<table").unwrap() && !one.contains("Run 1"));
        assert_eq!(html::unbalanced(&page), None);
    }

    #[test]
    fn the_page_is_well_formed_and_runs_nothing() {
        let page = small();
        assert_eq!(html::unbalanced(&page), None);
        for word in ["<script", "<img", "<b>bold", "http://", "https://", "NaN", ">inf"] {
            assert!(!page.contains(word), "{word}");
        }
        assert_eq!(page.matches("<section").count(), 5);
        assert_eq!(page.matches("<svg").count(), 5);
    }
}
