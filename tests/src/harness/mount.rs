//! Mounts: of what is under test, and of kernel overlayfs to compare with.

use super::layers::Layers;
use super::outcome::{DuringContext, Outcome, Stop, ensure, fail};
use super::source_root;
use crate::harness::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a mount of Vellum serves files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// No opens, writeback cache.
    Cached,
    /// The kernel reads and writes the files below.
    Passthrough,
}

impl Profile {
    pub(crate) const ALL: [Self; 2] = [Self::Cached, Self::Passthrough];
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cached => "cached",
            Self::Passthrough => "passthrough",
        })
    }
}

/// What makes a union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountKind {
    /// A program with the command line of fuse-overlayfs; true: it is Vellum, which has options of its own.
    Program(PathBuf, bool),
    /// The kernel's overlayfs.
    Kernel,
}

impl MountKind {
    /// What the tests are about: the program of VELLUM (default: the release build), or `VELLUM=overlay` for
    /// the kernel's, which shows what a test is worth.
    pub(crate) fn under_test() -> Self {
        match std::env::var("VELLUM") {
            Ok(name) if name == "overlay" => Self::Kernel,
            Ok(path) if !path.is_empty() => Self::program(PathBuf::from(path)),
            _ => Self::program(source_root().join("target/release/vellum")),
        }
    }

    fn program(path: PathBuf) -> Self {
        let path = path.canonicalize().unwrap_or(path);
        let ours = path.file_name().is_some_and(|name| name == "vellum");
        Self::Program(path, ours)
    }

    /// Whether Vellum itself is under test and not a stand-in.
    pub(crate) fn is_vellum(&self) -> bool {
        matches!(self, Self::Program(_, true))
    }

    /// Whether there is something to run.
    pub(crate) fn exists(&self) -> bool {
        match self {
            Self::Program(path, _) => path.is_file(),
            Self::Kernel => true,
        }
    }
}

/// A mounted union. Dropping it unmounts by force.
pub(crate) struct Mount {
    kind: MountKind,
    layers: Layers,
    profile: Option<Profile>,
    options: Vec<String>,
    variables: Vec<(String, String)>,
    mounted: bool,
}

impl Mount {
    /// Mounts.
    pub(crate) fn new(
        kind: MountKind,
        profile: Option<Profile>,
        layers: &Layers,
        options: &[&str],
    ) -> Outcome<Self> {
        Self::with_variables(kind, profile, layers, options, &[])
    }

    /// Mounts, with variables in the environment of the mount program.
    pub(crate) fn with_variables(
        kind: MountKind,
        profile: Option<Profile>,
        layers: &Layers,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Outcome<Self> {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut mount = Self { kind, layers: layers.clone(), profile, options, variables, mounted: false };
        mount.mount()?;
        Ok(mount)
    }

    /// A second value of this mount, which does not unmount it.
    pub(crate) fn another(&self) -> Self {
        Self {
            kind: self.kind.clone(),
            layers: self.layers.clone(),
            profile: self.profile,
            options: self.options.clone(),
            variables: self.variables.clone(),
            mounted: false,
        }
    }

    /// The kernel's overlayfs, with everything that makes it resemble a plain filesystem.
    pub(crate) fn kernel(layers: &Layers) -> Outcome<Self> {
        Self::new(MountKind::Kernel, None, layers, &[])
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        &self.layers.merged
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.layers.merged.join(name)
    }

    /// The mount command.
    pub(crate) fn command(&self) -> Command {
        let mut text = format!("lowerdir={}", self.layers.lowerdir());
        if let Some(upper) = &self.layers.upper {
            text += &format!(",upperdir={},workdir={}", upper.display(), self.layers.work.display());
        }
        let mut command = match &self.kind {
            MountKind::Program(program, ours) => {
                if let (true, Some(profile)) = (ours, self.profile) {
                    text += &format!(",profile={profile}");
                }
                // Cases look at what a mount leaves; those about what is done afterwards say so.
                if *ours && !self.options.iter().any(|option| option.starts_with("fill_at_end")) {
                    text += ",fill_at_end=off";
                }
                Command::new(program)
            }
            MountKind::Kernel => {
                // A tree without an upper knows no index. Files in it whose attributes alone were copied up show
                // their data only to one that follows such marks.
                text += if self.layers.upper.is_some() {
                    ",redirect_dir=on,index=on,metacopy=off,xino=on"
                } else {
                    ",redirect_dir=on,metacopy=on"
                };
                let mut command = Command::new("mount");
                command.args(["-t", "overlay", "overlay"]);
                command
            }
        };
        for option in &self.options {
            text.push(',');
            text += option;
        }
        command.arg("-o").arg(text).arg(&self.layers.merged).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Mounts (again).
    pub(crate) fn mount(&mut self) -> Outcome {
        self.mount_by(&[])
    }

    /// Mounts (again), by a program that runs the mount command behind its own arguments.
    pub(crate) fn mount_by(&mut self, caller: &[&str]) -> Outcome {
        if !self.kind.exists() {
            return fail(format!("nothing to mount with: {:?}", self.kind));
        }
        let outside = fs::metadata(&self.layers.merged)?.dev();
        // Waits until standard error is closed too, as container engines do.
        let command = self.command();
        let mut command = match caller.split_first() {
            None => command,
            Some((caller, arguments)) => {
                let mut whole = Command::new(caller);
                whole
                    .args(arguments)
                    .arg(command.get_program())
                    .args(command.get_args())
                    .stdin(Stdio::null());
                whole.envs(self.variables.iter().map(|(name, value)| (name, value)));
                whole
            }
        };
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "mount: {} {}", output.status, said.trim());
        self.mounted = true;
        let inside = fs::metadata(&self.layers.merged)?.dev();
        ensure!(inside != outside, "the mount program has ended, but nothing is mounted: {said}");
        Ok(())
    }

    /// Unmounts, and waits until the daemon is gone.
    pub(crate) fn unmount(&mut self) -> Outcome {
        let begin = Instant::now();
        while let Err(errno) =
            rustix::mount::unmount(&self.layers.merged, rustix::mount::UnmountFlags::empty())
        {
            if begin.elapsed() > PATIENCE {
                return fail(format!("unmount: {errno}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.mounted = false;
        self.wait_for_end()
    }

    /// Somebody else has unmounted it: waits until the daemon is gone.
    pub(crate) fn poll_gone(&mut self) -> Outcome {
        self.mounted = false;
        self.wait_for_end()
    }

    /// Unmounts and mounts again.
    pub(crate) fn remount(&mut self) -> Outcome {
        self.unmount()?;
        self.mount()
    }

    /// Kills the daemon without warning and mounts again. The kernel's overlayfs, which has none, is remounted.
    pub(crate) fn crash(&mut self) -> Outcome {
        if self.kind == MountKind::Kernel {
            return self.remount();
        }
        self.kill_all()?;
        self.detach();
        self.mount()
    }

    /// Kills all processes of the mount, none of which gets the time to start another.
    pub(crate) fn kill_all(&self) -> Outcome {
        let begin = Instant::now();
        loop {
            let all: Vec<Pid> = self.daemons().into_iter().filter_map(Pid::from_raw).collect();
            if all.is_empty() {
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE, "processes stay: {all:?}");
            for signal in [Signal::STOP, Signal::KILL] {
                for pid in &all {
                    let _ = kill_process(*pid, signal);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_end(&self) -> Outcome {
        let begin = Instant::now();
        while !self.daemons().is_empty() {
            if begin.elapsed() > PATIENCE {
                return fail("the daemon does not end after unmount");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn detach(&mut self) {
        use rustix::mount::{UnmountFlags, unmount};
        let _ = unmount(&self.layers.merged, UnmountFlags::DETACH | UnmountFlags::FORCE);
        self.mounted = false;
    }

    /// The process that serves it, by its own word: a pool's service does not name its mounts in its command line.
    pub(crate) fn service(&self) -> Outcome<Pid> {
        let mut said = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(self.root(), c"vellum.instance", &mut said)?;
        said.truncate(len);
        let report: serde_json::Value = serde_json::from_slice(&said).doing("vellum.instance")?;
        let pid = report["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        pid.ok_or_else(|| Stop::Fail(format!("no service: {report}")))
    }

    /// Process ids of the daemons of this mount.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        let MountKind::Program(program, _) = &self.kind else { return Vec::new() };
        let merged = self.layers.merged.as_os_str();
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        processes
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                use std::os::unix::ffi::OsStrExt;
                let exe = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == *program);
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                exe && line.split(|&byte| byte == 0).any(|word| word == merged.as_bytes())
            })
            .collect()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            self.detach();
        }
    }
}

/// Ends the case as skipped unless Vellum itself is under test.
pub(crate) fn only_vellum(why: &str) -> Result<(), Stop> {
    if MountKind::under_test().is_vellum() { Ok(()) } else { super::skip(format!("a stand-in {why}")) }
}
