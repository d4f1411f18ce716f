//! Why something did not come to be.

use crate::path_text;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// One line for a person: what was not done, the errors that lie behind that, and what to do about it. And whether what was asked for was at
/// fault. It goes from process to process as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    line: String,
    input: bool,
    #[serde(deserialize_with = "path_text::required")]
    cause: Option<Box<Cause>>,
    /// Comes last, behind all causes. One that knows of none may have been written by a program that has no such field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// What an error said, and the one behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cause {
    said: String,
    #[serde(deserialize_with = "path_text::required")]
    cause: Option<Box<Self>>,
}

impl Failure {
    /// What was asked for cannot be: exit status 2.
    #[must_use]
    pub fn input(line: impl Into<String>) -> Self {
        Self { line: line.into(), input: true, cause: None, remedy: None }
    }

    /// The system did not do it: exit status 1.
    #[must_use]
    pub fn system(line: impl Into<String>) -> Self {
        Self { line: line.into(), input: false, cause: None, remedy: None }
    }

    /// The system did not do what was asked for about a path.
    #[must_use]
    pub fn at(path: &Path, error: impl Into<io::Error>) -> Self {
        Self::system(path.display().to_string()).because(error.into())
    }

    /// Adds what lies behind the failure. What an error says of its own causes is not kept twice.
    #[must_use]
    pub fn because(mut self, error: impl Error) -> Self {
        let mut all: Vec<String> = Vec::new();
        let mut next: Option<&dyn Error> = Some(&error);
        while let Some(error) = next {
            let said = error.to_string();
            if all.last().is_none_or(|above| !above.ends_with(&said)) {
                all.push(said);
            }
            next = error.source();
        }
        self.cause = all.into_iter().rev().fold(None, |cause, said| Some(Box::new(Cause { said, cause })));
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn remedy(self, what: impl Into<String>) -> Self {
        Self { remedy: Some(what.into()), ..self }
    }

    /// Puts before the line the thing it happened to.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        Self { line: format!("{what}: {}", self.line), ..self }
    }

    /// The exit status of a command that ends with it.
    #[must_use]
    pub const fn exit_status(&self) -> u8 {
        if self.input { 2 } else { 1 }
    }
}

/// One line, whatever a path holds.
fn write_plain(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    text.chars()
        .try_for_each(|c| if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") })
}

impl fmt::Display for Failure {
    /// With all that lies behind it, and then what to do about it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_plain(&self.line, f)?;
        let mut next = self.cause.as_deref();
        while let Some(Cause { said, cause }) = next {
            f.write_str(": ")?;
            write_plain(said, f)?;
            next = cause.as_deref();
        }
        if let Some(remedy) = &self.remedy {
            f.write_str("; ")?;
            write_plain(remedy, f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_plain(&self.said, f)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &dyn Error)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &dyn Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("reading\nit")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_remedy_is_printed_last() {
        let failure =
            Failure::input("layer /a").remedy("give\nanother").because(std::io::Error::other("no disk"));
        assert_eq!(failure.clone().context("m").to_string(), "m: layer /a: no disk; give\\nanother");
        let text = serde_json::to_vec(&failure).unwrap();
        assert_eq!(serde_json::from_slice::<Failure>(&text).unwrap(), failure);
    }

    #[test]
    fn causes_are_preserved_and_printed_once() {
        let below = || std::io::Error::other("no disk");
        let failure = Failure::input("layer /a").because(Outer(below()));
        assert_eq!(failure.to_string(), "layer /a: reading\\nit: no disk");
        let mut chain = Vec::new();
        let mut next = failure.source();
        while let Some(error) = next {
            chain.push(error.to_string());
            next = error.source();
        }
        assert_eq!(chain, ["reading\\nit", "no disk"]);
        // One that says what is behind it, as io::Error does of what it holds.
        let twice = Failure::system("x").because(std::io::Error::other(below()));
        assert_eq!(twice.to_string(), "x: no disk");
        let text = serde_json::to_vec(&failure).unwrap();
        assert_eq!(serde_json::from_slice::<Failure>(&text).unwrap(), failure);
        assert_eq!(
            (failure.exit_status(), failure.context("m").to_string().as_str()),
            (2, "m: layer /a: reading\\nit: no disk")
        );
    }
}
