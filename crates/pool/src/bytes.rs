//! Numbers of bytes, as people write them.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Suffixes, each 1024 times the one before.
const SUFFIXES: &str = "KMGTP";

/// Digits with one of `suffixes` (K, M, ... in that order; small letters too) behind them or not, as a number that is not 0.
#[must_use]
pub fn parse(text: &str, suffixes: &str) -> Option<u64> {
    let last = text.chars().next_back()?;
    let step = suffixes.chars().position(|suffix| suffix == last.to_ascii_uppercase());
    let digits = if step.is_some() { text.get(..text.len() - 1)? } else { text };
    let number: u64 = digits.chars().all(|c| c.is_ascii_digit()).then(|| digits.parse().ok())??;
    number.checked_mul(1 << step.map_or(0, |step| 10 * (step + 1))).filter(|number| *number > 0)
}

/// A number of bytes, or of bytes per second: digits with K, M, G, T or P (powers of 1024) behind them or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text}: not a number of bytes; write e.g. 512M or 2G");
        parse(text, SUFFIXES).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shift = (self.0.trailing_zeros() / 10).min(SUFFIXES.len() as u32);
        let number = self.0 >> (10 * shift);
        match shift.checked_sub(1).and_then(|at| SUFFIXES.chars().nth(at as usize)) {
            Some(suffix) => write!(f, "{number}{suffix}"),
            None => write!(f, "{number}"),
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in [("1", 1), ("4k", 4096), ("3M", 3 << 20), ("2G", 2 << 30), ("1P", 1 << 50)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        for bad in ["", "0", "0G", "G", "-1", "1.5G", "1 G", "1GB", "18446744073709551616", "99999999P", "é"]
        {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_written_value_parses_back(bytes in 1..u64::MAX) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }

        #[test]
        fn nothing_panics(text in ".{0,12}") {
            let _ = text.parse::<Bytes>();
        }
    }
}
