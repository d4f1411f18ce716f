//! Input that is refused.

use std::fmt;

/// Most characters of a refused value that are shown.
const SHOWN_MAX: usize = 200;

/// Why the input was refused: one line for a person, with the option, its value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadInput(String);

impl BadInput {
    /// A refusal in one line, without the program's name.
    #[must_use]
    pub fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }

    /// An option whose value cannot be used: why, and what to write instead.
    #[must_use]
    pub fn value(key: &str, value: &[u8], why: impl fmt::Display, remedy: &str) -> Self {
        Self(format!("option {key}={}: {why}; {remedy}", quote(value)))
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// `bytes` as part of one line: control characters escaped, cut after [`SHOWN_MAX`] characters.
#[must_use]
pub(crate) fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut line = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == SHOWN_MAX {
            line.push_str("...");
            break;
        }
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
