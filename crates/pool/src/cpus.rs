//! Lists of processors, as the kernel writes them, and numbers of processors.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The highest number of a processor that is taken for one.
const CPU_MAX: u32 = 65_535;

/// Processors, such as `0-3,8`; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(BTreeSet<u32>);

impl Cpus {
    /// Those of ours that are not among `others`.
    #[must_use]
    pub(crate) fn not_in(&self, others: &Self) -> Vec<u32> {
        self.0.difference(&others.0).copied().collect()
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text}: not a list of processors; write e.g. 0-3,8");
        let number = |text: &str| -> Result<u32, String> {
            let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
            let number = text.parse::<u32>().ok().filter(|number| digits && *number <= CPU_MAX);
            number.ok_or_else(bad)
        };
        let mut all = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            all.extend(first..=last);
        }
        Ok(Self(all))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => runs.push((*cpu, *cpu)),
            }
        }
        for (number, (first, last)) in runs.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// So many processors' time, such as `1.5`; at least a hundredth of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuCount {
    thousandths: u32,
}

impl CpuCount {
    /// The kernel takes no less.
    const MIN: f64 = 0.01;

    /// Their time in a period of the kernel's, both in microseconds.
    #[must_use]
    pub(crate) const fn time_in(self, period: u64) -> u64 {
        self.thousandths as u64 * period / 1000
    }

    fn new(count: f64) -> Option<Self> {
        let fits = (Self::MIN..=f64::from(CPU_MAX)).contains(&count);
        fits.then(|| Self { thousandths: (count * 1000.0).round() as u32 })
    }

    fn count(self) -> f64 {
        f64::from(self.thousandths) / 1000.0
    }
}

impl FromStr for CpuCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text}: not a number of processors; write e.g. 1.5 (which ones says --cpuset-cpus)");
        text.parse().ok().and_then(Self::new).ok_or_else(bad)
    }
}

impl fmt::Display for CpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count().fmt(f)
    }
}

impl Serialize for CpuCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.count())
    }
}

impl<'de> Deserialize<'de> for CpuCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

/// Older versions called a list of processors so.
struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = CpuCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of processors such as 1.5 (a list of processors is cpuset_cpus)")
    }

    fn visit_f64<E: Error>(self, count: f64) -> Result<CpuCount, E> {
        CpuCount::new(count).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(count), &self))
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<CpuCount, E> {
        self.visit_f64(count as f64)
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<CpuCount, E> {
        self.visit_f64(count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_of_processors_is_podmans() {
        for (text, shown, time) in [("1", "1", 100_000), ("1.5", "1.5", 150_000), ("0.01", "0.01", 1000)] {
            let count: CpuCount = text.parse().unwrap();
            assert_eq!((count.to_string().as_str(), count.time_in(100_000)), (shown, time));
        }
        for bad in ["", "0", "-1", "0-3", "1,2", "0.001", "NaN", "inf", "1e9", "all"] {
            let why = bad.parse::<CpuCount>().unwrap_err();
            assert!(why.starts_with(bad) && why.contains("--cpuset-cpus"), "{why}");
        }
    }

    #[test]
    fn lists_are_those_of_the_kernel() {
        for (text, shown) in
            [("0", "0"), ("0-3,8", "0-3,8"), ("3,1,2", "1-3"), ("0-1\n", "0-1"), ("5,5", "5")]
        {
            assert_eq!(text.parse::<Cpus>().unwrap().to_string(), shown);
        }
        for bad in ["", ",", "1-", "-1", "3-1", "a", "0-99999999", "1 2", "+1", "0x1"] {
            assert!(bad.parse::<Cpus>().is_err(), "{bad}");
        }
        let (ours, host): (Cpus, Cpus) = ("0-3".parse().unwrap(), "0-1".parse().unwrap());
        assert_eq!(ours.not_in(&host), [2, 3]);
    }

    proptest! {
        #[test]
        fn a_written_value_parses_back(cpus in proptest::collection::btree_set(0..300_u32, 1..40)) {
            let cpus = Cpus(cpus);
            prop_assert_eq!(cpus.to_string().parse(), Ok(cpus));
        }

        #[test]
        fn nothing_panics(text in "[0-9,a-]{0,12}") {
            let _ = text.parse::<Cpus>();
        }
    }
}
