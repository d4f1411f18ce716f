//! The documents for users are short to read: the README as a whole, and the sentences of each page on average.
//!
//! A sentence ends with a full stop, a question or exclamation mark, or with its paragraph or list item. Headings,
//! tables, HTML comments, and code between fences or indented by four spaces do not count. A span of code and a link
//! are as many words as their text.

use super::finding::Finding;
use super::sources::{Source, Tree};

const README: &str = "README.md";
/// Two pages.
const README_WORDS_MAX: usize = 700;
const PAGES: &[&str] = &[README, "docs/src/"];
const SENTENCE_WORDS_MAX: usize = 20;
const RULE: &str = "prose";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let is_page = |source: &&Source| {
        source.path.ends_with(".md") && PAGES.iter().any(|page| source.path.starts_with(page))
    };
    for source in tree.sources.iter().filter(is_page) {
        let mut fail = |message: String| findings.push(Finding::new(&source.path, 0, RULE, message));
        let words = source.text.split_whitespace().count();
        if source.path == README && words > README_WORDS_MAX {
            fail(format!("{words} words, more than {README_WORDS_MAX}; the rest belongs to docs/src"));
        }
        let Count { sentences, words } = count(&source.text);
        if words > sentences * SENTENCE_WORDS_MAX {
            let mean = words.checked_div(sentences).unwrap_or_default();
            fail(format!(
                "{mean} words in a sentence on average, more than {SENTENCE_WORDS_MAX}; make two of the longest"
            ));
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    sentences: usize,
    words: usize,
}

fn count(text: &str) -> Count {
    let mut found = Count::default();
    let mut fenced = false;
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        let trimmed = line.trim_start();
        let is_fence = trimmed.starts_with("```");
        fenced ^= is_fence;
        let is_code = fenced || is_fence || line.starts_with("    ") && paragraph.is_empty();
        let is_text = !is_code && !["#", "|", "<!--"].iter().any(|mark| trimmed.starts_with(mark));
        let begins = !is_text || trimmed.is_empty() || item(trimmed).is_some();
        if begins {
            found.add(&paragraph);
            paragraph.clear();
        }
        if is_text {
            paragraph.push_str(item(trimmed).unwrap_or(trimmed));
            paragraph.push(' ');
            if trimmed.is_empty() {
                paragraph.clear();
            }
        }
    }
    found
}

/// The text of a list item.
fn item(line: &str) -> Option<&str> {
    let numbered = || line.split_once(". ").filter(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()));
    line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or_else(|| numbered().map(|(_, rest)| rest))
}

impl Count {
    /// The sentences of a paragraph.
    fn add(&mut self, paragraph: &str) {
        let mut words = 0;
        for word in paragraph.split_whitespace() {
            words += usize::from(word.contains(char::is_alphanumeric));
            let bare = word.trim_end_matches(['*', '_', ')', '"', '`']);
            // A full stop within `e.g.` or a number ends nothing.
            let ends = bare.ends_with(['.', '?', '!']) && !bare.ends_with("e.g.");
            if ends && words > 0 {
                *self = Self { sentences: self.sentences + 1, words: self.words + words };
                words = 0;
            }
        }
        if words > 0 {
            *self = Self { sentences: self.sentences + 1, words: self.words + words };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Tree { sources: vec![Source::new(path, text)] }, &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn sentences_are_counted() {
        let text = "# A heading\n\nOne two three. Four\nfive six.\n\n- Seven `eight`.\n- Nine\n\n| not | this |\n\n    nor this\n\n```\nnor this\n```\n\
            <!-- nor this -->\n1. Ten [eleven](x.md).\n\n   Twelve, e.g. this one.\n";
        assert_eq!(count(text), Count { sentences: 6, words: 15 });
    }

    #[test]
    fn long_sentences_are_found() {
        let long = "word ".repeat(21);
        assert_eq!(messages("docs/src/guide/a.md", &long).len(), 1);
        assert!(messages("docs/src/guide/a.md", &format!("{long}.\n\nA short one.")).is_empty());
        assert!(messages("docs/design/a.md", &long).is_empty());
    }

    #[test]
    fn the_readme_is_short() {
        assert!(messages(README, &"A word. ".repeat(350)).is_empty());
        assert_eq!(messages(README, &"A word. ".repeat(351)).len(), 1);
    }
}
