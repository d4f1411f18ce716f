//! Whether what is kept is packed, as people say it.

use std::fmt;
use std::str::FromStr;

/// How images and files are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compress {
    /// By zstd, as far as that makes it faster.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// By zstd, at this level.
    Zstd(i32),
}

/// The level that is taken while it is to be faster.
pub(super) const FAST: i32 = 1;
/// The level if none is given: zstd's own.
const USUAL: i32 = 3;
/// Levels beyond take much more memory.
const LEVELS: std::ops::RangeInclusive<i32> = 1..=19;

impl FromStr for Compress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            "zstd" => Some(USUAL),
            other => other.strip_prefix("zstd:").and_then(|level| level.parse().ok()),
        };
        match level {
            Some(level) if LEVELS.contains(&level) => Ok(Self::Zstd(level)),
            _ => Err("give auto, none, zstd, or zstd: and a level from 1 to 19, e.g. zstd:3".to_owned()),
        }
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_values_parse_and_print() {
        for (text, read) in
            [("auto", Compress::Auto), ("none", Compress::None), ("zstd:7", Compress::Zstd(7))]
        {
            assert_eq!(text.parse(), Ok(read));
            assert_eq!(read.to_string(), text);
        }
        assert_eq!("zstd".parse(), Ok(Compress::Zstd(USUAL)));
        for bad in ["", "zstd:", "zstd:0", "zstd:20", "zstd:x", "gzip", "Zstd"] {
            assert!(bad.parse::<Compress>().unwrap_err().contains("zstd:3"), "{bad}");
        }
    }
}
