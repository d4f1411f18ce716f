//! The name of a pool: also that of a directory and of a control group.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use vellum_service::Failure;

/// Most characters of a name.
pub(crate) const NAME_MAX: usize = 64;

/// A name that can be part of a path without leading anywhere else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct PoolName(String);

impl PoolName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PoolName {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && text.len() <= NAME_MAX && text.chars().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(Failure::input(format!(
            "pool {text}: not a name; use up to {NAME_MAX} of a-z, A-Z, 0-9, _, - and ., a letter or digit first"
        )))
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_contain_paths() {
        for good in ["a", "tenant-1", "A.b_c", "0"] {
            assert_eq!(good.parse::<PoolName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(NAME_MAX + 1);
        for bad in ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "ä", "a\n", &long] {
            assert_eq!(bad.parse::<PoolName>().unwrap_err().exit_status(), 2, "{bad}");
        }
    }
}
