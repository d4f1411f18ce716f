//! The machine and the moment of a measurement.

use serde::Serialize;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What somebody needs to know to judge numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub cpu: String,
    /// How many processors are on line.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    pub memory_mib: u64,
    /// The type of the filesystem that all layers lie on.
    pub filesystem: String,
    /// When it began, in UTC.
    pub date: String,
    /// The load average of the last minute before it began: anything above 0.5 is noise.
    pub load_before: f64,
}

impl Machine {
    /// This machine, now, and the filesystem under `testbed`.
    #[must_use]
    pub fn detect(testbed: &Path) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            cpu: value(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            memory_mib: value(&meminfo, "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
                / 1024,
            filesystem: filesystem(testbed),
            date: utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
            load_before: load(),
        }
    }
}

/// The load average of the last minute.
#[must_use]
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// What follows `name :` in the first line that begins so.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// The type of the filesystem that `path` is on.
fn filesystem(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut best: (usize, &str) = (0, "unknown");
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        if let (Some(point), Some(kind)) = (words.next(), words.next())
            && path.starts_with(point)
            && point.len() >= best.0
        {
            best = (point.len(), kind);
        }
    }
    best.1.to_owned()
}

/// Seconds since 1970 as a date and time of ISO 8601.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years from March, so that a leap day ends a year; 400 years repeat.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(utc(1_735_689_600), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::detect(Path::new("/"));
        assert!(machine.cores > 0 && machine.memory_mib > 0);
        assert_ne!(machine.kernel, "");
        assert_ne!(machine.filesystem, "unknown");
    }

    #[test]
    fn values() {
        assert_eq!(value("a : 1\nb\t: 2 x\n", "b"), Some("2 x"));
        assert_eq!(value("a : 1", "c"), None);
    }
}
