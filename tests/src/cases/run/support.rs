//! What cases of `vellum run` have in common: an image, and a way to run it that looks for what is left.

pub(in crate::cases) use crate::harness::PATIENCE;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, shell, source_root};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// What the containers of a case have in common.
pub(in crate::cases) struct Runs<'a> {
    pub(in crate::cases) cx: &'a Cx,
    pub(in crate::cases) program: PathBuf,
    pub(in crate::cases) state: PathBuf,
    pub(in crate::cases) image: PathBuf,
}

impl<'a> Runs<'a> {
    pub(in crate::cases) fn new(cx: &'a Cx) -> Outcome<Self> {
        let MountKind::Program(program, true) = MountKind::under_test() else {
            return skip("only Vellum runs containers");
        };
        let mut apt = Command::new(source_root().join("scripts/apt"));
        if !apt.args(["busybox-static", "crun", "runc"]).stdin(Stdio::null()).status()?.success() {
            return skip("busybox-static, crun and runc are missing: run make deps");
        }
        let runs =
            Self { cx, program, state: cx.dir.join("state"), image: cx.dir.join("image,with:odd name") };
        busybox(&runs.image)?;
        Ok(runs)
    }

    /// Runs of this image, with containers and layers kept elsewhere.
    pub(in crate::cases) fn elsewhere(&self, state: PathBuf) -> Self {
        Self { cx: self.cx, program: self.program.clone(), image: self.image.clone(), state }
    }

    /// `vellum run --state … ARGUMENTS`.
    pub(in crate::cases) fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("run").arg("--state").arg(&self.state).args(arguments).stdin(Stdio::null());
        command.env("VELLUM_POOLS", self.cx.dir.join("pools")).env_remove("VELLUM_LIBRARY");
        command
    }

    /// `vellum run` of the image.
    pub(in crate::cases) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare(&["--image"]);
        command.arg(&self.image).args(arguments);
        command
    }

    /// What a container says that ends well.
    pub(in crate::cases) fn run(&self, arguments: &[&str]) -> Outcome<String> {
        let said = shell::run(&mut self.command(arguments))?;
        self.check_no_leftovers()?;
        Ok(said)
    }

    pub(in crate::cases) fn output(&self, arguments: &[&str]) -> Outcome<Output> {
        let output = self.command(arguments).output()?;
        self.check_no_leftovers()?;
        Ok(output)
    }

    /// No container, no mount, nothing unfinished.
    pub(in crate::cases) fn check_no_leftovers(&self) -> Outcome {
        let left: Vec<_> = names(&self.state.join("containers"))?;
        ensure!(left.is_empty(), "containers {left:?} are left");
        let layers = names(&self.state.join("layers"))?;
        ensure!(!layers.iter().any(|name| name.starts_with("unfinished")), "{layers:?} are left");
        let mounts = self.mounts()?;
        ensure!(mounts.is_empty(), "{mounts:?} are left");
        Ok(())
    }

    fn mounts(&self) -> Outcome<Vec<String>> {
        let table = fs::read_to_string("/proc/self/mounts")?;
        let here = self.state.to_string_lossy().into_owned();
        Ok(table.lines().filter(|line| line.contains(&here)).map(str::to_owned).collect())
    }

    /// Starts a container that says `ready` when it is.
    pub(in crate::cases) fn start(&self, arguments: &[&str]) -> Outcome<RunProcess> {
        use std::io::BufRead;
        let mut child = self.command(arguments).stdout(Stdio::piped()).spawn()?;
        let Some(out) = child.stdout.take() else { return fail("no output") };
        let started = RunProcess(child);
        let mut line = String::new();
        std::io::BufReader::new(out).read_line(&mut line)?;
        ensure_eq!(line.trim(), "ready", "what it says first");
        Ok(started)
    }
}

/// A `vellum run` that is killed at the end of the case at the latest.
pub(in crate::cases) struct RunProcess(pub(in crate::cases) Child);

impl RunProcess {
    pub(in crate::cases) fn signal(&self, signal: Signal) -> Outcome {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.doing_or("its number")?, signal)?)
    }
}

impl Drop for RunProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

trait OrFail<T> {
    fn doing_or(self, what: &str) -> Outcome<T>;
}

impl<T> OrFail<T> for Option<T> {
    fn doing_or(self, what: &str) -> Outcome<T> {
        self.map_or_else(|| fail(format!("no {what}")), Ok)
    }
}

pub(in crate::cases) fn names(dir: &Path) -> Outcome<Vec<String>> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(Vec::new()) };
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// A tree with busybox, its users, and a file.
fn busybox(root: &Path) -> Outcome {
    for dir in ["bin", "etc", "srv", "tmp"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let program = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).is_file());
    fs::copy(program.doing_or("busybox")?, root.join("bin/busybox"))?;
    for applet in [
        "cat", "chmod", "date", "echo", "env", "false", "hostname", "id", "kill", "ls", "mkdir", "mount",
        "ps", "pwd", "rm", "sh", "sleep", "stat", "test", "touch", "true", "tty",
    ] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\nweb:x:34:\nvideo:x:44:web\n")?;
    fs::write(root.join("srv/file"), "of the image\n")?;
    Ok(())
}

/// Everything about a tree that `find` knows.
pub(in crate::cases) fn listing(root: &Path) -> Outcome<String> {
    let line = "find . -printf '%P %y %m %U %G %s %T@ %C@ %i %n %l\\n' | sort; find . -type f -print0 | sort -z | xargs -0 cat | cksum";
    shell::run(shell::bash(line).current_dir(root))
}
