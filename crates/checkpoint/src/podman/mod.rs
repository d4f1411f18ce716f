//! Containers of podman: checkpoints are taken of them, and they are podman's again when they are restored.
//!
//! Podman has a database, and locks. So it is podman that is asked for a checkpoint and for a restoration, and holds its lock on the container
//! meanwhile; but what it calls to do the work comes to us first, by a `exec_barrier`: the runtime when a checkpoint is taken (`checkpoint`), conmon when
//! one is restored (`restore`). `archive` is what podman reads and writes of a container, `runtime_path` a namespace in which a program has another
//! one's place, `scratch` a directory for all that for a moment.

mod archive;
mod checkpoint;
mod exec_barrier;
mod restore;
mod runtime_path;
mod scratch_dir;

pub(crate) use checkpoint::is_vellum;
pub(crate) use exec_barrier::{AT_A_SOCKET, Gate, GateWaiter, quoted};
pub use exec_barrier::{GATE, pass};
pub(crate) use restore::{layer, restore};
pub use runtime_path::{APART, exec_in_mount_namespace};
pub(crate) use scratch_dir::ScratchDir;

use crate::external_library::ExternalLibrary;
use crate::pause::last_line;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use vellum_container::criu::Criu;
use vellum_container::in_path;
use vellum_service::Failure;

/// The file of a checkpoint that podman reads: what the container was started with.
const ARCHIVE: &str = "podman.tar";

/// What it takes for a container of podman to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreSpec {
    pub id: String,
    /// The version of podman.
    pub podman: String,
    /// The image's id.
    pub image: String,
    /// And its name.
    pub image_name: String,
    /// Digests of what is in the image's layers, the lowest one first.
    pub layers: Vec<String>,
    /// What runs.
    pub command: Vec<String>,
    /// What it sees that is not its own.
    pub mounts: Vec<Mount>,
    /// Whether it has the host's network.
    pub host_network: bool,
    /// The library that its programs have loaded from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<ExternalLibrary>,
}

/// A volume of podman, or a directory of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The volume's name; none: a directory.
    pub volume: Option<String>,
    /// Where it is on the host.
    pub source: PathBuf,
}

/// The program.
#[derive(Clone, Debug)]
pub(crate) struct Podman {
    program: PathBuf,
    /// PATH with CRIU in it.
    path: OsString,
}

/// What it says of an image.
#[derive(Deserialize)]
struct Image {
    #[serde(rename = "RootFS")]
    root: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(rename = "Layers", default)]
    layers: Vec<String>,
}

impl Podman {
    /// The one in PATH.
    pub(crate) fn find(criu: &Criu) -> Result<Self, Failure> {
        let none = || Failure::input("no podman in PATH, whose container it is");
        Ok(Self { program: in_path(Path::new("podman")).ok_or_else(none)?, path: criu.path() })
    }

    /// `podman ARGUMENTS`, away from the keyboard's signals.
    fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("PATH", &self.path).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn failed(&self, e: io::Error) -> Failure {
        Failure::at(&self.program, e)
    }

    fn output(&self, arguments: &[&str]) -> Result<Output, Failure> {
        self.command(arguments).output().map_err(|e| self.failed(e))
    }

    /// What it says in JSON.
    fn query_json<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, Failure> {
        let output = succeeded(self.output(arguments)?).map_err(Failure::input)?;
        serde_json::from_slice(&output.stdout).map_err(|e| {
            Failure::system(format!("podman {}: its answer cannot be read", arguments.join(" "))).because(e)
        })
    }

    /// Whether it has a `container`, an `image` or a `volume` of this name.
    fn has(&self, kind: &str, name: &str) -> Result<bool, Failure> {
        Ok(self.output(&[kind, "exists", name])?.status.success())
    }

    /// Digests of an image's layers.
    fn layers(&self, image: &str) -> Result<Vec<String>, Failure> {
        let images: Vec<Image> = self.query_json(&["image", "inspect", image])?;
        Ok(images.into_iter().next().map(|image| image.root.layers).unwrap_or_default())
    }

    fn version(&self) -> Result<String, Failure> {
        let output = self.output(&["--version"])?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.trim().trim_start_matches("podman version ").to_owned())
    }
}

/// Podman at work, for as long as that takes. What it says goes to files: if we are killed it comes to its end all the same, and is not ended by a pipe
/// that nobody reads.
#[derive(Debug)]
struct PodmanCommand {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl PodmanCommand {
    /// Starts it. `scratch`: a directory for the files.
    fn start(mut command: Command, scratch: &Path) -> io::Result<Self> {
        let (out, err) = (scratch.join("podman.out"), scratch.join("podman.err"));
        command.process_group(0).stdin(Stdio::null());
        command.stdout(File::create_new(&out)?).stderr(File::create_new(&err)?);
        Ok(Self { child: command.spawn()?, out, err })
    }

    /// Waits for its end.
    fn output(mut self) -> io::Result<Output> {
        let status = self.child.wait()?;
        Ok(Output { status, stdout: fs::read(&self.out)?, stderr: fs::read(&self.err)? })
    }
}

/// What a program has done that has not failed; otherwise why it has.
fn succeeded(output: Output) -> Result<Output, String> {
    if output.status.success() {
        return Ok(output);
    }
    let said = last_line(&output.stderr);
    Err(format!("podman: {}", said.strip_prefix("Error: ").unwrap_or(&said)))
}
