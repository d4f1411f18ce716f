//! Numbers of bytes, as people write them.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Suffixes, each 1024 times the one before.
const SUFFIXES: [char; 5] = ['K', 'M', 'G', 'T', 'P'];

/// A number of bytes, or of bytes per second: digits with K, M, G, T or P (powers of 1024) behind them or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text}: not a number of bytes; write e.g. 512M or 2G");
        let upper = text.chars().next_back().map_or(' ', |c| c.to_ascii_uppercase());
        let shift = SUFFIXES.iter().position(|suffix| *suffix == upper).map_or(0, |at| 10 * (at + 1));
        let digits = if shift == 0 { text } else { text.get(..text.len() - 1).ok_or_else(bad)? };
        if !digits.chars().all(|c| c.is_ascii_digit()) {
            return Err(bad());
        }
        let number: u64 = digits.parse().map_err(|_| bad())?;
        let bytes = number.checked_mul(1 << shift).ok_or_else(bad)?;
        if bytes == 0 { Err(bad()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shift = (self.0.trailing_zeros() / 10).min(SUFFIXES.len() as u32);
        let number = self.0 >> (10 * shift);
        match shift.checked_sub(1).and_then(|at| SUFFIXES.get(at as usize)) {
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
        fn what_is_written_is_read(bytes in 1..u64::MAX) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }

        #[test]
        fn nothing_panics(text in ".{0,12}") {
            let _ = text.parse::<Bytes>();
        }
    }
}
