//! What a container was started with, kept in its directory as long as it runs: a checkpoint takes it along, and the container that goes
//! on elsewhere is started with it again.

use super::process::Plan;
use super::user::User;
use super::volume::Volume;
use crate::image::Source;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_service::config::LayerWriters;
use vellum_service::layers::ceph::CephLayer;

/// The file.
const NAME: &str = "settings.json";

/// What a container was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What the root is made of.
    pub image: Image,
    /// The directories of its layers, the top one first; none of a tree that lies on CephFS.
    pub lowers: Vec<PathBuf>,
    /// What runs.
    pub(crate) plan: Plan,
    /// As whom.
    pub(crate) user: User,
    /// What it sees of the host.
    pub(crate) volumes: Vec<Volume>,
    pub pool: Option<String>,
    /// The ids of the host that its own are; None: the same.
    pub(crate) ids: Option<String>,
    /// Its weight among the mounts of the service.
    pub(crate) weight: Option<u16>,
    /// Whether its layers are read through the service's cache.
    pub(crate) cache: Option<LayerWriters>,
    /// The name of its host.
    pub(crate) hostname: String,
    /// Whether the command has a terminal.
    pub(crate) terminal: bool,
    /// Whether its root cannot be written.
    pub(crate) read_only: bool,
    /// Whether it has the host's network.
    pub host_network: bool,
    /// Whether its processes may gain privileges.
    pub(crate) new_privileges: bool,
    /// Whether its programs have the library loaded.
    pub library: bool,
    /// Whether it is shown a socket of the pool's service.
    pub(crate) socket: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Image {
    /// A directory tree.
    Tree(PathBuf),
    /// An image layout, and the name of an image in it.
    Layout(PathBuf, Option<String>),
    /// A directory on CephFS: a tree, or an image layout.
    Far(CephLayer),
    /// An image layout on CephFS, maybe with the name of an image in it.
    FarLayout(CephLayer),
}

impl From<Source> for Image {
    fn from(source: Source) -> Self {
        match source {
            Source::Tree(dir) => Self::Tree(dir),
            Source::Layout(dir, tag) => Self::Layout(dir, tag),
            Source::Far(layer) => Self::Far(layer),
            Source::FarLayout(layer) => Self::FarLayout(layer),
        }
    }
}

impl Settings {
    /// The command, for people.
    #[must_use]
    pub fn command(&self) -> String {
        self.plan.args.join(" ")
    }

    /// Writes them into a container's directory. Where a path is not UTF-8 there are none, and no checkpoints.
    pub(super) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(NAME);
        match serde_json::to_vec_pretty(self) {
            Ok(text) => fs::write(&path, text).map_err(|e| Failure::at(&path, e)),
            Err(why) => {
                tracing::info!("no checkpoint can be taken of this container: {why}");
                Ok(())
            }
        }
    }

    /// Reads those in a container's directory. None: it has not come so far, or can have none.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join(NAME);
        let failed = |e: &dyn std::error::Error| Failure::system(format!("{}: {e}", path.display()));
        match fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            text => serde_json::from_slice(&text.map_err(|e| failed(&e))?).map(Some).map_err(|e| failed(&e)),
        }
    }
}
