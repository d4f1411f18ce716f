//! What went wrong, in one line.

use std::fmt;

/// A failure of the benchmark, not of what it measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    /// Whether the command line was at fault.
    pub bad_input: bool,
}

/// Results whose error ends the benchmark.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure of something outside.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), bad_input: false }
    }

    /// A fault in the command line: the message names the option, the value and the remedy.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self { message: message.into(), bad_input: true }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Says what was being done when an error came.
pub trait While<T> {
    /// The failure reads `what: error`. `what` is only made when there is an error.
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: fmt::Display> While<T> for std::result::Result<T, E> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Failure::new(format!("{}: {error}", what().into())))
    }
}
