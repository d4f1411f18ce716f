//! Links between the documents of this tree lead somewhere: to a file, and to a heading in it where they name one. And the
//! documents of how it is built name files and folders that are there.
//!
//! Only links to `.md` files and to headings are looked at, and code between fences is not. A path is text between backticks that
//! begins with a folder of [`FOLDERS`]; `{a,b}` in it stands for both. In capitals stands what a reader is to put in, and a line that says
//! `planned` may name what is not there.

use super::finding::Finding;
use super::sources::{Source, Tree};

const RULE: &str = "links";
/// The documents of the tree as it is. The others tell of the past.
const BUILT: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/design/", "docs/src/"];
const FOLDERS: &[&str] = &["crates/", "docs/", "fuzz/", "scripts/", "tests/", "xtask/"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.sources.iter().filter(|source| source.path.ends_with(".md")) {
        for (line, target) in targets(&source.text) {
            let mut fail = |message: String| findings.push(Finding::new(&source.path, line, RULE, message));
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { source.path.clone() } else { relative_to(&source.path, file) };
            if !path.ends_with(".md") || target.contains("://") {
                continue;
            }
            match tree.find(&path) {
                None => fail(format!("{target}: there is no file {path}")),
                Some(found) if !heading.is_empty() && !has_heading(found, heading) => {
                    fail(format!("{target}: {path} has no such heading"));
                }
                Some(_) => {}
            }
        }
        if BUILT.iter().any(|built| source.path.starts_with(built)) {
            check_paths(tree, source, findings);
        }
    }
}

fn check_paths(tree: &Tree, source: &Source, findings: &mut Vec<Finding>) {
    for (line, text) in text_lines(&source.text).filter(|(_, text)| !text.contains("planned")) {
        let spans = text.split('`').skip(1).step_by(2);
        let paths = spans.filter(|span| FOLDERS.iter().any(|folder| span.starts_with(folder)));
        for path in paths.flat_map(expanded).filter(|path| !path.contains(char::is_uppercase)) {
            let folder = format!("{}/", path.trim_end_matches('/'));
            if !tree.sources.iter().any(|known| known.path == path || known.path.starts_with(&folder)) {
                findings.push(Finding::new(&source.path, line, RULE, format!("there is no {path}")));
            }
        }
    }
}

/// The paths that `a/{b,c}` stands for.
fn expanded(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (names, after))) = parts else { return vec![path.to_owned()] };
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}

/// The lines that are text, from 1.
fn text_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((at + 1, line))
    })
}

/// What links in a text lead to.
fn targets(text: &str) -> Vec<(usize, &str)> {
    text_lines(text)
        .flat_map(|(line, text)| {
            let ends = text.match_indices("](").filter_map(move |(at, found)| {
                let rest = text.get(at + found.len()..)?;
                rest.split_once(')').map(|(target, _)| target)
            });
            ends.map(move |target| (line, target))
        })
        .collect()
}

/// The path of a file that is named relative to the document at `path`.
fn relative_to(path: &str, file: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a document has a heading with that anchor, as GitHub makes them.
fn has_heading(source: &Source, anchor: &str) -> bool {
    text_lines(&source.text).any(|(_, line)| {
        let title = line.trim_start_matches('#');
        let is_heading = title.len() < line.len() && title.starts_with(' ');
        is_heading && anchor_of(title) == anchor
    })
}

fn anchor_of(title: &str) -> String {
    let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let other = "# Other\n\n## The kernel's `own` things, 2\n\n```\n## Fenced\n```\n";
        let sources = vec![Source::new("docs/design/a.md", text), Source::new("docs/b.md", other)];
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn valid_links_pass() {
        let good = "# A\n[b](../b.md) and [h](../b.md#the-kernels-own-things-2), [i](#a), [w](https://x.org/no.md), [p](no.png)\n\
            ```\n[no](no.md)\n```\n";
        assert!(messages(good).is_empty(), "{:?}", messages(good));
    }

    #[test]
    fn broken_links_are_found() {
        assert_eq!(
            messages("[b](b.md)"),
            ["docs/design/a.md:1: links: b.md: there is no file docs/design/b.md"]
        );
        for bad in ["[b](../b.md#no)", "[b](../b.md#fenced)", "[b](#no)", "[x](../b.md) [b](../c.md)"] {
            assert_eq!(messages(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn paths_of_the_tree() {
        let good = "`docs/b.md`, `docs/`, `docs/{b,design/a}.md`, `docs/NAME/x.rs`, `x/y.rs`\n`crates/z.rs` is planned";
        assert!(messages(good).is_empty(), "{:?}", messages(good));
        for bad in ["`docs/c.md`", "`docs/{b,c}.md`", "`docs/des`", "`crates/z`"] {
            assert_eq!(messages(bad).len(), 1, "{bad}");
        }
        // A changelog may name what there was.
        let sources = vec![Source::new("CHANGELOG.md", "`docs/c.md`")];
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        assert_eq!(findings, []);
    }
}
