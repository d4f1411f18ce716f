//! What an instance can tell of itself, as `vellum inspect` shows it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An instance: what it is made of and what it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceReport {
    pub version: String,
    /// Process id of the service, in its own namespace.
    pub pid: u32,
    /// Where it is mounted.
    pub mountpoint: String,
    /// `cached` or `passthrough`.
    pub profile: String,
    /// Whether changes are possible.
    pub read_only: bool,
    /// Whether nothing is made durable.
    pub volatile: bool,
    /// The upper layer.
    pub upper: Option<String>,
    /// The work directory.
    pub work: Option<String>,
    /// Number of layers, the upper included; their paths are asked for one by one.
    pub layer_count: usize,
    /// Threads that answer requests.
    pub workers: usize,
    /// Kernel features in use.
    pub features: Vec<String>,
    /// Which privileges the process has given up, by part.
    #[serde(default)]
    pub sandbox: BTreeMap<String, String>,
    /// Whether processors are kept awake, or why not.
    #[serde(default)]
    pub processors: String,
    /// What the tree says of itself as a whole, by name.
    pub summary: BTreeMap<String, String>,
    /// Paths of the layers from the top down.
    #[serde(skip)]
    pub layers: Vec<String>,
}

/// Where an object comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// The layer that serves it, 0 being the top one.
    pub layer: usize,
    /// Its path in that layer.
    pub path: String,
    /// Whether that layer is the upper.
    pub in_upper: bool,
    /// For a directory: all layers that have a part in it, from the top down.
    pub merged_from: Vec<usize>,
    /// What the union knows beside that, by name.
    pub details: BTreeMap<String, String>,
}
