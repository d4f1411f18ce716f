//! The decisions of ARCHITECTURE.md are short, so that all of them are read; a mechanism has a page of its own in `docs/design`.
//!
//! # The form
//! Under the heading `## Decisions` stands a numbered list. Lines that continue an item are indented. Numbers go up one by
//! one, for other documents name them. A decision has at most [`WORDS_MAX`] words.
//!
//! The index `docs/design/README.md` has a link to every page beside it.

use super::finding::Finding;
use super::sources::Tree;

const DOCUMENT: &str = "ARCHITECTURE.md";
const PAGES: &str = "docs/design/";
const INDEX: &str = "docs/design/README.md";
const RULE: &str = "decisions";
/// What, why and what not fit into this; the rest is mechanism.
const WORDS_MAX: usize = 80;

/// An item of the list.
struct Decision {
    /// From 1.
    line: usize,
    number: usize,
    words: usize,
}

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    if let Some(document) = tree.find(DOCUMENT) {
        let mut fail = |line, message: String| findings.push(Finding::new(DOCUMENT, line, RULE, message));
        let decisions = decisions(&document.text);
        if decisions.is_empty() {
            fail(0, "has no numbered list under `## Decisions`".into());
        }
        for (at, Decision { line, number, words }) in decisions.iter().enumerate() {
            if *words > WORDS_MAX {
                fail(
                    *line,
                    format!(
                        "decision {number} has {words} words, more than {WORDS_MAX}; how it works goes to {PAGES}"
                    ),
                );
            }
            if *number != at + 1 {
                fail(*line, format!("decision {number} should have the number {}", at + 1));
            }
        }
    }
    let index = tree.find(INDEX).map_or("", |index| index.text.as_str());
    for source in &tree.sources {
        if let Some(page) = source.path.strip_prefix(PAGES)
            && source.path != INDEX
            && page.ends_with(".md")
            && !index.contains(&format!("]({page})"))
        {
            findings.push(Finding::new(&source.path, 0, RULE, format!("{INDEX} has no link to it")));
        }
    }
}

fn decisions(text: &str) -> Vec<Decision> {
    let mut found: Vec<Decision> = Vec::new();
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| *line != "## Decisions");
    lines.next();
    let mut inside = false;
    for (at, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        let item = line.split_once(". ").and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
        if let Some((number, rest)) = item {
            found.push(Decision { line: at + 1, number, words: words(rest) });
            inside = true;
        } else if line.starts_with(' ') && inside {
            if let Some(decision) = found.last_mut() {
                decision.words += words(line);
            }
        } else if !line.is_empty() {
            inside = false;
        }
    }
    found
}

/// What has a letter or a digit in it, between spaces.
fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::Source;

    fn messages(list: &str) -> Vec<String> {
        let text = format!(
            "# A\n\n1. {}\n\n## Decisions\n\nText.\n\n{list}\n\n## Errors\n\n9. x\n",
            "w ".repeat(99)
        );
        found(&[(DOCUMENT, &text)])
    }

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree { sources: sources.iter().map(|(path, text)| Source::new(path, text)).collect() };
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn up_to_the_limit() {
        let words = |count: usize| "word ".repeat(count);
        assert!(messages(&format!("1. {}\n2. {}\n   {}", words(80), words(40), words(40))).is_empty());
        let long = messages(&format!("1. x\n2. {}\n   {}- = |\n\n   {}", words(40), words(40), words(1)));
        assert_eq!(long.len(), 1, "{long:?}");
        assert!(long[0].contains("decision 2 has 81 words"), "{long:?}");
    }

    #[test]
    fn numbers_go_up_one_by_one() {
        assert!(messages("1. a\n2. b").is_empty());
        assert_eq!(messages("1. a\n3. b").len(), 1);
        assert_eq!(
            messages("Nothing."),
            ["ARCHITECTURE.md: decisions: has no numbered list under `## Decisions`"]
        );
    }

    #[test]
    fn pages_are_in_the_index() {
        let index = (INDEX, "[a](a.md)");
        assert!(found(&[index, ("docs/design/a.md", "")]).is_empty());
        assert_eq!(found(&[index, ("docs/design/b.md", "")]).len(), 1);
        assert_eq!(found(&[("docs/design/a.md", "")]).len(), 1);
    }
}
