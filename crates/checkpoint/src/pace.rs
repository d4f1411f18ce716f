//! How fast a checkpoint is written, as people say it.

use std::str::FromStr;

/// How images are written beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as others on the device do not wait longer for it, and at least at a certain rate.
    #[default]
    Auto,
    /// As fast as the device takes them.
    None,
    /// At most so many bytes per second.
    Rate(u64),
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            rate => match vellum_pool::bytes::parse(rate, "KMG") {
                Some(rate) if rate >= RATE_LEAST => Ok(Self::Rate(rate)),
                _ => Err("give auto, none, or bytes per second from 1M on, e.g. 200M".to_owned()),
            },
        }
    }
}

/// The lowest rate that can be asked for, in bytes per second.
const RATE_LEAST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_read() {
        for (text, pace) in [("auto", Pace::Auto), ("none", Pace::None), ("200M", Pace::Rate(200 << 20))] {
            assert_eq!(text.parse(), Ok(pace));
        }
        for bad in ["", "fast", "0", "1000", "-1M"] {
            assert!(bad.parse::<Pace>().unwrap_err().contains("200M"), "{bad}");
        }
    }
}
