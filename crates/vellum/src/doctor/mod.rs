//! `vellum doctor`: what this host offers, and what stands in the way, one line for each subject with its remedy.

mod engines;
mod host;
mod stores;

use crate::json;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vellum_engine::Failure;

/// How a subject stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Nothing to do.
    Ok,
    /// Something works only in part, or is not installed.
    Note,
    /// Something does not work until its remedy has been applied.
    Problem,
}

/// One subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    subject: String,
    grade: Grade,
    finding: String,
    remedy: Option<String>,
}

impl Check {
    fn ok(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { subject: subject.into(), grade: Grade::Ok, finding: finding.into(), remedy: None }
    }

    fn note(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { grade: Grade::Note, ..Self::ok(subject, finding) }
    }

    fn problem(subject: impl Into<String>, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { grade: Grade::Problem, ..Self::ok(subject, finding) }.remedy(remedy)
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// The host as a user sees it. Tests put a directory in place of `/`.
#[derive(Clone, Debug)]
struct Host {
    root: PathBuf,
    /// The user's number.
    uid: u32,
    config: Option<PathBuf>,
    data: Option<PathBuf>,
    path: OsString,
    storage_conf: Option<PathBuf>,
}

impl Host {
    fn here() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from);
        let below_home = |name: &str, default: &str| {
            variable(name).map(PathBuf::from).or_else(|| home.as_ref().map(|home| home.join(default)))
        };
        Self {
            root: "/".into(),
            uid: rustix::process::geteuid().as_raw(),
            config: below_home("XDG_CONFIG_HOME", ".config"),
            data: below_home("XDG_DATA_HOME", ".local/share"),
            path: variable("PATH").unwrap_or_default(),
            storage_conf: variable("CONTAINERS_STORAGE_CONF").map(PathBuf::from),
        }
    }

    fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The place of an absolute path.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok()
    }

    /// A program of PATH.
    fn program(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.path).map(|dir| dir.join(name)).find(|path| self.at(path).is_file())
    }
}

/// Looks at everything. The second value says whether there is a problem.
pub fn run(as_json: bool) -> Result<(String, bool), Failure> {
    let host = Host::here();
    let mut checks = host::checks(&host);
    let (engines, stores) = engines::checks(&host);
    checks.extend(engines);
    checks.extend(stores::checks(&stores));
    checks.extend(stores::mounts()?);
    let any = checks.iter().any(|check| check.grade == Grade::Problem);
    let text = if as_json { json::pretty(&checks)? } else { text(&checks) };
    Ok((text, any))
}

fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.subject.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Check { subject, grade, finding, remedy } in checks {
        let grade = match grade {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Problem => "PROBLEM",
        };
        let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
        let _ = writeln!(text, "{grade:<8} {subject:<width$}  {finding}{remedy}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of a few files, of the user `uid`.
    pub(super) fn host(uid: u32, files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let host = Host {
            root: dir.path().to_owned(),
            uid,
            config: Some("/home/ann/.config".into()),
            data: Some("/home/ann/.local/share".into()),
            path: "/usr/bin:/bin".into(),
            storage_conf: None,
        };
        for (path, text) in files {
            let path = host.at(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (dir, host)
    }

    #[test]
    fn a_check_is_one_line_with_its_remedy() {
        let checks =
            [Check::ok("kernel", "Linux 6.18"), Check::problem("fuse", "no /dev/fuse", "run modprobe fuse")];
        assert_eq!(
            text(&checks),
            "ok       kernel  Linux 6.18\nPROBLEM  fuse    no /dev/fuse; run modprobe fuse\n"
        );
    }
}
