//! Something that is not as it should be, and where.
//!
//! # Exceptions
//! `tidy-allow(RULE): REASON` in a comment on the line of a finding, or on one of the three lines above it, lifts the
//! rule there. For `file-length` it may stand anywhere in the first 30 lines. Without a reason it does not count.

use super::sources::Source;
use std::fmt;

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

    pub(crate) fn warning(self) -> Self {
        Self { severity: Severity::Warn, ..self }
    }

    /// Whether an exception in `source` lifts it.
    pub(crate) fn is_allowed(&self, source: &Source) -> bool {
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
    fn findings_print_their_location() {
        let finding = Finding::new("a.rs", 5, "unsafe", "x");
        assert_eq!(finding.to_string(), "a.rs:5: unsafe: x");
        assert_eq!(Finding { line: 0, ..finding }.warning().to_string(), "a.rs: warning: unsafe: x");
    }
}
