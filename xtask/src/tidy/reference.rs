//! The reference for users is complete.
//!
//! The pages of options and commands and the manual are what `cargo xtask reference` writes. The table of contents has
//! every page of the book. Each message that the page of remedies quotes is one of the program's.

use super::finding::Finding;
use super::sources::Tree;
use crate::reference::{ENVIRONMENT, files};

const CRATES: &str = "crates/";
const BOOK: &str = "docs/src/";
const CONTENTS: &str = "docs/src/SUMMARY.md";
const REMEDIES: &str = "docs/src/guide/troubleshooting.md";
const RULE: &str = "reference";
/// A shorter part of a message is in every source.
const PART_MIN: usize = 12;

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut fail = |path: &str, message: String| findings.push(Finding::new(path, 0, RULE, message));
    let text = |path: &str| tree.find(path).map(|source| source.text.as_str());
    if let Some(environment) = text(ENVIRONMENT) {
        for (path, made) in files(environment) {
            if text(path) != Some(made.as_str()) {
                fail(path, "differs from the program's definitions; run cargo xtask reference".into());
            }
        }
    }
    let contents = text(CONTENTS).unwrap_or_default();
    for page in tree.sources.iter().filter_map(|source| source.path.strip_prefix(BOOK)) {
        if page.ends_with(".md")
            && format!("{BOOK}{page}") != CONTENTS
            && !contents.contains(&format!("]({page})"))
        {
            fail(CONTENTS, format!("{page} is missing"));
        }
    }
    for part in quoted(text(REMEDIES).unwrap_or_default()) {
        let is_said = |text: &str| text.contains(part);
        if !tree.sources.iter().any(|source| source.path.starts_with(CRATES) && is_said(&source.text)) {
            fail(REMEDIES, format!("the program does not say `{part}`"));
        }
    }
}

/// The parts of messages in the first column of tables that are the same whatever the message is about.
fn quoted(page: &str) -> Vec<&str> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let parts = cells.flat_map(|(message, _)| message.split('\u{2026}'));
    parts.map(|part| part.trim_matches([' ', ':', ';', ','])).filter(|part| part.len() >= PART_MIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::Source;

    fn messages(sources: Vec<Source>) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn generated_pages_match_the_sources() {
        let environment = "# Environment\n\n## Signals\n\nNone.\n";
        let tree = |change: &str| {
            let made = files(environment).map(|(path, text)| Source::new(path, &text.replace(change, "x")));
            let contents = "(reference/options.md) (reference/commands.md) (reference/environment.md)";
            let others = [(ENVIRONMENT, environment), (CONTENTS, &contents.replace('(', "[a]("))];
            made.into_iter().chain(others.map(|(path, text)| Source::new(path, text))).collect()
        };
        assert_eq!(messages(tree("\u{0}")), Vec::<String>::new());
        // In an option, a command, and both with the manual.
        for (change, count) in [("no_writeback_cache", 2), ("--cpuset-cpus", 1), ("vellum pool create", 2)] {
            assert_eq!(messages(tree(change)).len(), count, "{change}");
        }
    }

    #[test]
    fn missing_reference_entries_are_named() {
        let remedies = |said: &str| {
            vec![
                Source::new("crates/vellum/src/cli.rs", "fn f() { refuse(\"it is in use; end it\") }"),
                Source::new(
                    REMEDIES,
                    &format!("| `\u{2026}: {said}` | Wait. |\n| ENOSPC | `whatever it is` |"),
                ),
                Source::new(CONTENTS, "[c](guide/troubleshooting.md)"),
            ]
        };
        assert_eq!(messages(remedies("it is in use; end it")), Vec::<String>::new());
        assert!(messages(remedies("it is not in use"))[0].contains("it is not in use"));
        assert!(messages(vec![Source::new("docs/src/a.md", "")])[0].contains("a.md is missing"));
    }
}
