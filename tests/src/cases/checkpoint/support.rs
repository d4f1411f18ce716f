//! What cases of checkpoints have in common: CRIU, containers that count, and a directory of checkpoints.

use crate::cases::run::support::Runs;
pub(super) use crate::harness::PATIENCE;
use crate::harness::outcome::{DuringContext, Outcome, fail, skip, wait_while};
use crate::harness::{Cx, shell, source_root};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Waits for it.
pub(in crate::cases) fn eventually(what: &str, mut is: impl FnMut() -> Outcome<bool>) -> Outcome {
    wait_while!(!is()?, "not within {PATIENCE:?}: {what}");
    Ok(())
}

/// Whether somebody watches over a container. Each case has processes of its own.
pub(super) fn is_guarded() -> Outcome<bool> {
    Ok(Command::new("pgrep").args(["-f", "internal-thaw"]).stdout(Stdio::null()).status()?.success())
}

/// PATH with a CRIU that knows this kernel.
pub(in crate::cases) fn criu() -> Outcome<OsString> {
    let found = Command::new(source_root().join("scripts/criu-dir")).stdin(Stdio::null()).output()?;
    if !found.status.success() {
        return skip("no CRIU 4, and no Debian 13 tree with one: run make deps");
    }
    let bin = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).doing("PATH")
}

/// The containers and checkpoints of a case.
pub(in crate::cases) struct Scene<'a> {
    runs: Runs<'a>,
    path: OsString,
    to: String,
    /// What containers have loaded.
    library: PathBuf,
}

/// A `vellum run` or `vellum restore`, killed at the end of the case at the latest; what it says goes to a file.
pub(in crate::cases) struct VellumProcess {
    child: std::cell::RefCell<Child>,
    said: PathBuf,
}

impl<'a> Scene<'a> {
    /// With an image of busybox.
    pub(in crate::cases) fn new(cx: &'a Cx) -> Outcome<Self> {
        let runs = Runs::new(cx)?;
        let path = criu()?;
        let to = runs.cx.dir.join("checkpoints").display().to_string();
        Ok(Self { runs, path, to, library: PathBuf::new() })
    }

    /// With checkpoints in a store in a file of so many MiB.
    pub(in crate::cases) fn in_a_store(mut self, mib: u64) -> Outcome<Self> {
        let device = self.runs.cx.dir.join("device").display().to_string();
        let state = self.runs.cx.dir.join("calibrations").display().to_string();
        let size = format!("{mib}M");
        self.vellum(&["zoned", "format", "--state", &state, "--size", &size, "--zone-size", "1M", &device])?;
        self.to = format!("zoned:{device}");
        Ok(self)
    }

    /// With the library in all programs.
    pub(super) fn with_library(mut self, library: PathBuf) -> Self {
        self.library = library;
        self
    }

    /// What is on the store's device.
    pub(super) fn inspect(&self) -> Outcome<serde_json::Value> {
        let state = self.runs.cx.dir.join("calibrations").display().to_string();
        let device = self.to.trim_start_matches("zoned:");
        let said = self.vellum(&["zoned", "inspect", "--state", &state, "--json", device])?;
        serde_json::from_str(&said).doing("what inspect says")
    }

    /// With an image that has the programs of this host, where it sees its /usr.
    pub(super) fn with_host_programs(cx: &'a Cx) -> Outcome<Self> {
        let scene = Self::new(cx)?;
        fs::remove_dir_all(scene.image().join("bin"))?;
        fs::create_dir(scene.image().join("usr"))?;
        for name in ["bin", "sbin", "lib", "lib64"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), scene.image().join(name))?;
        }
        Ok(scene)
    }

    pub(in crate::cases) fn image(&self) -> &Path {
        &self.runs.image
    }

    pub(in crate::cases) fn state(&self) -> String {
        self.runs.state.display().to_string()
    }

    /// Where checkpoints are.
    pub(in crate::cases) fn to(&self) -> String {
        self.to.clone()
    }

    pub(in crate::cases) fn checkpoint_dir(&self, name: &str) -> PathBuf {
        Path::new(&self.to()).join(name)
    }

    /// `vellum ARGUMENTS`.
    pub(in crate::cases) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(&self.runs.program);
        command.args(arguments);
        // What lies beside the program is not loaded.
        command.env("VELLUM_POOLS", self.runs.cx.dir.join("pools")).env("VELLUM_LIBRARY", &self.library);
        command
    }

    /// A program that finds CRIU.
    pub(super) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env("PATH", &self.path);
        command
    }

    pub(in crate::cases) fn vellum(&self, arguments: &[&str]) -> Outcome<String> {
        shell::run(&mut self.command(arguments))
    }

    /// `vellum run` by runc.
    pub(in crate::cases) fn start(&self, arguments: &[&str]) -> Outcome<VellumProcess> {
        self.start_of(&self.image().display().to_string(), arguments)
    }

    /// `vellum run` by runc, of another image.
    pub(in crate::cases) fn start_of(&self, image: &str, arguments: &[&str]) -> Outcome<VellumProcess> {
        let state = self.state();
        let always = ["run", "--runtime", "runc", "--state", &state, "--image", image];
        self.going(&[&always[..], arguments].concat())
    }

    /// `vellum restore` of one of the checkpoints.
    pub(in crate::cases) fn restore(&self, name: &str, more: &[&str]) -> Outcome<VellumProcess> {
        let (state, path) = (self.state(), self.checkpoint_dir(name).display().to_string());
        self.going(&[&["restore", "--state", &state, &path][..], more].concat())
    }

    fn going(&self, arguments: &[&str]) -> Outcome<VellumProcess> {
        self.going_from(Stdio::null(), arguments)
    }

    /// As of `start`, with something on standard input.
    pub(super) fn going_from(&self, from: Stdio, arguments: &[&str]) -> Outcome<VellumProcess> {
        let number = fs::read_dir(&self.runs.cx.dir)?.count();
        let said = self.runs.cx.dir.join(format!("said-{number}"));
        let out = fs::File::create(&said)?;
        let child = self.command(arguments).stdin(from).stdout(out.try_clone()?).stderr(out).spawn()?;
        Ok(VellumProcess { child: child.into(), said })
    }

    pub(in crate::cases) fn checkpoint(&self, arguments: &[&str]) -> Outcome {
        self.checkpoint_to(Path::new(&self.to()), arguments)
    }

    pub(in crate::cases) fn checkpoint_to(&self, to: &Path, arguments: &[&str]) -> Outcome {
        let (state, to) = (self.state(), to.display().to_string());
        self.vellum(&[&["checkpoint", "--state", &state, "--to", &to][..], arguments].concat()).map(drop)
    }

    /// `vellum checkpoint --leave-running`, not started yet.
    pub(in crate::cases) fn taking(&self, name: &str, to: &Path) -> Command {
        let (state, to) = (self.state(), to.display().to_string());
        self.command(&["checkpoint", name, "--state", &state, "--to", &to, "--leave-running"])
    }

    /// Kills one more that has a guard, which takes away what is unfinished. What commands have left that were killed before they had one,
    /// the next one takes away when it begins: here, this one.
    pub(super) fn leaves_nothing_unfinished(&self, name: &str, more: &[&str]) -> Outcome {
        eventually("no guard", || Ok(!is_guarded()?))?;
        let to = self.to();
        let begin = || self.taking(name, Path::new(&to)).args(more).spawn();
        let mut child = begin()?;
        // Its own: the one of a command that was killed before may have been about to begin when none was seen, and has the right until it ends.
        eventually("a guard", || {
            let ended = child.try_wait()?;
            if ended.is_some_and(|status| !status.success()) {
                child = begin()?;
            }
            let parent = child.id().to_string();
            let mut guard = Command::new("pgrep");
            let guard = guard.args(["-P", &parent, "-f", "internal-thaw"]).stdout(Stdio::null()).status()?;
            Ok(guard.success() || ended.is_some_and(|status| status.success()))
        })?;
        child.kill()?;
        child.wait()?;
        eventually("nothing unfinished", || {
            let mut all = fs::read_dir(&to)?.flatten();
            Ok(!all.any(|one| one.file_name().to_string_lossy().starts_with(".unfinished")))
        })?;
        // It has the right to take one until it has ended.
        eventually("no guard", || Ok(!is_guarded()?))
    }

    /// Where a container's tree is mounted.
    pub(in crate::cases) fn merged(&self, name: &str) -> Outcome<PathBuf> {
        let dir = self.runs.state.join("containers").join(name);
        match fs::read_dir(&dir)?.next() {
            Some(run) => Ok(run?.path().join("merged")),
            None => fail(format!("{}: empty", dir.display())),
        }
    }

    /// A running container's upper layer, a directory.
    pub(in crate::cases) fn upper(&self, name: &str) -> Outcome<PathBuf> {
        Ok(self.merged(name)?.with_file_name("private").join("upper"))
    }

    pub(in crate::cases) fn check_no_leftovers(&self) -> Outcome {
        self.runs.check_no_leftovers()
    }
}

impl VellumProcess {
    pub(in crate::cases) fn output_text(&self) -> Outcome<String> {
        Ok(fs::read_to_string(&self.said)?)
    }

    /// The last number that it has said.
    pub(super) fn last_number(&self) -> u64 {
        let said = self.output_text().unwrap_or_default();
        said.lines().rev().find_map(|line| line.trim().parse().ok()).unwrap_or(0)
    }

    pub(super) fn has_ended(&self) -> Outcome<bool> {
        Ok(self.child.borrow_mut().try_wait()?.is_some())
    }

    fn lines(&self) -> usize {
        fs::read_to_string(&self.said).unwrap_or_default().lines().count()
    }

    /// Waits until it says something that it has not said yet.
    pub(in crate::cases) fn says_more(&self) -> Outcome {
        let before = self.lines();
        eventually(&format!("more than {before} lines in {}", self.said.display()), || {
            if let Some(status) = self.child.borrow_mut().try_wait()? {
                let said = fs::read_to_string(&self.said)?;
                return fail(format!("it has ended, {status}: {}", said.lines().last().unwrap_or_default()));
            }
            Ok(self.lines() > before)
        })
    }

    /// Waits for its end: its exit status.
    pub(in crate::cases) fn ends(&self) -> Outcome<i32> {
        eventually("it ends", || Ok(self.child.borrow_mut().try_wait()?.is_some()))?;
        Ok(self.child.borrow_mut().wait()?.code().unwrap_or(-1))
    }

    pub(super) fn signal(&self, signal: Signal) -> Outcome {
        let pid = i32::try_from(self.child.borrow().id()).ok().and_then(Pid::from_raw);
        match pid {
            Some(pid) => Ok(kill_process(pid, signal)?),
            None => fail("no number"),
        }
    }
}

impl Drop for VellumProcess {
    fn drop(&mut self) {
        // It takes its container away.
        let _ = self.signal(Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && matches!(self.child.borrow_mut().try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.borrow_mut().kill();
        let _ = self.child.borrow_mut().wait();
    }
}
