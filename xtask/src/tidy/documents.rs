//! The documents that every change has to keep up.

use super::finding::Finding;
use super::sources::Tree;

const README: &str = "README.md";
/// Two pages.
const README_WORDS_MAX: usize = 700;

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let words = tree.find(README).map_or(0, |readme| readme.text.split_whitespace().count());
    if words > README_WORDS_MAX {
        let message = format!("{words} words, more than {README_WORDS_MAX}; the rest belongs to docs/src");
        findings.push(Finding::new(README, 0, "readme", message));
    }
    let mut fail = |message: &str| findings.push(Finding::new("CHANGELOG.md", 0, "changelog", message));
    match tree.find("CHANGELOG.md") {
        None => fail("is missing"),
        Some(changelog) => match unreleased(&changelog.text) {
            None => fail("has no section `## Unreleased`"),
            Some((text, released)) if text.trim().is_empty() && !released => {
                fail("nothing stands under `## Unreleased`, nor a release below it");
            }
            Some(_) => {}
        },
    }
}

/// The text between the heading `Unreleased` and the next of its rank, and whether that one is a release with its date.
fn unreleased(text: &str) -> Option<(String, bool)> {
    let mut lines = text.lines();
    lines.find(|line| {
        line.strip_prefix("## ").is_some_and(|title| {
            title.trim().trim_start_matches('[').to_ascii_lowercase().starts_with("unreleased")
        })
    })?;
    let mut text = String::new();
    for line in lines {
        if let Some(title) = line.strip_prefix("## ") {
            let is_dated = title.split_whitespace().any(|word| word.matches('-').count() == 2);
            return Some((text, is_dated));
        }
        text.push_str(line);
        text.push('\n');
    }
    Some((text, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::Source;

    fn messages(changelog: Option<&str>) -> Vec<String> {
        let sources = changelog.map(|text| Source::new("CHANGELOG.md", text)).into_iter().collect();
        let mut findings = Vec::new();
        check(&Tree { sources }, &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn the_readme_is_short() {
        let changelog = || Source::new("CHANGELOG.md", "## Unreleased\n- x\n");
        for (words, failures) in [(700, 0), (701, 1)] {
            let sources = vec![Source::new(README, &"word ".repeat(words)), changelog()];
            let mut findings = Vec::new();
            check(&Tree { sources }, &mut findings);
            assert_eq!(findings.len(), failures, "{findings:?}");
        }
    }

    #[test]
    fn changelogs() {
        assert!(messages(Some("# Changelog\n## Unreleased\n- x\n## 1.0\n")).is_empty());
        assert!(messages(Some("## [Unreleased]\n### Added\n- x\n")).is_empty());
        assert_eq!(messages(None), ["is missing"]);
        assert_eq!(messages(Some("# Changelog\n## 1.0\n- x\n")).len(), 1);
        assert_eq!(messages(Some("## Unreleased\n\n## 1.0\n- x\n")).len(), 1);
        assert_eq!(messages(Some("## Unreleased\n\n")).len(), 1);
        assert!(messages(Some("## Unreleased\n\n## 1.0 (2026-11-28)\n- x\n")).is_empty());
        assert!(messages(Some("## Unreleased\n\n## [1.0] - 2026-11-28\n- x\n")).is_empty());
    }
}
