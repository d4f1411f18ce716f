//! SEMANTICS.md is executable: each promise names the tests that hold it.
//!
//! # The form of SEMANTICS.md
//! A list item that begins with a dash in the first column is a promise (or a documented deviation, which is a
//! promise too). Somewhere in it, usually at its end, it names one or more tests:
//!
//! ```text
//! - st_ino of a file stays the same when it is copied up, and over a remount.
//!   [test: tests/tests/inodes.rs::ino_survives_copy_up, tests/tests/inodes.rs::ino_survives_remount]
//! ```
//!
//! The path is that of the file from the root of the source tree, the name that of a function in it with an attribute
//! `#[test]` (or another whose name has `test` in it), inside a macro such as `proptest!` too, or a string literal of
//! exactly that text, for harnesses that name their cases by strings. In files that are not Rust, the name has to
//! occur as a word. Lines that continue an item are indented; indented items belong to the item above them. Lists
//! that are no promises begin with `*` or a number; code between fences is not looked at.
//!
//! SECURITY.md has no promises of that form. The tests that it names have to exist all the same.

use super::finding::Finding;
use super::sources::{Source, Tree};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::str::FromStr;

const DOCUMENT: &str = "SEMANTICS.md";
const SECURITY: &str = "SECURITY.md";
const RULE: &str = "semantics";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(document) = tree.find(DOCUMENT) else {
        findings.push(Finding::new(DOCUMENT, 0, RULE, "is missing"));
        return;
    };
    for promise in promises(&document.text) {
        if promise.tests().is_empty() {
            let message = "a promise without [test: FILE::NAME]";
            findings.push(Finding::new(DOCUMENT, promise.line, RULE, message));
        }
        check_tests(tree, DOCUMENT, &promise, findings);
    }
    for promise in tree.find(SECURITY).map_or_else(Vec::new, |document| paragraphs(&document.text)) {
        check_tests(tree, SECURITY, &promise, findings);
    }
}

fn check_tests(tree: &Tree, document: &str, promise: &Promise, findings: &mut Vec<Finding>) {
    for test in promise.tests() {
        let mut fail = |message: String| findings.push(Finding::new(document, promise.line, RULE, message));
        let Some((path, name)) = test.rsplit_once("::") else {
            fail(format!("[test: {test}]: write FILE::NAME"));
            continue;
        };
        match tree.find(path) {
            None => fail(format!("[test: {test}]: there is no file {path}")),
            Some(source) if !has_test(source, name) => {
                fail(format!("[test: {test}]: {path} has no test {name}"))
            }
            Some(_) => {}
        }
    }
}

/// The parts of a text between empty lines, of whatever form.
fn paragraphs(text: &str) -> Vec<Promise> {
    let mut paragraphs: Vec<Promise> = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        match paragraphs.last_mut() {
            Some(paragraph) if inside => {
                paragraph.text.push('\n');
                paragraph.text.push_str(line);
            }
            _ => paragraphs.push(Promise { line: number + 1, text: line.to_owned() }),
        }
        inside = !line.trim().is_empty();
    }
    paragraphs
}

struct Promise {
    /// From 1.
    line: usize,
    text: String,
}

impl Promise {
    /// What its `[test: ...]` name.
    fn tests(&self) -> Vec<&str> {
        let mut tests = Vec::new();
        let mut rest = self.text.as_str();
        while let Some((_, after)) = rest.split_once("[test:") {
            let (inside, later) = after.split_once(']').unwrap_or((after, ""));
            tests.extend(inside.split(',').map(str::trim).filter(|test| !test.is_empty()));
            rest = later;
        }
        tests
    }
}

fn promises(text: &str) -> Vec<Promise> {
    let mut promises: Vec<Promise> = Vec::new();
    let (mut inside, mut fenced) = (false, false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        if line.starts_with("- ") {
            promises.push(Promise { line: number + 1, text: line.to_owned() });
            inside = true;
        } else if line.starts_with([' ', '\t']) && inside {
            if let Some(promise) = promises.last_mut() {
                promise.text.push('\n');
                promise.text.push_str(line);
            }
        } else if !line.is_empty() {
            inside = false;
        }
    }
    promises
}

fn has_test(source: &Source, name: &str) -> bool {
    if !source.is_rust() {
        let mut words = source.text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
        return words.any(|word| word == name);
    }
    TokenStream::from_str(&source.text).is_ok_and(|tokens| tokens_have_test(tokens, name))
}

fn tokens_have_test(tokens: TokenStream, name: &str) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => tokens_have_test(group.stream(), name),
        TokenTree::Literal(literal) => literal.to_string() == format!("\"{name}\""),
        TokenTree::Ident(ident) if ident == "fn" => {
            let named = matches!(tokens.get(at + 1), Some(TokenTree::Ident(ident)) if *ident == name);
            named && is_marked(tokens.get(..at).unwrap_or_default())
        }
        _ => false,
    })
}

/// Whether an attribute at the end of `before`, which is what stands before `fn`, has `test` in its name.
fn is_marked(before: &[TokenTree]) -> bool {
    let mut backwards = before.iter().rev().peekable();
    while let Some(token) = backwards.next() {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                if !matches!(backwards.peek(), Some(TokenTree::Punct(hash)) if hash.as_char() == '#') {
                    return false;
                }
                if group.stream().into_iter().any(|token| token.to_string().contains("test")) {
                    return true;
                }
            }
            TokenTree::Punct(hash) if hash.as_char() == '#' => {}
            TokenTree::Ident(word) if ["pub", "async", "const"].iter().any(|known| word == known) => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = "#[test] fn one() {}\nmod m { #[tokio::test] #[ignore] async fn two() {} }\n\
        proptest! { #![x] #[test] fn three(a in 0..1) {} }\nfn helper() {}\n#[inline] fn other() {}\n\
        const NAMES: &[&str] = &[\"case four\"];";

    fn messages(document: &str) -> Vec<String> {
        let tree = Tree {
            sources: vec![
                Source::new(DOCUMENT, document),
                Source::new("t/a.rs", TESTS),
                Source::new("t/run.sh", "check_five() {\n"),
            ],
        };
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.into_iter().map(|finding| format!("{}: {}", finding.line, finding.message)).collect()
    }

    #[test]
    fn promises_with_tests_pass() {
        let good = "# Semantics\n\nText.\n\n- One. [test: t/a.rs::one]\n- Two goes\n  on.\n\n  [test: t/a.rs::two, \
            t/a.rs::three]\n  - inner [test: t/a.rs::case four]\n- Five [test: t/run.sh::check_five]\n\n* A remark.\n\
            1. A number.\n\n```\n- code\n```\n";
        assert!(messages(good).is_empty(), "{:?}", messages(good));
    }

    #[test]
    fn promises_without_tests_are_found() {
        assert_eq!(messages("# S\n\n- Nothing.\n"), ["3: a promise without [test: FILE::NAME]"]);
        // What stands after the item does not count for it.
        assert_eq!(messages("- Nothing.\nText [test: t/a.rs::one]\n").len(), 1);
        for bad in
            ["t/a.rs", "t/b.rs::one", "t/a.rs::helper", "t/a.rs::other", "t/a.rs::on", "t/run.sh::check"]
        {
            assert_eq!(messages(&format!("- X [test: {bad}]")).len(), 1, "{bad}");
        }
    }

    #[test]
    fn tests_named_in_security_exist() {
        let found = |security: &str| {
            let sources = [(DOCUMENT, ""), (SECURITY, security), ("t/a.rs", TESTS)];
            let sources = sources.map(|(path, text)| Source::new(path, text)).into();
            let mut findings = Vec::new();
            check(&Tree { sources }, &mut findings);
            findings.into_iter().map(|finding| finding.to_string()).collect::<Vec<_>>()
        };
        let good = "- No test.\n\n| a | b [test: t/a.rs::one] |\n\nText [test:\nt/a.rs::two]\n";
        assert!(found(good).is_empty(), "{:?}", found(good));
        let bad = found("# S\n\nText\n[test: t/a.rs::one, t/b.rs::one].\n\n| [test: t/a.rs] |\n");
        assert_eq!(bad.len(), 2, "{bad:?}");
        assert!(bad[0].starts_with("SECURITY.md:3: "), "{bad:?}");
    }

    #[test]
    fn a_missing_document_is_a_finding() {
        let mut findings = Vec::new();
        check(&Tree { sources: Vec::new() }, &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
