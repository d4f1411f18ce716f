//! Files of a crate that import from each other in a circle are one file in several pieces: none of them can be read, tested or moved
//! by itself. Up to [`FILES_MAX`] may.

use super::finding::Finding;
use super::modules::Modules;
use super::sources::{Source, Tree};
use std::collections::BTreeSet;

const RULE: &str = "import-cycle";
/// A module with the two that it has been cut into is still read at once.
const FILES_MAX: usize = 3;

/// The integration tests are left out: the list of all cases imports every case, and each of them what runs cases.
fn is_checked(crate_dir: &str) -> bool {
    crate_dir.starts_with("crates/") || crate_dir == "xtask"
}

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let rust = tree.sources.iter().filter(|source| source.is_rust());
    let crates: BTreeSet<&str> = rust.map(Source::crate_dir).filter(|dir| is_checked(dir)).collect();
    for crate_dir in crates {
        let cycles = Modules::read(crate_dir, &tree.sources).cycles();
        for cycle in cycles.iter().filter(|cycle| cycle.len() > FILES_MAX) {
            let (Some(first), count) = (cycle.first(), cycle.len()) else { continue };
            let short =
                |path: &&str| path.trim_start_matches(crate_dir).trim_start_matches("/src/").to_owned();
            let names = cycle.iter().map(short).collect::<Vec<_>>().join(" ");
            let message =
                format!("{count} files import from each other in a circle, more than {FILES_MAX}: {names}");
            findings.push(Finding::new(first, 0, RULE, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Circles of so many files.
    fn circles(sizes: &[usize]) -> Tree {
        let mut sources = Vec::new();
        for (circle, files) in sizes.iter().enumerate() {
            for at in 0..*files {
                let next = (at + 1) % files;
                let text = format!("use crate::c{circle}m{next}::X{next};");
                sources.push(Source::new(&format!("crates/x/src/c{circle}m{at}.rs"), &text));
            }
        }
        Tree { sources }
    }

    fn found(sizes: &[usize]) -> Vec<String> {
        let mut findings = Vec::new();
        check(&circles(sizes), &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn up_to_three_files() {
        assert!(found(&[3, 3]).is_empty());
        let four = found(&[4]);
        assert_eq!(four.len(), 1);
        assert!(
            four[0].contains("4 files") && four[0].ends_with("c0m0.rs c0m1.rs c0m2.rs c0m3.rs"),
            "{four:?}"
        );
        assert_eq!(found(&[4, 5, 3]).len(), 2);
    }

    #[test]
    fn the_integration_tests_are_left_out() {
        let mut tree = circles(&[5]);
        for source in &mut tree.sources {
            source.path = source.path.replace("crates/x/", "tests/");
        }
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        assert_eq!(findings, []);
    }
}
