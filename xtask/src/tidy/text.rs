//! Rules about the text of a Rust file: its length, that it says what it is for, and that each comment can be read by itself.

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
    check_comments(source, findings);
    let first = source.text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!/"));
    if !first.is_some_and(|line| line.starts_with("//!") && line.len() > 4) {
        findings.push(Finding::new(&source.path, 1, "module-doc", "does not begin with a line of //! doc"));
    }
}

/// A comment is read where somebody looks something up, and by tools that show one at a time: there is nothing above it.
fn check_comments(source: &Source, findings: &mut Vec<Finding>) {
    // Of which kind the comment on the line above is, if there is text in it.
    let mut goes_on = None;
    for (at, line) in source.text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            goes_on = None;
            continue;
        };
        let kind = comment.chars().next().filter(|mark| matches!(mark, '/' | '!')).unwrap_or(' ');
        let words = comment.trim_start_matches(['/', '!']).trim();
        let begins = goes_on != Some(kind);
        if begins && words.starts_with("The same") || words.starts_with("SAFETY: as above") {
            let message = "leans on another comment; say what it is about";
            findings.push(Finding::new(&source.path, at + 1, "comment", message));
        }
        goes_on = (!words.is_empty()).then_some(kind);
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

    #[test]
    fn comments_stand_alone() {
        let of = |text: &str| findings(&format!("//! Doc.\n{text}"));
        assert_eq!(of("/// What it is.\n/// The same goes for others.\nfn x() {}\n"), []);
        assert_eq!(of("// SAFETY: the pointer is the caller's.\n"), []);
        for bad in [
            "/// The same, later.\n",
            "    // The same again.\n",
            "/// A.\n///\n/// The same.\n",
            "// SAFETY: as above.\n",
        ] {
            let found = of(bad);
            assert_eq!(
                (found.len(), found.first().map(|finding| finding.rule)),
                (1, Some("comment")),
                "{bad:?}"
            );
        }
    }
}
