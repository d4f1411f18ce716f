//! The two ways of file data.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How file data travels. A mount has one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profile {
    /// Through the kernel's page cache, with write-back and without opens. Works without privileges.
    #[default]
    Cached,
    /// The kernel reads, writes and maps the layer's file itself. Needs CAP_SYS_ADMIN in the first user namespace.
    Passthrough,
}

impl Profile {
    /// All profiles, by their names in options and reports.
    pub const NAMES: [(&str, Self); 2] = [("cached", Self::Cached), ("passthrough", Self::Passthrough)];
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::NAMES.iter().filter(|(_, profile)| profile == self).try_for_each(|(name, _)| f.write_str(name))
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, profile)| *profile).ok_or_else(|| format!("no profile is called {text}"))
    }
}
