//! Containers of containerd, by its own client `ctr`: checkpoints are taken of them (`checkpoint`), and they are containerd's again when they are
//! restored (`restore`).
//!
//! A container whose root is a directory, which Vellum is mounted on (`ctr run --rootfs`). While a checkpoint is taken containerd's container
//! runs, and is stopped for a moment past containerd; it is containerd that ends it, and that makes it again.

mod checkpoint;
mod restore;

pub(crate) use restore::restore;

use crate::external_library::ExternalLibrary;
use crate::pause::last_line;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use vellum_container::Lowers;
use vellum_container::criu::Criu;
use vellum_container::{State, in_path, plain_name};
use vellum_service::Failure;

/// The namespace where none is named.
const USUAL: &str = "default";
/// Where containerd has runc keep what it knows, by namespace.
const RUNC_STATE: &str = "/run/containerd/runc";
/// Where runtimes of restored containers are, beside containers.
const RUNTIMES: &str = "containerd";
/// What containerd calls there for one.
const RUNTIME: &str = "runc";

/// What it takes for a container of containerd to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreSpec {
    pub namespace: String,
    /// The layers below, the top one first.
    pub lowers: Vec<Lowers>,
    /// Where its upper layer and its work directory were, and the tree.
    pub upper: PathBuf,
    /// For the mount.
    pub work: PathBuf,
    /// Where the tree was mounted: the container's root.
    pub root: PathBuf,
    /// The mount's profile.
    pub profile: String,
    /// What a runtime is told of the container (`config.json`), as containerd has it.
    pub spec: serde_json::Value,
    /// The library that its programs have loaded from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<ExternalLibrary>,
}

/// As much as is of use of a specification.
#[derive(Deserialize)]
struct Spec {
    process: Process,
    root: Root,
    #[serde(default)]
    mounts: Vec<Mount>,
    linux: Linux,
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    terminal: bool,
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Mount {
    #[serde(default)]
    destination: PathBuf,
    #[serde(default)]
    source: PathBuf,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Deserialize)]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    r#type: String,
    #[serde(default)]
    path: PathBuf,
}

impl Spec {
    fn parse(spec: &serde_json::Value) -> Result<Self, Failure> {
        Self::deserialize(spec)
            .map_err(|e| Failure::system("containerd's specification of a container").because(e))
    }

    fn has_namespace(&self, kind: &str) -> bool {
        self.linux.namespaces.iter().any(|namespace| namespace.r#type == kind)
    }

    /// What it sees of the host.
    fn sources(&self) -> impl Iterator<Item = &Path> {
        self.bound().map(|(_, source)| source)
    }

    /// Where it sees it, too.
    fn bound(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let bind = |mount: &&Mount| mount.options.iter().any(|option| option == "bind" || option == "rbind");
        self.mounts.iter().filter(bind).map(|mount| (mount.destination.as_path(), mount.source.as_path()))
    }
}

impl RestoreSpec {
    /// The image, for people.
    pub(crate) fn image(&self) -> String {
        self.lowers.first().map(Lowers::display).unwrap_or_default()
    }

    /// The command, for people.
    pub(crate) fn command(&self) -> String {
        Spec::parse(&self.spec).map(|spec| spec.process.args.join(" ")).unwrap_or_default()
    }
}

/// The client.
#[derive(Clone, Debug)]
pub(crate) struct Containerd {
    program: PathBuf,
    /// PATH with CRIU in it.
    path: OsString,
}

impl Containerd {
    /// The one in PATH.
    pub(crate) fn find(criu: &Criu) -> Result<Self, Failure> {
        let none = || Failure::input("no ctr in PATH, containerd's client");
        Ok(Self { program: in_path(Path::new("ctr")).ok_or_else(none)?, path: criu.path() })
    }

    /// What `ctr --namespace NAMESPACE ARGUMENTS` says, away from the keyboard's signals.
    fn output<A: AsRef<OsStr>>(
        &self,
        namespace: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Output, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("--namespace").arg(namespace).args(arguments).env("PATH", &self.path).process_group(0);
        command.stdin(Stdio::null());
        command.output().map_err(|e| Failure::at(&self.program, e))
    }
}

/// What a program has said that has not failed; otherwise why it has.
fn succeeded(output: Output) -> Result<Vec<u8>, String> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = last_line(&output.stderr);
    Err(format!("containerd: {}", said.strip_prefix("ctr: ").unwrap_or(&said)))
}

/// `NAMESPACE/ID`, or an id in the usual namespace.
fn named(name: &str) -> Result<(&str, &str), Failure> {
    let (namespace, id) = name.split_once('/').unwrap_or((USUAL, name));
    Ok((plain_name("namespace of containerd", namespace)?, plain_name("container", id)?))
}

/// Where runc keeps what it knows of a namespace's containers.
fn runc_state(namespace: &str) -> PathBuf {
    Path::new(RUNC_STATE).join(namespace)
}

/// The directory of the program that containerd calls for a restored container.
fn runtimes(state: Option<&Path>, namespace: &str, id: &str) -> Result<PathBuf, Failure> {
    Ok(State::open(state)?.directory().join(RUNTIMES).join(format!("{namespace}.{id}")))
}
