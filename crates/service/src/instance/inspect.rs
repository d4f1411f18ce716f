//! What an instance can tell of itself, as `vellum inspect` shows it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vellum_union::Mappable;
use vellum_vfs::{NodeId, Result};

/// A step of work on an upper layer after its mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes have been copied.
    Copied(u64),
    /// They are being made durable. Until the next step nothing is changed.
    Syncing,
}

/// A tree that can say where its objects come from.
pub trait Explain {
    /// Where `node` comes from.
    fn explain(&self, node: NodeId) -> Result<NodeAnswer>;
    /// What a client must know to read a file through a mapping of its own; None: it should not.
    fn mappable(&self, node: NodeId) -> Result<Option<Mappable>> {
        let _ = node;
        Ok(None)
    }
    /// Does up to `bytes` of work that can wait for idle times; says how much it did.
    fn background_fill(&self, bytes: u64) -> u64 {
        let _ = bytes;
        0
    }
    /// Makes everything durable that has come so far.
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    /// After the mount has ended: copies up to `bytes` that the upper layer takes from others, so that it can be read without
    /// them. `go_on` sees each step, and ends the work by answering false. Says what was done, in one line.
    fn complete(&self, bytes: u64, go_on: &mut dyn FnMut(Step) -> bool) -> Result<Option<String>> {
        let _ = (bytes, go_on);
        Ok(None)
    }
    /// What the tree counts, by name.
    fn figures(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
    /// What is to be said of the tree as a whole, by name.
    fn summary(&self) -> BTreeMap<String, String>;
}

/// An instance: what it is made of and what it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceReport {
    /// Version of the service.
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
