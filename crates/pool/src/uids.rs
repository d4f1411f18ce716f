//! Ranges of user and group ids of the host, as pools have them.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// So many users and groups of the host, from one on, written `START:COUNT`. Root is never among them, nor the highest number, which
/// means nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    start: u32,
    count: u32,
}

impl UidRange {
    /// One, if there is such a range.
    #[must_use]
    pub fn new(start: u32, count: u32) -> Option<Self> {
        let ends = start.checked_add(count).is_some();
        (start > 0 && count > 0 && ends).then_some(Self { start, count })
    }

    /// The first of them: root in the tenant's containers.
    #[must_use]
    pub fn start(self) -> u32 {
        self.start
    }

    /// How many they are.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether an id of both ranges is the same.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        // No sum leaves the 32 bits, see `new`.
        self.start < other.start + other.count && other.start < self.start + self.count
    }

    /// What layers hold as 0 and so on, shown as these ids: the value of a mount's `uidmapping` and `gidmapping`.
    #[must_use]
    pub fn mapping(self) -> String {
        format!("0:{self}")
    }

    /// Whether a user namespace with this map (`/proc/self/uid_map`) has all of them.
    #[must_use]
    pub(crate) fn is_in(self, map: &str) -> bool {
        map.lines().any(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                return false;
            };
            let (start, end) = (u64::from(self.start), u64::from(self.start) + u64::from(self.count));
            first <= start && end <= first + count
        })
    }
}

impl FromStr for UidRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| -> Option<u32> {
            // `parse` would take a plus sign.
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
        };
        let range = text.split_once(':').and_then(|(start, count)| Self::new(number(start)?, number(count)?));
        range.ok_or_else(|| {
            let highest = u32::MAX;
            format!(
                "{text}: not a range of ids; write START:COUNT, both 1 or more and at most {highest} together, e.g. 100000:65536"
            )
        })
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.count)
    }
}

impl Serialize for UidRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UidRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> UidRange {
        text.parse().unwrap()
    }

    #[test]
    fn root_and_nobody_are_in_no_range() {
        for good in ["100000:65536", "1:1", "1:4294967294", "4294967294:1"] {
            assert_eq!(range(good).to_string(), good);
            assert_eq!(range(good).mapping(), format!("0:{good}"));
        }
        for bad in [
            "",
            ":",
            "1",
            "1:",
            ":1",
            "0:1",
            "1:0",
            "1:4294967295",
            "4294967294:2",
            "4294967295:1",
            "4294967296:1",
            "+1:1",
            "-1:1",
            "1:1:1",
            " 1:1",
            "x:1",
            "0x1:1",
        ] {
            let why = bad.parse::<UidRange>().unwrap_err();
            assert!(why.starts_with(bad) && why.contains("START:COUNT"), "{why}");
        }
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let one = range("1000:1000");
        for (other, overlaps) in
            [("1:999", false), ("2000:1", false), ("1:1000", true), ("1999:5", true), ("1500:1", true)]
        {
            assert_eq!(
                (one.overlaps(range(other)), range(other).overlaps(one)),
                (overlaps, overlaps),
                "{other}"
            );
        }
    }

    #[test]
    fn a_user_namespace_covers_a_range_or_not() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert!(range("100000:65536").is_in("         0          0 4294967295\n"));
        assert!(range("1:65536").is_in(rootless) && range("65000:100").is_in(rootless));
        assert!(!range("100000:65536").is_in(rootless) && !range("1:65537").is_in(rootless));
        assert!(!range("1:1").is_in("") && !range("1:1").is_in("nonsense\n1 2"));
    }

    proptest! {
        #[test]
        fn a_written_value_parses_back(start in 1..u32::MAX, count in any::<u32>()) {
            let found = UidRange::new(start, count);
            prop_assert_eq!(found.is_some(), count > 0 && u64::from(start) + u64::from(count) <= u64::from(u32::MAX));
            if let Some(found) = found {
                prop_assert_eq!(found.to_string().parse(), Ok(found));
            }
        }

        #[test]
        fn overlap_is_that_of_sets(a in 1..20_u32, b in 1..20_u32, c in 1..20_u32, d in 1..20_u32) {
            let (one, other) = (UidRange::new(a, b).unwrap(), UidRange::new(c, d).unwrap());
            prop_assert_eq!(one.overlaps(other), (a..a + b).any(|id| (c..c + d).contains(&id)));
        }

        #[test]
        fn nothing_panics(text in "[0-9:+-]{0,14}", map in "[0-9 \n]{0,40}") {
            let _ = text.parse::<UidRange>().map(|range| range.is_in(&map));
        }
    }
}
