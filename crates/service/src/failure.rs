//! Why a mount did not come to be.

use std::fmt;

/// One line for a person, and whether what was asked for was at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    line: String,
    input: bool,
}

impl Failure {
    /// What was asked for cannot be: exit status 2.
    #[must_use]
    pub fn input(line: impl Into<String>) -> Self {
        Self { line: line.into(), input: true }
    }

    /// The system did not do it: exit status 1.
    #[must_use]
    pub fn system(line: impl Into<String>) -> Self {
        Self { line: line.into(), input: false }
    }

    /// The exit status of a command that ends with it.
    #[must_use]
    pub const fn exit_status(&self) -> u8 {
        if self.input { 2 } else { 1 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, whatever a path holds.
        for c in self.line.chars() {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
