//! The tidy check: rules of this source tree that no linter knows.
//!
//! How a rule is lifted somewhere: see [`finding`]. The form of SEMANTICS.md: see [`semantics`].

mod cycles;
mod decisions;
mod dependencies;
mod documents;
mod finding;
mod links;
mod locks;
mod manifests;
mod modules;
mod names;
mod paths;
mod reference;
mod semantics;
mod sentences;
mod sources;
mod text;
mod tiny_files;
mod trait_docs;

use finding::{Finding, Severity};
use sources::Tree;
use std::path::Path;
use std::process::ExitCode;

/// The rules, for `--help`.
pub(crate) const HELP: &str = "\
rules of tidy:
  dependencies     crates use only what lies below them, by the table of ARCHITECTURE.md
  import-cycle     no more than 3 files of a crate import from each other in a circle
  lock-order       the text in crates/union/src/lib.rs names every lock of the union
  manifest         every crate has a description and takes the workspace's lints
  file-length      no Rust file above 900 lines (a warning above 600)
  module-doc       every Rust file begins with //!
  comment          no comment that begins with `The same`, no SAFETY line that says `as above`
  name             no file and no type is named by a participle or an adverb
  predicate        no is_, has_ or tells_ takes &mut self
  crumb            no file of production code holds one expression in fewer than 12 lines
  trait-doc        every method of a public trait has a doc comment
  machine-path     no path of somebody's machine in sources and documents
  changelog        CHANGELOG.md has a section Unreleased, with something in it or a release below it
  readme           README.md has at most 700 words
  reference        docs/src/reference and the manual are what `cargo xtask reference` writes; quoted messages are the program's
  decisions        no decision of ARCHITECTURE.md above 80 words; every page of docs/design is in its index
  links            links between documents lead to files and headings that are there, and paths in them too
  sentences        README, SEMANTICS, SECURITY, ARCHITECTURE, CONTRIBUTING, docs/design and docs/src have sentences
                   of at most 20 words on average, each page
  semantics        every promise in SEMANTICS.md names tests that exist:
                   - a list item that begins with a dash [test: tests/tests/x.rs::name, other/file.rs::name]
                   and so do all tests that SECURITY.md names
an exception: a comment `tidy-allow(RULE): REASON` on the line or up to three lines above it";

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
            trait_docs::check(source, &mut own);
            names::check(source, &mut own);
            tiny_files::check(source, &mut own);
        }
        if source.path.ends_with("Cargo.toml") {
            manifests::check(source, &mut own);
        }
        findings.extend(own.into_iter().filter(|finding| !finding.is_allowed(source)));
    }
    dependencies::check(tree, &mut findings);
    cycles::check(tree, &mut findings);
    locks::check(tree, &mut findings);
    decisions::check(tree, &mut findings);
    links::check(tree, &mut findings);
    documents::check(tree, &mut findings);
    reference::check(tree, &mut findings);
    semantics::check(tree, &mut findings);
    sentences::check(tree, &mut findings);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use sources::Source;

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
                Source::new(
                    "ARCHITECTURE.md",
                    "# A\n| crate | may use |\n| --- | --- |\n| `vellum-vfs` | - |\n\n## Decisions\n1. It is.\n",
                ),
            ],
        };
        assert_eq!(check(&tree), []);
    }
}
