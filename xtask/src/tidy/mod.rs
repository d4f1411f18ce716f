//! The tidy check: rules of this source tree that no linter knows.
//!
//! # Exceptions
//! `tidy-allow(RULE): REASON` in a comment on the line of a finding, or on one of the three lines above it, lifts the
//! rule there. For `file-length` it may stand anywhere in the first 30 lines. Without a reason it does not count.
//!
//! # The form of SEMANTICS.md
//! See [`semantics`].

mod dependencies;
mod documents;
mod functions;
mod manifests;
mod paths;
mod semantics;
mod sources;
mod text;
mod unsafe_code;

use sources::{Source, Tree};
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// The rules, for `--help`.
pub(crate) const HELP: &str = "\
rules of tidy:
  dependencies     crates use only what lies below them
  manifest         every crate has a description and takes the workspace's lints
  file-length      no Rust file above 900 lines (a warning above 600)
  function-length  no function above 120 lines
  module-doc       every Rust file begins with //!
  trait-doc        every method of a public trait has a doc comment
  unsafe           unsafe code only in crates that are for it, forbidden in all others
  machine-path     no path of somebody's machine in sources and documents
  changelog        CHANGELOG.md has a section Unreleased with something in it
  semantics        every promise in SEMANTICS.md names tests that exist:
                   - a list item that begins with a dash [test: tests/tests/x.rs::name, other/file.rs::name]
an exception: a comment `tidy-allow(RULE): REASON` on the line or up to three lines above it;
for function-length also #[allow(clippy::too_many_lines, reason = \"...\")]";

/// How many lines above a finding an exception may stand.
const ALLOW_ABOVE: usize = 3;
/// In how many lines at the top of a file an exception for the whole file may stand.
const ALLOW_TOP: usize = 30;

/// Whether a finding fails the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Fail,
    Warn,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// From 1; 0 where it is about the whole file.
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) message: String,
    pub(crate) severity: Severity,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, message: message.into(), severity: Severity::Fail }
    }

    fn warning(self) -> Self {
        Self { severity: Severity::Warn, ..self }
    }

    /// Whether an exception in `source` lifts it.
    fn is_allowed(&self, source: &Source) -> bool {
        let marker = format!("tidy-allow({}):", self.rule);
        let has = |line: &str| line.split_once(&marker).is_some_and(|(_, reason)| !reason.trim().is_empty());
        let (skip, take) = match self.line {
            0 => (0, ALLOW_TOP),
            line => (line.saturating_sub(1 + ALLOW_ABOVE), line.min(1 + ALLOW_ABOVE)),
        };
        source.text.lines().skip(skip).take(take).any(has)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Fail => "",
            Severity::Warn => "warning: ",
        };
        let Self { path, line, rule, message, .. } = self;
        match line {
            0 => write!(f, "{path}: {severity}{rule}: {message}"),
            line => write!(f, "{path}:{line}: {severity}{rule}: {message}"),
        }
    }
}

/// Checks the tree at `root` and prints what is wrong.
pub(crate) fn run(root: &Path) -> ExitCode {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    let failures = findings.iter().filter(|finding| finding.severity == Severity::Fail).count();
    let warnings = findings.len() - failures;
    println!("tidy: {} files, {failures} failures, {warnings} warnings", tree.sources.len());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Everything that is wrong in a tree.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let mut own = Vec::new();
        paths::check(source, &mut own);
        if source.is_rust() {
            text::check(source, &mut own);
            functions::check(source, &mut own);
            unsafe_code::check(source, &mut own);
        }
        if source.path.ends_with("Cargo.toml") {
            manifests::check(source, &mut own);
            dependencies::check(source, &mut own);
        }
        findings.extend(own.into_iter().filter(|finding| !finding.is_allowed(source)));
    }
    documents::check(tree, &mut findings);
    semantics::check(tree, &mut findings);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_need_a_reason_and_the_right_place() {
        let finding = Finding::new("a.rs", 5, "unsafe", "x");
        let at = |line: usize, text: &str| {
            let mut lines = [""; 8];
            lines[line - 1] = text;
            Source::new("a.rs", &lines.join("\n"))
        };
        for line in 2..=5 {
            assert!(finding.is_allowed(&at(line, "// tidy-allow(unsafe): because")), "{line}");
        }
        assert!(!finding.is_allowed(&at(1, "// tidy-allow(unsafe): because")));
        assert!(!finding.is_allowed(&at(6, "// tidy-allow(unsafe): because")));
        assert!(!finding.is_allowed(&at(5, "// tidy-allow(unsafe): ")));
        assert!(!finding.is_allowed(&at(5, "// tidy-allow(other): because")));
    }

    #[test]
    fn findings_say_where() {
        let finding = Finding::new("a.rs", 5, "unsafe", "x");
        assert_eq!(finding.to_string(), "a.rs:5: unsafe: x");
        assert_eq!(Finding { line: 0, ..finding }.warning().to_string(), "a.rs: warning: unsafe: x");
    }

    #[test]
    fn a_small_tree_that_is_tidy() {
        let tree = Tree {
            sources: vec![
                Source::new("crates/vfs/src/lib.rs", "//! Doc.\n#![forbid(unsafe_code)]\n"),
                Source::new(
                    "crates/vfs/Cargo.toml",
                    "[package]\nname = \"vellum-vfs\"\ndescription = \"x\"\n[lints]\nworkspace = true\n",
                ),
                Source::new("CHANGELOG.md", "# Changelog\n\n## Unreleased\n- Something.\n"),
                Source::new("SEMANTICS.md", "# Semantics\n"),
            ],
        };
        assert_eq!(check(&tree), []);
    }
}
