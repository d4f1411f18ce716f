//! Rules about the text of a Rust file: its length, and that it says what it is for.

use super::finding::Finding;
use super::sources::Source;

/// A file above this many lines gets a warning.
const LINES_WARN: usize = 600;
/// A file above this many lines fails.
const LINES_MAX: usize = 900;

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let lines = source.text.lines().count();
    let length = |limit: usize| {
        Finding::new(
            &source.path,
            0,
            "file-length",
            format!("{lines} lines, more than {limit}; split it by idea"),
        )
    };
    if lines > LINES_MAX {
        findings.push(length(LINES_MAX));
    } else if lines > LINES_WARN {
        findings.push(length(LINES_WARN).warning());
    }
    let first = source.text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!/"));
    if !first.is_some_and(|line| line.starts_with("//!") && line.len() > 4) {
        findings.push(Finding::new(&source.path, 1, "module-doc", "does not begin with a line of //! doc"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::finding::Severity;

    fn findings(text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(&Source::new("a.rs", text), &mut findings);
        findings
    }

    #[test]
    fn length() {
        let of = |lines: usize| findings(&format!("//! Doc.\n{}", "\n".repeat(lines - 1)));
        assert_eq!(of(600), []);
        assert_eq!(of(601)[0].severity, Severity::Warn);
        assert_eq!(of(900)[0].severity, Severity::Warn);
        assert_eq!(of(901)[0].severity, Severity::Fail);
    }

    #[test]
    fn module_docs() {
        assert_eq!(findings("\n//! What it is.\nfn x() {}\n"), []);
        for bad in ["", "fn x() {}\n", "// Not a doc.\n", "//!\n", "#![forbid(unsafe_code)]\n//! Late.\n"] {
            assert_eq!(findings(bad).len(), 1, "{bad:?}");
            assert_eq!(findings(bad)[0].rule, "module-doc");
        }
    }
}
