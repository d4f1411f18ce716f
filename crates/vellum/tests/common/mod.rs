//! What tests of the program share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const VELLUM: &str = env!("CARGO_BIN_EXE_vellum");

/// Longest time that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(args: &[&str]) -> Output {
    Command::new(VELLUM).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Standard error, which must be one line after the program's name.
pub(crate) fn line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let line = text.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {text:?}"));
    assert!(!line.contains('\n'), "more than a line: {text:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    line.strip_prefix("vellum: ").unwrap_or_else(|| panic!("no name: {text:?}")).to_owned()
}

/// Directories for a mount; what is still mounted when it is dropped is taken away.
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("lower/file"), "from below").unwrap();
        Self(dir)
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn options(&self) -> String {
        let at = |name| self.at(name).display().to_string();
        format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"))
    }

    /// The program, to mount here with `more` options.
    pub(crate) fn command(&self, more: &str) -> Command {
        let mut command = Command::new(VELLUM);
        command
            .arg("-o")
            .arg(format!("{}{more}", self.options()))
            .arg(self.at("merged"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn mount(&self, more: &str) {
        let output = self.command(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
        assert!(self.is_mounted());
    }

    pub(crate) fn is_mounted(&self) -> bool {
        is_mounted(&self.at("merged"))
    }

    pub(crate) fn unmount(&self) {
        let output = run(&["umount", self.at("merged").to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        assert!(!self.is_mounted());
    }

    /// The processes that are there for the mount here.
    pub(crate) fn family(&self) -> Vec<u32> {
        let merged = self.at("merged");
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.split(|byte| *byte == 0).any(|word| Some(word) == merged.to_str().map(str::as_bytes))
                    && line.starts_with(VELLUM.as_bytes())
            })
            .collect()
    }

    /// The process that serves the mount here, as it says itself.
    pub(crate) fn service(&self) -> u32 {
        let output = run(&["inspect", "--json", self.at("merged").to_str().unwrap()]);
        let findings: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("inspect prints JSON");
        u32::try_from(findings["instance"]["pid"].as_u64().unwrap()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while self.is_mounted() {
            let done = run(&["umount", "-l", self.at("merged").to_str().unwrap()]);
            if !done.status.success() {
                eprintln!("still mounted: {done:?}");
                break;
            }
        }
    }
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A zombie is dead.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A process that may have ended.
pub(crate) fn signal_if_there(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

pub(crate) fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Whether tests that mount can be run here; says so if not.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root()
        && fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("SKIPPED: root and /dev/fuse are needed to mount");
    }
    can
}
