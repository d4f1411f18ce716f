//! Documents have short sentences: at most [`WORDS_MAX`] words on average in each page.
//!
//! Counted are paragraphs and list items. Code, tables, headings, and the `[test: ...]` of a promise are left out. A
//! sentence ends with a full stop, a question mark or an exclamation mark, and at the end of its paragraph or item.

use super::finding::Finding;
use super::sources::{Source, Tree};

const RULE: &str = "sentences";
/// A technical text with longer sentences than this on average has to be read twice.
const WORDS_MAX: usize = 20;
/// The pages: a path, or a folder with everything beneath it.
const PAGES: &[&str] = &[
    "README.md",
    "SEMANTICS.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/design/",
    "docs/src/",
];
/// Pages that have longer sentences still. A page that has been rewritten leaves this list; none is added.
const EXEMPT: &[&str] = &[];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in tree.sources.iter().filter(|source| is_page(&source.path)) {
        let Count { words, sentences } = count(source);
        let is_long = words > WORDS_MAX * sentences;
        let message = match (is_long, EXEMPT.contains(&source.path.as_str())) {
            (true, false) => {
                let average = words.div_ceil(sentences.max(1));
                format!("sentences of {average} words on average, more than {WORDS_MAX}: split them")
            }
            (false, true) => {
                "has short sentences: take it out of EXEMPT in xtask/src/tidy/sentences.rs".into()
            }
            _ => continue,
        };
        findings.push(Finding::new(&source.path, 0, RULE, message));
    }
}

fn is_page(path: &str) -> bool {
    let is_within = |page: &&str| path == *page || page.ends_with('/') && path.starts_with(*page);
    path.ends_with(".md") && PAGES.iter().any(is_within)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    words: usize,
    sentences: usize,
}

fn count(source: &Source) -> Count {
    let mut count = Count::default();
    for block in blocks(&source.text) {
        let mut inside = false;
        for word in without_tests(&block).split_whitespace() {
            let has_text = word.contains(char::is_alphanumeric);
            count.words += usize::from(has_text);
            inside |= has_text;
            if inside && ends_sentence(word) {
                count.sentences += 1;
                inside = false;
            }
        }
        count.sentences += usize::from(inside);
    }
    count
}

fn ends_sentence(word: &str) -> bool {
    let word = word.trim_end_matches(['"', ')']);
    let word = word.strip_suffix("**").unwrap_or(word);
    !word.ends_with("..") && word.ends_with(['.', '!', '?'])
}

/// Paragraphs and list items, each without the mark of its list.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let (mut fenced, mut in_list, mut after_empty) = (false, false, true);
    for line in text.lines() {
        let content = line.trim_start();
        if content.starts_with("```") {
            fenced = !fenced;
        }
        // Four spaces after an empty line are code; in an item of a list, six.
        let is_code = fenced || content.starts_with("```") || after_code(line, after_empty, in_list);
        let is_empty = content.is_empty() || content.starts_with(['|', '#']) || is_code;
        // The line after one of code is code, too.
        after_empty = is_empty;
        if is_empty {
            // A heading ends a list.
            in_list &= !line.starts_with('#');
            blocks.push(String::new());
            continue;
        }
        let (is_item, rest) = without_mark(content);
        if is_item {
            blocks.push(String::new());
        }
        in_list = is_item || in_list && line.starts_with(' ');
        if let Some(block) = blocks.last_mut() {
            block.push_str(rest);
            block.push('\n');
        }
    }
    blocks
}

fn after_code(line: &str, after_empty: bool, in_list: bool) -> bool {
    after_empty && line.starts_with(if in_list { "      " } else { "    " })
}

/// Whether a line begins an item of a list, and what stands after the mark.
fn without_mark(line: &str) -> (bool, &str) {
    let Some((mark, rest)) = line.split_once(' ') else { return (false, line) };
    let is_number = mark.strip_suffix('.').is_some_and(|number| number.parse::<usize>().is_ok());
    if is_number || matches!(mark, "-" | "*") { (true, rest) } else { (false, line) }
}

/// A text without what names the tests of a promise.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[test:") {
        kept.push_str(before);
        rest = after.split_once(']').map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> (usize, usize) {
        let Count { words, sentences } = count(&Source::new("a.md", text));
        (words, sentences)
    }

    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Tree { sources: vec![Source::new(path, text)] }, &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn sentences_end_with_marks_paragraphs_and_items() {
        assert_eq!(counted("One two. Three (four.) **Five.**\nSix\n\nSeven"), (7, 5));
        assert_eq!(counted("- One\n- Two three\n  four.\n1. Five\n12. Six"), (6, 4));
        assert_eq!(counted("Linux 6.18 has `user.*`, and more, ... of it: x"), (9, 1));
    }

    #[test]
    fn code_tables_headings_and_tests_are_left_out() {
        assert_eq!(
            counted("# Head of it\n\n| a b c |\n\n```\nx y\n```\n\n    make test\n    make it\n\nOne."),
            (1, 1)
        );
        assert_eq!(
            counted("- One. [test: a/b.rs::c, d/e.rs::f] Two.\n  [test: a.rs::b,\n  c.rs::d]"),
            (2, 2)
        );
        assert_eq!(counted("- One\n\n    two"), (2, 2));
        assert_eq!(counted("- One\n\n      code\n\n  two"), (2, 2));
        assert_eq!(counted("- One\n\n# Head\n\n    code"), (1, 1));
    }

    #[test]
    fn the_average_of_a_page_has_a_limit() {
        let sentence = |words: usize| format!("{}end. ", "word ".repeat(words - 1));
        let page = "docs/design/a.md";
        assert_eq!(messages(page, &(sentence(30) + &sentence(10))), [] as [&str; 0]);
        assert_eq!(messages(page, &(sentence(31) + &sentence(10))).len(), 1);
        assert_eq!(messages("docs/src/a/b.md", &sentence(21)).len(), 1);
        assert_eq!(messages("CHANGELOG.md", &sentence(99)), [] as [&str; 0]);
        // The list of exceptions shrinks.
        for page in EXEMPT {
            assert_eq!(messages(page, &sentence(21)), [] as [&str; 0]);
            assert_eq!(messages(page, &sentence(20)).len(), 1);
        }
    }
}
