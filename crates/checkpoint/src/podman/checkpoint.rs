//! A checkpoint of a container of podman.
//!
//! Podman is asked for a checkpoint that leaves the container running, and calls the container's runtime for it, with its lock held. In the runtime's
//! place it finds a gate. While podman waits there, a checkpoint is taken as of any container; then podman is told that the runtime
//! has done its work, and exports what it knows of the container. So nobody else pauses, stops or removes it meanwhile by podman, and podman
//! believes all the time what is true: it runs.

use super::exec_barrier::{Gate, GateWaiter};
use super::scratch_dir::ScratchDir;
use super::{APART, ARCHIVE, Mount, Podman, PodmanCommand, RestoreSpec, archive, succeeded};
use crate::external_library::ExternalLibrary;
use crate::freezer::Freezer;
use crate::library::Library;
use crate::object::ObjectWriter;
use crate::record::ContainerEngine;
use crate::subject::Subject;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, open, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use vellum_container::{Kind, Runtime, plain_name};
use vellum_service::Failure;
use vellum_service::mounts::mountpoint::{FS_TYPE, top_mount};

/// Where runc keeps what it knows of root's containers.
const RUNC_STATE: &str = "/run/runc";
/// The most that is read of conmon's command line, in bytes.
const LINE_MAX: u64 = 1 << 20;
/// What is called with this is the runtime that takes a checkpoint.
const TAKES: &str = "--image-path";
/// What is not for everybody to see, in a directory for a moment.
const EXPORTED: &str = "exported.tar";
const SHARED: &str = "shared.tar";

/// What podman says of a container that has ended, and is taken away from the host.
const ENDED: &[u8] = b"exited";
/// How long that is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// What podman says of a container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodmanInspect {
    id: String,
    name: String,
    state: Status,
    image: String,
    image_name: String,
    #[serde(default)]
    rootfs: String,
    #[serde(default)]
    pod: String,
    #[serde(default)]
    dependencies: Option<Vec<String>>,
    static_dir: PathBuf,
    #[serde(rename = "OCIConfigPath")]
    spec: PathBuf,
    #[serde(default)]
    path: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    graph_driver: Driver,
    #[serde(default)]
    mounts: Option<Vec<Inside>>,
    host_config: Host,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Status {
    status: String,
    #[serde(default)]
    conmon_pid: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Driver {
    name: String,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    merged_dir: Option<PathBuf>,
    upper_dir: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inside {
    r#type: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    source: PathBuf,
    #[serde(default)]
    destination: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Host {
    #[serde(default)]
    network_mode: String,
    #[serde(rename = "IDMappings", default)]
    ids: Option<serde_json::Value>,
}

/// As much as is of use of a configuration for a runtime.
#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    mounts: Vec<SpecMount>,
}

#[derive(Deserialize)]
struct SpecMount {
    destination: PathBuf,
    #[serde(default)]
    source: PathBuf,
}

pub(crate) struct PodmanContainer {
    podman: Podman,
    vellum: PathBuf,
    seen: PodmanInspect,
    merged: PathBuf,
    upper: PathBuf,
    runtime: Runtime,
    state: PathBuf,
    library: Option<Library>,
    scratch: ScratchDir,
    kill: Box<dyn Fn() -> Result<(), Failure>>,
    held: Option<PodmanWait>,
}

/// Podman, waiting.
struct PodmanWait {
    podman: Option<PodmanCommand>,
    waiting: Option<GateWaiter>,
    #[expect(dead_code, reason = "the socket is there as long as somebody waits")]
    gate: Gate,
}

impl Podman {
    /// The container of this name or id, if it can be kept.
    pub(crate) fn container(
        self,
        vellum: &Path,
        state: Option<&Path>,
        name: &str,
    ) -> Result<PodmanContainer, Failure> {
        // No option for podman.
        plain_name("container", name)?;
        let seen: Vec<PodmanInspect> = self.query_json(&["container", "inspect", name])?;
        let seen = seen.into_iter().next().ok_or_else(|| {
            Failure::input(format!("container podman:{name}: podman has none of this name"))
        })?;
        let refused = |why: &str| Failure::input(format!("container podman:{name}: {why}"));
        if seen.state.status != "running" {
            return Err(refused(&format!(
                "it is {}, and only running ones have checkpoints",
                seen.state.status
            )));
        }
        if let Some(why) = seen.unfit() {
            return Err(refused(why));
        }
        let data = seen.graph_driver.data.clone().filter(|_| seen.graph_driver.name == "overlay");
        let dirs = data.and_then(|data| data.merged_dir.zip(data.upper_dir));
        let (merged, upper) = dirs.filter(|(merged, _)| is_vellum(merged)).ok_or_else(|| {
            refused("its storage is not on Vellum").remedy(
                "name vellum as mount_program in storage.conf, or use podman container checkpoint --export",
            )
        })?;
        let (program, state_dir) = conmon_runtime(seen.state.conmon_pid, &seen.id).ok_or_else(|| {
            refused(
                "conmon, which watches over it, is no more there or does not say its runtime; start it anew",
            )
        })?;
        let runtime = Runtime::at(program);
        if runtime.kind() == Kind::Crun {
            return Err(refused(
                "crun runs it, which takes no checkpoints; start it with podman --runtime runc run",
            ));
        }
        let library = Freezer::from_runtime_state(&state_dir, &seen.id)
            .map_or(Ok(None), |freezer| Library::find_loaded(freezer.group(), freezer.init()))
            .map_err(refused)?;
        let kill = Box::new({
            let (podman, id) = (self.clone(), seen.id.clone());
            // By podman, so that a container that is always started again is not.
            move || {
                let killed = podman.output(&["kill", "--signal", "KILL", &id])?;
                succeeded(killed).map(|_| ()).map_err(Failure::system)
            }
        });
        Ok(PodmanContainer {
            podman: self,
            vellum: vellum.to_owned(),
            seen,
            merged,
            upper,
            runtime,
            state: state_dir,
            library,
            scratch: ScratchDir::new(state)?,
            kill,
            held: None,
        })
    }
}

impl PodmanInspect {
    /// Why it cannot be kept.
    fn unfit(&self) -> Option<&'static str> {
        if !self.pod.is_empty() {
            return Some("it is in a pod, and checkpoints of those are not made yet");
        }
        if self.dependencies.as_ref().is_some_and(|all| !all.is_empty()) {
            return Some("it shares namespaces with another container, and would not go on without");
        }
        if !self.rootfs.is_empty() || self.image.is_empty() {
            return Some("it is of no image, but of a root filesystem of its own");
        }
        if self.host_config.ids.as_ref().is_some_and(|ids| !ids.is_null()) {
            return Some(
                "it has ids of its own (--uidmap, --userns), and checkpoints of such containers are not made yet",
            );
        }
        None
    }
}

/// Whether Vellum is mounted there.
pub(crate) fn is_vellum(merged: &Path) -> bool {
    // The kernel knows no links.
    let point = merged.canonicalize().unwrap_or_else(|_| merged.to_owned());
    top_mount(&point).is_some_and(|mount| mount.fs_type == FS_TYPE)
}

/// The runtime that conmon calls, and where that keeps what it knows.
///
/// Where conmon was killed, podman still knows its number, which a process of any container may have got. What that says is not believed: it has
/// another user, or another root directory. A set-user-ID program has this user's rights and another's arguments: all of its users count.
fn conmon_runtime(conmon: u32, id: &str) -> Option<(PathBuf, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // From here on it is one process, whatever becomes of its number.
    let process = open(format!("/proc/{conmon}"), flags, Mode::empty()).ok()?;
    let root = |path: &str| statat(&process, path, AtFlags::empty()).ok();
    let (its, own) = (root("root")?, rustix::fs::stat("/").ok()?);
    if fstat(&process).ok()?.st_uid != geteuid().as_raw()
        || (its.st_dev, its.st_ino) != (own.st_dev, own.st_ino)
    {
        return None;
    }
    let mut status = String::new();
    let file = openat(&process, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    File::from(file).take(LINE_MAX).read_to_string(&mut status).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let own = geteuid().as_raw().to_string();
    if users.split_whitespace().any(|user| user != own) {
        return None;
    }
    let mut line = Vec::new();
    let words = openat(&process, "cmdline", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    File::from(words).take(LINE_MAX).read_to_end(&mut line).ok()?;
    parse_conmon(&line, id)
}

fn parse_conmon(line: &[u8], id: &str) -> Option<(PathBuf, PathBuf)> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let after = |option: &[u8]| {
        let mut pairs = words.iter().zip(words.iter().skip(1));
        pairs.find_map(|(word, next)| (*word == option).then_some(*next))
    };
    let mut pairs = words.iter().zip(words.iter().skip(1));
    if !pairs.any(|(word, next)| matches!(*word, b"-c" | b"--cid") && *next == id.as_bytes()) {
        return None;
    }
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let runtime = path(after(b"-r").or_else(|| after(b"--runtime"))?);
    // Each word for the runtime follows an option of conmon's.
    let mut told = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if *word == b"--runtime-arg" {
            told.extend(words.get(at + 1).copied());
        }
        told.extend(word.strip_prefix(b"--runtime-arg="));
    }
    let root = told.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(b"--root") {
        Some(b"") => told.get(at + 1).copied(),
        Some(rest) => rest.strip_prefix(b"="),
        None => None,
    });
    Some((runtime, root.map_or_else(|| RUNC_STATE.into(), path)))
}

impl PodmanContainer {
    /// Podman, asked for a checkpoint, when it calls the runtime.
    fn holding(&self) -> Result<PodmanWait, Failure> {
        let scratch = self.scratch.path();
        let failed = |e: std::io::Error| Failure::at(scratch, e);
        let gate = Gate::new(scratch, &self.seen.static_dir).map_err(failed)?;
        let real = scratch.join("runtime");
        File::create_new(&real).map_err(failed)?;
        let script = gate.script(&self.vellum, "gate-of-runtime", TAKES, &real).map_err(failed)?;
        let asked = ["container", "checkpoint", "--leave-running", "--ignore-rootfs", "--ignore-volumes"];
        let mut arguments: Vec<OsString> = asked.map(OsString::from).to_vec();
        arguments.extend(["--compress".into(), "none".into(), "--export".into()]);
        arguments.push(scratch.join(EXPORTED).into());
        arguments.push(self.seen.id.clone().into());
        let plain = self.podman.command(&arguments);
        let mut command = Command::new(&self.vellum);
        command.arg(APART).arg(self.runtime.program()).arg(script).arg(real);
        command.arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut podman = PodmanCommand::start(command, scratch).map_err(failed)?;
        if let Some(waiting) = gate.wait(&mut podman.child).map_err(failed)? {
            return Ok(PodmanWait { podman: Some(podman), waiting: Some(waiting), gate });
        }
        let other = || format!("podman does not call {} for it", self.runtime.program().display());
        Err(Failure::system(succeeded(podman.output().map_err(failed)?).err().unwrap_or_else(other)))
    }

    /// The directory of shared memory that podman has made for it, if it has.
    fn shared_memory(&self) -> Option<PathBuf> {
        let spec: Spec = serde_json::from_slice(&fs::read(&self.seen.spec).ok()?).ok()?;
        let mount = spec.mounts.into_iter().find(|mount| mount.destination == Path::new("/dev/shm"))?;
        (mount.source == self.seen.static_dir.join("shm")).then_some(mount.source)
    }
}

impl Drop for PodmanWait {
    fn drop(&mut self) {
        // Turned away, podman gives up its lock.
        self.waiting = None;
        let _ = self.podman.take().map(PodmanCommand::output);
    }
}

impl Subject for PodmanContainer {
    fn name(&self) -> &str {
        &self.seen.name
    }

    fn id(&self) -> &str {
        &self.seen.id
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn runtime_state(&self) -> PathBuf {
        self.state.clone()
    }

    fn merged(&self) -> PathBuf {
        self.merged.clone()
    }

    fn upper(&self) -> PathBuf {
        self.upper.clone()
    }

    fn scratch(&self) -> PathBuf {
        self.scratch.path().to_owned()
    }

    /// Where podman has CRIU write them.
    fn work(&self) -> Result<PathBuf, Failure> {
        Ok(self.seen.static_dir.clone())
    }

    fn configure(&self, text: &str) -> Result<PathBuf, Failure> {
        let file = self.scratch.path().join("criu.conf");
        fs::write(&file, text).map_err(|e| Failure::at(&file, e))?;
        Ok(file)
    }

    fn host_network(&self) -> bool {
        self.seen.host_config.network_mode == "host"
    }

    fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    fn lock(&self) -> Result<File, Failure> {
        let dir = &self.seen.static_dir;
        let file = File::open(dir).map_err(|e| Failure::at(dir, e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Failure::input(format!(
                "container podman:{}: somebody is taking a checkpoint of it; wait until that is done",
                self.seen.name
            ))),
            locked => locked.map(|()| file).map_err(|e| Failure::at(dir, e)),
        }
    }

    fn describe(&self) -> Result<ContainerEngine, Failure> {
        let seen = &self.seen;
        let mounts = seen.mounts.iter().flatten().map(|inside| Mount {
            volume: (inside.r#type == "volume").then(|| inside.name.clone()),
            source: inside.source.clone(),
        });
        Ok(ContainerEngine::Podman(RestoreSpec {
            id: seen.id.clone(),
            podman: self.podman.version()?,
            image: seen.image.clone(),
            image_name: seen.image_name.clone(),
            layers: self.podman.layers(&seen.image)?,
            command: [seen.path.clone()].into_iter().chain(seen.args.iter().flatten().cloned()).collect(),
            mounts: mounts.collect(),
            host_network: self.host_network(),
            library: self.library.as_ref().and_then(|library| {
                let mounts = seen.mounts.iter().flatten();
                ExternalLibrary::from_mounts(
                    library,
                    mounts.map(|one| (one.destination.as_path(), one.source.as_path())),
                )
            }),
        }))
    }

    fn hold(&mut self) -> Result<(), Failure> {
        self.held = Some(self.holding()?);
        Ok(())
    }

    fn final_pass(&mut self, _: &mut ObjectWriter) -> Result<(), Failure> {
        let Some(dir) = self.shared_memory() else { return Ok(()) };
        archive::shared(&dir, &self.scratch.path().join(SHARED)).map_err(|e| Failure::at(&dir, e))
    }

    fn release(&mut self, writer: &mut ObjectWriter) -> Result<(), Failure> {
        let Some(mut held) = self.held.take() else { return Ok(()) };
        let scratch = self.scratch.path();
        let failed = |e: std::io::Error| Failure::at(scratch, e);
        if let Some(waiting) = held.waiting.take() {
            waiting.done().map_err(failed)?;
        }
        if let Some(podman) = held.podman.take() {
            let exported = succeeded(podman.output().map_err(failed)?);
            exported.map_err(|why| Failure::system(format!("{why}: it has not exported the container")))?;
        }
        let (shared, whole) = (scratch.join(SHARED), scratch.join(ARCHIVE));
        archive::write(&scratch.join(EXPORTED), shared.exists().then_some(&shared), &whole)
            .map_err(failed)?;
        writer.file(ARCHIVE, &whole)
    }

    fn kill(&self) -> Option<&dyn Fn() -> Result<(), Failure>> {
        Some(&*self.kill)
    }

    /// Podman is to have seen it before anybody asks. One with `--rm` is gone by then.
    fn ended(&self) {
        let status = ["container", "inspect", "--format", "{{.State.Status}}", &self.seen.id];
        vellum_sys::wait_until(PATIENCE, PAUSE, || {
            let said = self.podman.output(&status);
            !said.is_ok_and(|said| said.status.success() && !said.stdout.starts_with(ENDED))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_read_from_conmons_arguments() {
        let line = |words: &[&str]| words.join("\0").into_bytes();
        let runc = || PathBuf::from("/usr/bin/runc");
        let plain =
            line(&["conmon", "-c", "a1", "-r", "/usr/bin/runc", "--runtime-arg", "--log", "--runtime-arg=x"]);
        assert_eq!(parse_conmon(&plain, "a1"), Some((runc(), RUNC_STATE.into())));
        assert_eq!(parse_conmon(&plain, "b1"), None, "another container's");
        for words in [&["--runtime-arg", "--root", "--runtime-arg", "/r"][..], &["--runtime-arg=--root=/r"]] {
            let with = line(&[&["conmon", "--cid", "a1", "--runtime", "/usr/bin/runc"], words].concat());
            assert_eq!(parse_conmon(&with, "a1"), Some((runc(), "/r".into())), "{words:?}");
        }
        assert_eq!(parse_conmon(b"sleep\x0060", "60"), None);
    }

    /// A process that has the number which podman knows, and says what conmon would say.
    #[test]
    fn a_foreign_process_is_not_taken_for_conmon() {
        let said = |user: Option<u32>, program: &[&str]| {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).args(["conmon", "-c", "a1", "-r", "/evil"]);
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
            if let Some(user) = user {
                std::os::unix::process::CommandExt::uid(&mut command, user);
            }
            let mut child = command.spawn().unwrap();
            child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            let said = conmon_runtime(child.id(), "a1");
            drop(child.stdin.take());
            child.wait().unwrap();
            assert_eq!(conmon_runtime(child.id(), "a1"), None, "it has ended");
            said
        };
        assert_eq!(said(None, &["sh", "-c", "echo; read word"]), Some(("/evil".into(), RUNC_STATE.into())));
        if !geteuid().is_root() {
            return println!("SKIPPED: needs root, to be another user and to have another root directory");
        }
        assert_eq!(said(Some(65_534), &["sh", "-c", "echo; read word"]), None, "another user");
        if Command::new("perl").arg("-v").output().is_err() {
            return println!("SKIPPED: no perl, which is made to have another root directory");
        }
        let other = r#"$| = 1; chroot "/proc" or die; print "\n"; <STDIN>"#;
        assert_eq!(said(None, &["perl", "-e", other]), None, "another root directory");
    }
}
