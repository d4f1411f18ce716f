//! What settings mean in the files of control groups.

use super::{Controller, Group, Version};
use crate::bytes::Bytes;
use crate::device::Disk;
use crate::settings::Settings;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// The weight of who has none, in version 2.
const USUAL_WEIGHT: u16 = 100;
/// The shares of processors of a group that was given none, in version 1.
const USUAL_SHARES: u64 = 1024;
/// In which time on processors is limited, in microseconds: the kernel's own, and podman's.
const PERIOD: u64 = 100_000;
/// The weights that version 1 knows for disks.
const BFQ_WEIGHT_MAX: u16 = 1000;

/// A setting, as each version has it.
#[derive(Debug)]
pub(super) struct Limit {
    /// Its name for people.
    pub(super) setting: &'static str,
    /// Whether it was asked for; otherwise what was there before is taken back.
    pub(super) asked: bool,
    pub(super) controller: Controller,
    /// Files of version 1 and of version 2, any one of which is enough: the name, and lines to be written one by one.
    files: [Vec<(&'static str, Vec<String>)>; 2],
}

impl Limit {
    /// Writes it; whether there was a file for it.
    pub(super) fn write(&self, group: &Group) -> Result<bool, (PathBuf, io::Error)> {
        let [v1, v2] = &self.files;
        let mut written = false;
        for (name, lines) in if group.version == Version::One { v1 } else { v2 } {
            let path = group.dir.join(name);
            // Whether a disk is shared by weight depends on its scheduler, and the file is there or not.
            if !path.exists() {
                continue;
            }
            for line in lines {
                fs::write(&path, line).map_err(|e| (path.clone(), e))?;
            }
            written = true;
        }
        Ok(written)
    }
}

/// All settings, those that are not asked for as no limit.
pub(super) fn from_settings(settings: &Settings, disks: &BTreeSet<Disk>) -> Vec<Limit> {
    vec![
        cpuset(settings),
        cpu_time(settings),
        memory(settings),
        cpu_weight(settings),
        io_weight(settings),
        rate(settings.read_limit, disks, "read_limit", "blkio.throttle.read_bps_device", "rbps"),
        rate(settings.write_limit, disks, "write_limit", "blkio.throttle.write_bps_device", "wbps"),
    ]
}

fn cpuset(settings: &Settings) -> Limit {
    // Without a list a group keeps, in version 1, what it has inherited when it was made.
    let lines: Vec<String> = settings.cpuset_cpus.iter().map(ToString::to_string).collect();
    let v2 = if lines.is_empty() { vec![String::from("\n")] } else { lines.clone() };
    Limit {
        setting: "cpuset_cpus",
        asked: settings.cpuset_cpus.is_some(),
        controller: Controller::Cpuset,
        files: [vec![("cpuset.cpus", lines)], vec![("cpuset.cpus", v2)]],
    }
}

fn cpu_time(settings: &Settings) -> Limit {
    let time = settings.cpus.map(|cpus| cpus.time_in(PERIOD));
    let v1 = time.map_or_else(|| "-1".to_owned(), |time| time.to_string());
    let v2 = time.map_or_else(|| "max".to_owned(), |time| time.to_string());
    Limit {
        setting: "cpus",
        asked: settings.cpus.is_some(),
        controller: Controller::Cpu,
        files: [
            vec![("cpu.cfs_period_us", vec![PERIOD.to_string()]), ("cpu.cfs_quota_us", vec![v1])],
            vec![("cpu.max", vec![format!("{v2} {PERIOD}")])],
        ],
    }
}

fn memory(settings: &Settings) -> Limit {
    let (v1, v2) = match settings.memory {
        Some(bytes) => (bytes.0.to_string(), bytes.0.to_string()),
        None => ("-1".to_owned(), "max".to_owned()),
    };
    Limit {
        setting: "memory",
        asked: settings.memory.is_some(),
        controller: Controller::Memory,
        files: [vec![("memory.limit_in_bytes", vec![v1])], vec![("memory.max", vec![v2])]],
    }
}

fn cpu_weight(settings: &Settings) -> Limit {
    let weight = settings.weight.unwrap_or(USUAL_WEIGHT);
    let shares = (u64::from(weight) * USUAL_SHARES / u64::from(USUAL_WEIGHT)).max(2);
    Limit {
        setting: "weight",
        asked: settings.weight.is_some(),
        controller: Controller::Cpu,
        files: [
            vec![("cpu.shares", vec![shares.to_string()])],
            vec![("cpu.weight", vec![weight.to_string()])],
        ],
    }
}

fn io_weight(settings: &Settings) -> Limit {
    let weight = settings.weight.unwrap_or(USUAL_WEIGHT);
    let bfq = vec![weight.min(BFQ_WEIGHT_MAX).to_string()];
    Limit {
        setting: "weight",
        // Where no scheduler shares by weight, that of processors still holds.
        asked: false,
        controller: Controller::Io,
        files: [
            vec![("blkio.bfq.weight", bfq.clone())],
            vec![("io.weight", vec![format!("default {weight}")]), ("io.bfq.weight", bfq)],
        ],
    }
}

fn rate(
    limit: Option<Bytes>,
    disks: &BTreeSet<Disk>,
    setting: &'static str,
    v1: &'static str,
    v2: &'static str,
) -> Limit {
    // In version 1 no limit is written as 0.
    let number = |none: &str| limit.map_or_else(|| none.to_owned(), |bytes| bytes.0.to_string());
    let lines = |line: &dyn Fn(&Disk) -> String| disks.iter().map(line).collect::<Vec<_>>();
    Limit {
        setting,
        asked: limit.is_some(),
        controller: Controller::Io,
        files: [
            vec![(v1, lines(&|disk| format!("{}:{} {}", disk.major, disk.minor, number("0"))))],
            vec![("io.max", lines(&|disk| format!("{}:{} {v2}={}", disk.major, disk.minor, number("max"))))],
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(settings: &Settings, version: Version, name: &str) -> Option<String> {
        let disks = BTreeSet::from([Disk { major: 8, minor: 16 }]);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), "").unwrap();
        let group = Group { dir: dir.path().to_owned(), version, controllers: BTreeSet::new() };
        let any =
            from_settings(settings, &disks).iter().filter(|limit| limit.write(&group).unwrap()).count() > 0;
        any.then(|| fs::read_to_string(dir.path().join(name)).unwrap())
    }

    #[test]
    fn both_versions_have_the_same_limits() {
        let settings = Settings {
            cpuset_cpus: Some("1".parse().unwrap()),
            cpus: Some("1.5".parse().unwrap()),
            memory: Some(Bytes(1 << 30)),
            weight: Some(200),
            read_limit: Some(Bytes(5 << 20)),
            write_limit: None,
            ..Settings::default()
        };
        for (version, name, text) in [
            (Version::One, "cpuset.cpus", "1"),
            (Version::Two, "cpuset.cpus", "1"),
            (Version::One, "cpu.cfs_quota_us", "150000"),
            (Version::Two, "cpu.max", "150000 100000"),
            (Version::One, "memory.limit_in_bytes", "1073741824"),
            (Version::Two, "memory.max", "1073741824"),
            (Version::One, "cpu.shares", "2048"),
            (Version::Two, "cpu.weight", "200"),
            (Version::One, "blkio.bfq.weight", "200"),
            (Version::Two, "io.weight", "default 200"),
            (Version::One, "blkio.throttle.read_bps_device", "8:16 5242880"),
            (Version::One, "blkio.throttle.write_bps_device", "8:16 0"),
            (Version::Two, "io.max", "8:16 wbps=max"),
        ] {
            assert_eq!(written(&settings, version, name).as_deref(), Some(text), "{name}");
        }
        assert_eq!(written(&settings, Version::One, "memory.max"), None);
    }

    #[test]
    fn an_unset_limit_is_reset() {
        let none = Settings::default();
        for (version, name, text) in [
            (Version::One, "cpuset.cpus", ""),
            (Version::Two, "cpuset.cpus", "\n"),
            (Version::One, "cpu.cfs_quota_us", "-1"),
            (Version::Two, "cpu.max", "max 100000"),
            (Version::One, "memory.limit_in_bytes", "-1"),
            (Version::Two, "memory.max", "max"),
            (Version::Two, "cpu.weight", "100"),
            (Version::One, "cpu.shares", "1024"),
        ] {
            assert_eq!(written(&none, version, name).as_deref(), Some(text), "{name}");
        }
    }
}
