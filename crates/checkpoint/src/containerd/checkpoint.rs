//! A container of containerd, of which a checkpoint is taken.

use super::{Containerd, RUNTIME, RestoreSpec, Spec, named, runc_state, runtimes, succeeded};
use crate::external_library::ExternalLibrary;
use crate::freezer::Freezer;
use crate::library::Library;
use crate::object::ObjectWriter;
use crate::podman::{ScratchDir, is_vellum, layer};
use crate::record::ContainerEngine;
use crate::subject::Subject;
use rustix::fs::{FlockOperation, flock, lgetxattr};
use rustix::io::Errno;
use serde::Deserialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_container::{Image, Kind, Lowers, Runtime, in_path};
use vellum_service::Failure;
use vellum_service::config::LAYERS_MAX;
use vellum_service::instance::INSTANCE;
use vellum_service::instance::inspect::InstanceReport;

/// What runs containers for containerd here.
const RUNTIME_NAME: &str = "io.containerd.runc.v2";
/// Where CRIU writes its logs, in what runc keeps of the container: runc's own place for them.
const WORK: &str = "criu.work";
/// Longest answer of a mount, in bytes.
const ANSWER_MAX: usize = 64 << 10;
/// How long it is waited for containerd to have seen an end.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// What containerd says of a container.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Info {
    #[serde(default)]
    snapshotter: String,
    runtime: NamedContainer,
    spec: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NamedContainer {
    name: String,
    #[serde(default)]
    options: Option<Options>,
}

/// A message of containerd's, in base64.
#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    value: String,
}

pub(crate) struct ContainerdContainer {
    namespace: String,
    id: String,
    spec: serde_json::Value,
    root: PathBuf,
    answer: InstanceReport,
    runtime: Runtime,
    state: PathBuf,
    host_network: bool,
    library: Option<Library>,
    scratch: ScratchDir,
    containerd: Containerd,
    kill: Box<dyn Fn() -> Result<(), Failure>>,
}

impl Containerd {
    /// The container of this name, if it can be kept.
    pub(crate) fn container(self, state: Option<&Path>, name: &str) -> Result<ContainerdContainer, Failure> {
        let (namespace, id) = named(name)?;
        let refused = |why: &str| Failure::input(format!("container containerd:{name}: {why}"));
        let text =
            succeeded(self.output(namespace, ["containers", "info", id])?).map_err(|why| refused(&why))?;
        let info: Info = serde_json::from_slice(&text)
            .map_err(|e| Failure::system("ctr containers info: its answer cannot be read").because(e))?;
        if !self.is(namespace, id, "RUNNING")? {
            return Err(refused("it is not running, and only running ones have checkpoints"));
        }
        let spec = Spec::parse(&info.spec)?;
        if let Some(why) = unfit(&info, &spec) {
            return Err(refused(why));
        }
        let runtime = runtime(info.runtime.options.as_ref(), &runtimes(state, namespace, id)?);
        let runtime = runtime.ok_or_else(|| {
            refused("it has options for its runtime, and checkpoints of such containers are not made yet")
        })?;
        if runtime.kind() == Kind::Crun {
            return Err(refused("crun runs it, which takes no checkpoints"));
        }
        let root = spec.root.path.clone();
        let answer = answer(&root).filter(|answer| answer.upper.is_some() && answer.work.is_some());
        let answer = answer.ok_or_else(|| {
            refused("its root is no writable tree of Vellum")
                .remedy("start it by ctr run --rootfs DIR, where Vellum is mounted on DIR")
        })?;
        let state_dir = runc_state(namespace);
        let library = Freezer::from_runtime_state(&state_dir, id)
            .map_or(Ok(None), |freezer| Library::find_loaded(freezer.group(), freezer.init()))
            .map_err(refused)?;
        let kill = Box::new({
            let (containerd, namespace, id) = (self.clone(), namespace.to_owned(), id.to_owned());
            move || {
                let killed = containerd.output(&namespace, ["tasks", "kill", "--signal", "SIGKILL", &id])?;
                succeeded(killed).map(drop).map_err(Failure::system)
            }
        });
        Ok(ContainerdContainer {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
            host_network: !spec.has_namespace("network"),
            spec: info.spec,
            root,
            answer,
            runtime,
            state: state_dir,
            library,
            scratch: ScratchDir::new(state)?,
            containerd: self,
            kill,
        })
    }

    /// Whether containerd says that of a container's task.
    fn is(&self, namespace: &str, id: &str, status: &str) -> Result<bool, Failure> {
        let text = succeeded(self.output(namespace, ["tasks", "list"])?).map_err(Failure::system)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().any(|line| {
            let mut words = line.split_ascii_whitespace();
            words.next() == Some(id) && words.nth(1) == Some(status)
        }))
    }
}

/// Why it cannot be kept.
fn unfit(info: &Info, spec: &Spec) -> Option<&'static str> {
    if !info.snapshotter.is_empty() {
        return Some("its tree is of a snapshotter, and only such as ctr run --rootfs has started are kept");
    }
    if info.runtime.name != RUNTIME_NAME {
        return Some("another runtime than io.containerd.runc.v2 runs it");
    }
    if spec.process.terminal {
        return Some("it has a terminal, and checkpoints of such containers are not made yet");
    }
    if spec.has_namespace("user") {
        return Some("it has ids of its own, and checkpoints of such containers are not made yet");
    }
    if spec.linux.namespaces.iter().any(|namespace| !namespace.path.as_os_str().is_empty()) {
        return Some("it shares namespaces with others, and would not go on without");
    }
    (!spec.has_namespace("pid")).then_some("it has no process ids of its own")
}

/// What runs it, if it is runc by the path that containerd looks for it in, or the one of a restored container.
fn runtime(options: Option<&Options>, restored: &Path) -> Option<Runtime> {
    let runc = in_path(Path::new(RUNTIME)).map(Runtime::at);
    match options.map(|options| options.value.as_str()) {
        None | Some("") => runc,
        Some(value) => runc.filter(|_| value == base64(&binary_name(&restored.join(RUNTIME)))),
    }
}

/// The options by which containerd calls a program in the place of runc: its field 6, a text.
fn binary_name(program: &Path) -> Vec<u8> {
    let name = std::os::unix::ffi::OsStrExt::as_bytes(program.as_os_str());
    let mut message = vec![6 << 3 | 2];
    let mut len = name.len();
    while len > 0x7f {
        message.push((len & 0x7f) as u8 | 0x80);
        len >>= 7;
    }
    message.push(len as u8);
    message.extend_from_slice(name);
    message
}

/// Base64, as JSON has bytes.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let number = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS.get((number >> (18 - 6 * place) & 63) as usize).copied().unwrap_or(b'=');
            text.push(if place <= three.len() { digit.into() } else { '=' });
        }
    }
    text
}

/// What the mount of Vellum at a directory says of itself.
fn answer(root: &Path) -> Option<InstanceReport> {
    if !is_vellum(root) {
        return None;
    }
    let mut text = vec![0; ANSWER_MAX];
    let len = lgetxattr(root, INSTANCE, text.as_mut_slice()).ok()?;
    serde_json::from_slice(text.get(..len)?).ok()
}

impl Subject for ContainerdContainer {
    fn name(&self) -> &str {
        &self.id
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn runtime_state(&self) -> PathBuf {
        self.state.clone()
    }

    fn merged(&self) -> PathBuf {
        self.root.clone()
    }

    fn upper(&self) -> PathBuf {
        self.answer.upper.as_deref().unwrap_or_default().into()
    }

    fn scratch(&self) -> PathBuf {
        self.scratch.path().to_owned()
    }

    fn work(&self) -> Result<PathBuf, Failure> {
        let work = self.state.join(&self.id).join(WORK);
        fs::create_dir_all(&work).map_err(|e| Failure::at(&work, e))?;
        Ok(work)
    }

    fn configure(&self, text: &str) -> Result<PathBuf, Failure> {
        let file = self.scratch.path().join("criu.conf");
        fs::write(&file, text).map_err(|e| Failure::at(&file, e))?;
        Ok(file)
    }

    fn host_network(&self) -> bool {
        self.host_network
    }

    fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    fn lock(&self) -> Result<File, Failure> {
        let dir = self.state.join(&self.id);
        let file = File::open(&dir).map_err(|e| Failure::at(&dir, e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Failure::input(format!(
                "container containerd:{}/{}: somebody is taking a checkpoint of it; wait until that is done",
                self.namespace, self.id
            ))),
            locked => locked.map(|()| file).map_err(|e| Failure::at(&dir, e)),
        }
    }

    fn describe(&self) -> Result<ContainerEngine, Failure> {
        let layers = (1..=LAYERS_MAX).map_while(|number| layer(&self.root, number));
        let lowers =
            layers.map(|dir| Lowers::from_image(&Image::Tree(dir), &[])).collect::<Result<_, _>>()?;
        Ok(ContainerEngine::Containerd(Box::new(RestoreSpec {
            namespace: self.namespace.clone(),
            lowers,
            upper: self.upper(),
            work: self.answer.work.as_deref().unwrap_or_default().into(),
            root: self.root.clone(),
            profile: self.answer.profile.clone(),
            library: self
                .library
                .as_ref()
                .map(|library| {
                    Ok::<_, Failure>(ExternalLibrary::from_mounts(library, Spec::parse(&self.spec)?.bound()))
                })
                .transpose()?
                .flatten(),
            spec: self.spec.clone(),
        })))
    }

    /// All that is the container's is in its namespaces, or in its layer.
    fn final_pass(&mut self, _: &mut ObjectWriter) -> Result<(), Failure> {
        Ok(())
    }

    fn kill(&self) -> Option<&dyn Fn() -> Result<(), Failure>> {
        Some(&*self.kill)
    }

    /// Containerd is to have seen it before anybody asks.
    fn ended(&self) {
        let runs = || self.containerd.is(&self.namespace, &self.id, "RUNNING").unwrap_or(false);
        vellum_sys::wait_until(PATIENCE, PAUSE, || !runs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_a_restored_container() {
        assert_eq!(base64(b""), "");
        assert_eq!((base64(b"a"), base64(b"ab")), ("YQ==".into(), "YWI=".into()));
        assert_eq!((base64(b"abc"), base64(b"abcd")), ("YWJj".into(), "YWJjZA==".into()));
        assert_eq!(binary_name(Path::new("/r")), b"2\x02/r");
        let long = format!("/{}", "x".repeat(199));
        assert_eq!(binary_name(Path::new(&long))[..3], [b'2', 0xc8, 1]);
        let other = Options { value: base64(b"2\x02/r") };
        assert!(runtime(Some(&other), Path::new("/elsewhere")).is_none());
    }

    #[test]
    fn container_names_have_an_optional_namespace() {
        assert_eq!(named("one").unwrap(), ("default", "one"));
        assert_eq!(named("k8s.io/one").unwrap(), ("k8s.io", "one"));
        for bad in ["", "/one", "a/", "a/b/c", "--all", "-n/one"] {
            assert_eq!(named(bad).unwrap_err().exit_status(), 2, "{bad}");
        }
    }
}
