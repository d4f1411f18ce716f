//! Unsafe code lives in few crates; all others forbid it. Tests may have it where they need a mapping or a call that
//! has no safe form: the root of such a program denies it, and the module allows it.

use super::finding::Finding;
use super::sources::Source;
use proc_macro2::{TokenStream, TokenTree};
use std::str::FromStr;

/// Crates in which it may be.
const ALLOWED: &[&str] = &["crates/sys", "crates/ring", "crates/preload"];

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    if ALLOWED.contains(&source.crate_dir()) {
        return;
    }
    let in_tests = source.path.starts_with("tests/") || source.path.contains("/tests/");
    let wanted: &[&str] = if in_tests {
        &["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"]
    } else {
        &["#![forbid(unsafe_code)]"]
    };
    if is_root(&source.path) && !source.text.lines().any(|line| wanted.contains(&line.trim())) {
        let message = "a crate's root without #![forbid(unsafe_code)]";
        findings.push(Finding::new(&source.path, 1, "unsafe", message));
    }
    if in_tests {
        return;
    }
    // Tokens, not text: the word may stand in comments and strings. What is not Rust is found elsewhere.
    if let Ok(tokens) = TokenStream::from_str(&source.text) {
        find(tokens, &source.path, findings);
    }
}

/// Whether a file is the root of a library or a program (of an example or a test, too).
fn is_root(path: &str) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("/src/bin/")
}

fn find(tokens: TokenStream, path: &str, findings: &mut Vec<Finding>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "unsafe" => {
                let message = "unsafe code outside of the crates that are for it";
                findings.push(Finding::new(path, ident.span().start().line, "unsafe", message));
            }
            TokenTree::Group(group) => find(group.stream(), path, findings),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings
    }

    #[test]
    fn allowed_crates() {
        assert_eq!(findings("crates/sys/src/x.rs", "fn x() { unsafe {} }"), []);
        assert_eq!(findings("crates/sys/src/lib.rs", ""), []);
    }

    #[test]
    fn unsafe_is_found_wherever_it_hides() {
        for bad in [
            "\nfn x() { unsafe { y() } }",
            "\nunsafe fn x() {}",
            "\nmacro!(unsafe { y() });",
            "\n#[unsafe(no_mangle)]",
        ] {
            let found = findings("crates/fuse/src/x.rs", bad);
            assert_eq!((found.len(), found[0].line), (1, 2), "{bad}");
        }
    }

    #[test]
    fn the_word_alone_does_no_harm() {
        let text = "// unsafe\nfn x() { print(\"unsafe {}\"); } /* unsafe */";
        assert_eq!(findings("crates/fuse/src/x.rs", text), []);
    }

    #[test]
    fn roots_forbid_it() {
        assert_eq!(findings("crates/fuse/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n"), []);
        for root in ["crates/fuse/src/lib.rs", "xtask/src/main.rs", "tests/src/bin/x.rs"] {
            assert_eq!(findings(root, "//! x\n").len(), 1, "{root}");
        }
        assert_eq!(findings("crates/fuse/src/other.rs", "//! x\n"), []);
    }

    #[test]
    fn tests_may_allow_it() {
        assert_eq!(findings("tests/src/main.rs", "//! x\n#![deny(unsafe_code)]\n"), []);
        assert_eq!(findings("tests/src/harness/raw.rs", "fn x() { unsafe {} }"), []);
        assert_eq!(findings("crates/fuse/tests/x.rs", "fn x() { unsafe {} }"), []);
        assert_eq!(findings("crates/fuse/src/lib.rs", "//! x\n#![deny(unsafe_code)]\n").len(), 1);
    }
}
