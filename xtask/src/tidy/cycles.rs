//! Files of a crate that import from each other in a circle are one file in several pieces: none of them can be read, tested or moved
//! by itself. Up to [`FILES_MAX`] may; more than that only as far as they did when the rule was made.

use super::finding::Finding;
use super::modules::Modules;
use super::sources::{Source, Tree};
use std::collections::BTreeSet;

const RULE: &str = "import-cycle";
/// A module with the two that it has been cut into is still read at once.
const FILES_MAX: usize = 3;
const HERE: &str = "xtask/src/tidy/cycles.rs";

/// A crate that had larger circles before there was the rule. Its numbers may only become smaller.
struct Known {
    crate_dir: &'static str,
    /// Files of the largest circle.
    largest: usize,
    /// Files of all circles above [`FILES_MAX`].
    files: usize,
}

const KNOWN: &[Known] = &[Known { crate_dir: "crates/bench", largest: 20, files: 20 }];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_with(tree, KNOWN, findings);
}

/// The integration tests are left out: the list of all cases imports every case, and each of them what runs cases.
fn is_checked(crate_dir: &str) -> bool {
    crate_dir.starts_with("crates/") || crate_dir == "xtask"
}

fn check_with(tree: &Tree, known: &[Known], findings: &mut Vec<Finding>) {
    let rust = tree.sources.iter().filter(|source| source.is_rust());
    let crates: BTreeSet<&str> = rust.map(Source::crate_dir).filter(|dir| is_checked(dir)).collect();
    for crate_dir in crates {
        let mut cycles = Modules::read(crate_dir, &tree.sources).cycles();
        cycles.retain(|cycle| cycle.len() > FILES_MAX);
        let largest: usize = cycles.iter().map(Vec::len).max().unwrap_or(0);
        let files: usize = cycles.iter().map(Vec::len).sum();
        let known = known.iter().find(|known| known.crate_dir == crate_dir);
        let (may_be, may_have) = known.map_or((0, 0), |known| (known.largest, known.files));
        if largest > may_be || files > may_have {
            let allowed = match known {
                Some(_) => format!("this crate may have {may_have} in circles, and {may_be} in one"),
                None => format!("more than {FILES_MAX}"),
            };
            for cycle in &cycles {
                let (Some(first), count) = (cycle.first(), cycle.len()) else { continue };
                let short =
                    |path: &&str| path.trim_start_matches(crate_dir).trim_start_matches("/src/").to_owned();
                let names = cycle.iter().map(short).collect::<Vec<_>>().join(" ");
                let message = format!("{count} files import from each other in a circle, {allowed}: {names}");
                findings.push(Finding::new(first, 0, RULE, message));
            }
        } else if known.is_some() && files == 0 {
            let message = format!(
                "{crate_dir} has no circle of more than {FILES_MAX} files any more; its exception goes"
            );
            findings.push(Finding::new(HERE, 0, RULE, message));
        } else if largest < may_be || files < may_have {
            let message = format!(
                "{crate_dir} has {files} files in circles now, and {largest} in the largest; write that there"
            );
            findings.push(Finding::new(HERE, 0, RULE, message).warning());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::finding::Severity;

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

    fn found(sizes: &[usize], known: &[Known]) -> Vec<(String, Severity)> {
        let mut findings = Vec::new();
        check_with(&circles(sizes), known, &mut findings);
        findings.into_iter().map(|finding| (finding.message, finding.severity)).collect()
    }

    #[test]
    fn up_to_three_files() {
        assert!(found(&[3, 3], &[]).is_empty());
        let four = found(&[4], &[]);
        assert_eq!(four.len(), 1);
        assert!(
            four[0].0.contains("4 files") && four[0].0.ends_with("c0m0.rs c0m1.rs c0m2.rs c0m3.rs"),
            "{four:?}"
        );
        assert_eq!(found(&[4, 5, 3], &[]).len(), 2);
    }

    #[test]
    fn the_integration_tests_are_left_out() {
        let mut tree = circles(&[5]);
        for source in &mut tree.sources {
            source.path = source.path.replace("crates/x/", "tests/");
        }
        let mut findings = Vec::new();
        check_with(&tree, &[], &mut findings);
        assert_eq!(findings, []);
    }

    #[test]
    fn exceptions_only_shrink() {
        let known = &[Known { crate_dir: "crates/x", largest: 6, files: 10 }];
        assert_eq!(found(&[6, 4, 3], known), []);
        for larger in [&[7][..], &[6, 5], &[4, 4, 4]] {
            assert!(
                found(larger, known).iter().any(|(_, severity)| *severity == Severity::Fail),
                "{larger:?}"
            );
        }
        for smaller in [&[6][..], &[5, 5], &[4, 4]] {
            let found = found(smaller, known);
            assert_eq!((found.len(), found[0].1), (1, Severity::Warn), "{smaller:?}");
        }
        // Not needed any more.
        assert_eq!(found(&[3], known)[0].1, Severity::Fail);
    }
}
