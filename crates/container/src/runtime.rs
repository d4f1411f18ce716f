//! The OCI runtime: found, called, and understood when it fails.

use super::STATUS_FAILED;
use super::host_mounts::HostMounts;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use vellum_service::Failure;

/// Those that are looked for, in this order.
const KNOWN: [&str; 2] = ["crun", "runc"];
/// The most of a log that is read, in bytes from its end.
const LOG_MAX: usize = 64 << 10;

/// Exit statuses as podman has them.
const STATUS_NOT_EXECUTABLE: u8 = 126;
const STATUS_NOT_FOUND: u8 = 127;

/// What a runtime can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It can do without control groups.
    Crun,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    program: PathBuf,
    kind: Kind,
}

/// What it is to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bundle<'a> {
    pub(super) id: &'a str,
    /// Where its configuration is.
    pub(super) dir: &'a Path,
    /// Where the runtime keeps what it knows.
    pub(super) state: &'a Path,
    /// Where it says what went wrong.
    pub(super) log: &'a Path,
    /// What it sees elsewhere than it is.
    pub(super) shown: &'a HostMounts,
}

/// What it is to restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images<'a> {
    /// Where CRIU has written it.
    pub(super) dir: &'a Path,
    /// Where CRIU writes its log.
    pub(super) work: &'a Path,
    /// More options.
    pub(super) options: &'a [&'a str],
    /// PATH, with CRIU in it.
    pub(super) path: &'a OsStr,
}

impl Runtime {
    /// The one that is asked for, or the first of those that can work on this host.
    pub(super) fn find(asked: Option<&Path>) -> Result<Self, Failure> {
        if let Some(asked) = asked {
            let bad = || {
                let shown = asked.display();
                Failure::input(format!(
                    "option --runtime {shown}: no such program; give crun, runc or a path"
                ))
            };
            let found = if asked.components().count() > 1 { Some(asked.to_owned()) } else { in_path(asked) };
            let found = found.and_then(|path| path.canonicalize().ok()).filter(|path| path.is_file());
            return found.map(Self::at).ok_or_else(bad);
        }
        let there: Vec<Self> =
            KNOWN.iter().filter_map(|name| in_path(Path::new(name)).map(Self::at)).collect();
        let can = |runtime: &&Self| runtime.kind != Kind::Crun || !is_hybrid_with_controllers();
        there.iter().find(can).or(there.first()).cloned().ok_or_else(|| {
            Failure::system(
                "no OCI runtime found: neither crun nor runc is in PATH; apt-get install crun (or runc)",
            )
        })
    }

    /// The one in a file.
    pub fn at(program: PathBuf) -> Self {
        let crun = program.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"crun"));
        Self { program, kind: if crun { Kind::Crun } else { Kind::Other } }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// `RUNTIME run`, or with `images` `RUNTIME restore`, by `vellum`, which ties it to this process. `groups`: whether
    /// it is to make control groups. `at_keyboard`: it is to be in the foreground of our terminal; otherwise it is where signals from the
    /// keyboard do not reach it twice, from the terminal and from us.
    pub(super) fn run(
        &self,
        vellum: &Path,
        bundle: &Bundle<'_>,
        images: Option<&Images<'_>>,
        groups: bool,
        at_keyboard: bool,
    ) -> Command {
        let mut command = Command::new(vellum);
        command.arg(super::exec_helper::SUBCOMMAND).args(bundle.shown.options());
        command.arg(std::process::id().to_string()).arg(&self.program);
        if !groups && self.kind == Kind::Crun {
            command.arg("--cgroup-manager=disabled");
        }
        let Bundle { id, dir, state, log, .. } = bundle;
        command.arg("--root").arg(state).arg("--log").arg(log).args(["--log-format", "json"]);
        match images {
            None => command.arg("run"),
            Some(Images { dir, work, options, path }) => {
                command.env("PATH", path).arg("restore").arg("--image-path").arg(dir);
                command.arg("--work-path").arg(work).args(*options)
            }
        };
        command.arg("--bundle").arg(dir).arg(id);
        if !at_keyboard {
            command.process_group(0);
        }
        command
    }

    /// The first process of a container; none: it is not there, or has ended.
    pub(super) fn first_process(&self, id: &str, state: &Path) -> Option<u32> {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(state).args(["state", id]).stdin(Stdio::null());
        let said: Value = serde_json::from_slice(&command.output().ok()?.stdout).ok()?;
        let is_there = said.get("status").and_then(Value::as_str) != Some("stopped");
        let number = said.get("pid").and_then(Value::as_u64).filter(|number| is_there && *number > 0)?;
        u32::try_from(number).ok()
    }

    /// Kills a container's first process, and with it the others. That there is none is fine.
    pub(super) fn kill(&self, id: &str, state: &Path) {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(state).args(["kill", id, "KILL"]);
        let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !done.is_ok_and(|status| status.success()) {
            tracing::debug!("{} kill {id}: it did not", self.program.display());
        }
    }

    /// Ends a container by force and forgets it. That there is none is fine.
    pub(super) fn delete(&self, id: &str, state: &Path) {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(state).args(["delete", "--force", id]);
        let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !done.is_ok_and(|status| status.success()) {
            tracing::debug!("{} delete --force {id}: it did not", self.program.display());
        }
    }
}

/// The exit status that a shell would give.
pub(super) fn status(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(STATUS_FAILED)
}

/// The exit status for a container that the runtime did not start, if its log says so. It says why on standard error as well.
pub(super) fn refusal(log: &Path) -> Option<u8> {
    let bytes = fs::read(log).ok()?;
    let end = bytes.get(bytes.len().saturating_sub(LOG_MAX)..)?;
    let text = String::from_utf8_lossy(end);
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_error =
        |line: &Value| matches!(line.get("level").and_then(Value::as_str), Some("error" | "fatal"));
    let last = lines.rfind(is_error)?;
    last.get("msg").and_then(Value::as_str).map(status_of)
}

/// As podman understands what runtimes say.
fn status_of(said: &str) -> u8 {
    let said = said.to_lowercase();
    let has = |words: &str| said.contains(words);
    if has("permission denied") || has("operation not permitted") || has("is a directory") {
        STATUS_NOT_EXECUTABLE
    } else if has("no such file or directory") || has("not found in $path") {
        STATUS_NOT_FOUND
    } else {
        STATUS_FAILED
    }
}

/// A program in PATH, or where administrators have theirs.
pub fn in_path(name: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    // Those of administrators are not in everybody's path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut dirs = std::env::split_paths(&path).chain(more);
    dirs.find_map(|dir| {
        let program = dir.join(name);
        let meta = program.metadata().ok()?;
        (meta.is_file() && meta.permissions().mode() & 0o111 != 0).then_some(program)
    })
}

/// Version 1 and, beside it, version 2 with controllers of its own: crun starts nothing there.
fn is_hybrid_with_controllers() -> bool {
    let controllers = fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers");
    controllers.is_ok_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_runtime_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("crun").display().to_string();
        for name in ["no-such-runtime", missing.as_str(), "/"] {
            let failure = Runtime::find(Some(Path::new(name))).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains(name), "{failure}");
        }
        let own = std::env::current_exe().unwrap();
        assert_eq!(Runtime::find(Some(&own)).unwrap().kind(), Kind::Other);
        assert_eq!(Runtime::at("/x/crun-1.2".into()).kind(), Kind::Crun);
    }

    #[test]
    fn runtime_errors_are_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(refusal(&log), None);
        for (line, found) in [
            ("", None),
            ("nonsense\n{\"level\":\"warning\",\"msg\":\"x\"}", None),
            (
                "{\"level\":\"error\",\"msg\":\"exec: \\\"x\\\": executable file not found in $PATH\"}",
                Some(127),
            ),
            ("{\"msg\":\"open executable: Permission denied\",\"level\":\"error\"}", Some(126)),
            ("{\"level\":\"error\",\"msg\":\"cgroups: no space\"}\n{\"level\":\"warning\"}", Some(125)),
        ] {
            fs::write(&log, line).unwrap();
            assert_eq!(refusal(&log), found, "{line}");
        }
        assert_eq!(status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status(ExitStatus::from_raw(9)), 137);
    }
}
