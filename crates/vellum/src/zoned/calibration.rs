//! What calibrations have found, kept in a file for each device.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_zoned::calibrate::Findings;
use vellum_zoned::store::Placement;

/// Where root's are.
const SYSTEM: &str = "/var/lib/vellum";
/// Longest name of a file, without its suffix.
const NAME_MAX: usize = 200;

/// The directory of calibrations.
#[derive(Debug)]
pub(super) struct Calibrations(PathBuf);

/// What was found of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Calibration {
    /// The device.
    pub(super) identity: String,
    /// What can be said of it, in a word,
    pub(super) verdict: String,
    /// and in a sentence.
    pub(super) text: String,
    pub(super) groups: u32,
    pub(super) checkpoint_groups: u32,
    pub(super) stripe: u32,
    pub(super) zones_to_same_die: Option<u32>,
    /// Bytes per second of one zone alone.
    pub(super) read_rate: u64,
    pub(super) write_rate: u64,
    pub(super) write_buffer_is_shared: bool,
    pub(super) beside: Vec<NeighbourReport>,
    pub(super) pairs: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NeighbourReport {
    pub(super) place: String,
    pub(super) readers: f64,
    pub(super) writers: f64,
    pub(super) reads_wait: f64,
    pub(super) writes_wait: f64,
}

impl Calibration {
    pub(super) fn new(identity: &str, findings: &Findings) -> Self {
        let Placement { groups, checkpoint_groups, stripe } = findings.placement();
        // Three digits are more than is known.
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let report = |beside: &vellum_zoned::calibrate::NeighbourUse| NeighbourReport {
            place: beside.place.to_owned(),
            readers: rounded(beside.readers),
            writers: rounded(beside.writers),
            reads_wait: rounded(beside.reads_wait),
            writes_wait: rounded(beside.writes_wait),
        };
        Self {
            identity: identity.to_owned(),
            verdict: findings.verdict.name().to_owned(),
            text: findings.verdict.text().to_owned(),
            groups,
            checkpoint_groups,
            stripe,
            zones_to_same_die: findings.dies,
            read_rate: findings.read_rate,
            write_rate: findings.write_rate,
            write_buffer_is_shared: findings.is_buffer_shared(),
            beside: findings.beside.iter().map(report).collect(),
            pairs: findings.pairs,
        }
    }

    /// Which zones images are to have.
    pub(super) fn placement(&self, device: &Path) -> Result<Placement, Failure> {
        let Self { groups, checkpoint_groups, stripe, .. } = *self;
        let placement = Placement { groups, checkpoint_groups, stripe };
        let refused = |error| {
            let line = format!("{}: its calibration makes no sense", device.display());
            Failure::input(line).because(error).remedy("vellum zoned calibrate makes it anew")
        };
        placement.check().map(|()| placement).map_err(refused)
    }
}

impl Calibrations {
    /// In the directory that is asked for, or that of this user.
    pub(super) fn at(asked: Option<&Path>) -> Result<Self, Failure> {
        if let Some(asked) = asked {
            return Ok(Self(asked.to_owned()));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self(Path::new(SYSTEM).join("zoned")));
        }
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
        let none =
            || Failure::input("no directory for calibrations: HOME is not set").remedy("give --state DIR");
        Ok(Self(data.ok_or_else(none)?.join("vellum/zoned")))
    }

    fn file_of(&self, identity: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
        let name: String = identity.trim_start_matches('.').chars().map(plain).take(NAME_MAX).collect();
        self.0.join(name + ".json")
    }

    /// That of a device; None where it was never calibrated.
    pub(super) fn find(&self, identity: Option<&str>) -> Result<Option<Calibration>, Failure> {
        let Some(identity) = identity else { return Ok(None) };
        let file = self.file_of(identity);
        let failed = || {
            Failure::input(format!("{}: cannot be read", file.display()))
                .remedy("remove it, or make it anew by vellum zoned calibrate")
        };
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed().because(e)),
        };
        let kept: Calibration = serde_json::from_slice(&text).map_err(|e| failed().because(e))?;
        // Another device may have nearly the same name.
        Ok(Some(kept).filter(|kept| kept.identity == identity))
    }

    /// Keeps one, whole or not at all; where.
    pub(super) fn keep(&self, calibration: &Calibration) -> Result<PathBuf, Failure> {
        let file = self.file_of(&calibration.identity);
        let text = crate::json::pretty(calibration)?;
        let write = || {
            fs::create_dir_all(&self.0)?;
            let new = file.with_extension(format!("new-{}", std::process::id()));
            let mut out = fs::File::create(&new)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &file)
        };
        write().map_err(|e| Failure::system(format!("{}: cannot be written", file.display())).because(e))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_in_the_directory() {
        let all = Calibrations(PathBuf::from("/d"));
        assert_eq!(all.file_of("nvme.1b36-7a x"), Path::new("/d/nvme.1b36-7a_x.json"));
        assert_eq!(all.file_of("../../etc/x"), Path::new("/d/_.._etc_x.json"));
        assert_eq!(all.file_of(&"x".repeat(1000)).as_os_str().len(), 3 + NAME_MAX + 5);
    }
}
