//! What the union can tell of itself and of its objects.

use crate::nodes::node::{Body, InodeLocation};
use crate::union::{Core, Union};
use vellum_vfs::{NodeId, Result};

/// Where an object of the tree comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Inode number as stat(2) shows it.
    pub ino: u64,
    /// Path in the mount.
    pub path: String,
    /// Layer that holds its attributes; 0 is the uppermost.
    pub layer: usize,
    /// Its path in that layer, as far as it has one.
    pub layer_path: String,
    /// Whether it is in the upper layer.
    pub in_upper: bool,
    /// Layer and path of its data, when only its attributes were copied up.
    pub data_below: Option<(usize, String)>,
    /// Of a file that was copied in part: which share is its own.
    pub blocks: Option<Blocks>,
    /// Layers that contribute to a directory, uppermost first.
    pub merged_from: Vec<usize>,
    /// The node was replaced by another of the same file.
    pub stale: bool,
}

/// How much of a partial file is its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes that could come from below.
    pub limit: u64,
    /// Bytes of them that are its own.
    pub own: u64,
}

/// What a union is made of and what it holds in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Layers, uppermost first.
    pub layers: Vec<String>,
    /// Whether the first of them can be written to.
    pub writable: bool,
    /// Nodes that the kernel holds.
    pub nodes: usize,
    /// How whiteouts are written: `device` or `aufs`; empty for a read-only union.
    pub whiteouts: &'static str,
    /// Namespace of extended attributes in which marks are written.
    pub xattrs: &'static str,
}

impl Union {
    /// Where a node comes from. ESTALE: there is no such node.
    pub fn explain(&self, node: NodeId) -> Result<NodeReport> {
        let core: &Core = &self.0;
        let node = core.node(node)?;
        let path = crate::union::path_of(&node);
        let mut report = NodeReport {
            ino: node.ino,
            stale: node.marks().stale.load(std::sync::atomic::Ordering::Relaxed),
            layer_path: path.clone(),
            path,
            ..NodeReport::default()
        };
        let text = |path: &std::ffi::CStr| format!("/{}", path.to_string_lossy());
        match &node.body {
            Body::Dir(dir) => {
                report.in_upper = dir.upper.lock().is_some();
                report.merged_from = dir.lowers.iter().map(|part| usize::from(part.layer)).collect();
                if report.in_upper {
                    report.merged_from.insert(0, 0);
                } else if let Some(part) = dir.lowers.first() {
                    report.layer = usize::from(part.layer);
                    report.layer_path = text(&part.path);
                }
            }
            Body::File(file) => {
                let partial = if file.state.read().partial {
                    core.layers.readable(file)?.partial.clone()
                } else {
                    None
                };
                if let Some(partial) = partial {
                    report.blocks = Some(Blocks { limit: partial.limit(), own: partial.own_bytes()? });
                }
                let state = file.state.read();
                match &state.at {
                    InodeLocation::Lower(at) => {
                        report.layer = usize::from(at.dir.layer);
                        report.layer_path = text(&at.dir.path_of(vellum_vfs::Name::new(&at.name)?));
                    }
                    InodeLocation::Upper => report.in_upper = true,
                    InodeLocation::Orphan(_) => {
                        report.in_upper = true;
                        report.layer_path = String::new();
                    }
                }
                if let Some(below) = &state.below {
                    let at = &below.at;
                    let path = at.dir.path_of(vellum_vfs::Name::new(&at.name)?);
                    report.data_below = Some((usize::from(at.dir.layer), text(&path)));
                }
            }
        }
        Ok(report)
    }

    /// How many nodes the kernel holds.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.0.nodes.len()
    }

    /// How many files were written to and still take blocks from below, of those that were written to last: not more are remembered
    /// than a thousand.
    #[must_use]
    pub fn partial_files(&self) -> usize {
        self.0.upper.partials()
    }

    /// What the union is made of.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let core = &self.0;
        Summary {
            layers: core.layers.all().iter().map(|l| l.branch.describe()).collect(),
            writable: core.upper.work().is_ok(),
            nodes: self.nodes(),
            whiteouts: match core.upper.work().ok().map(|w| w.whiteouts) {
                Some(crate::layers::work_dir::Whiteouts::Device) => "device",
                Some(crate::layers::work_dir::Whiteouts::Aufs) => "aufs",
                None => "",
            },
            xattrs: match core.upper.space() {
                crate::layers::marks::Space::Trusted => "trusted",
                crate::layers::marks::Space::User => "user",
            },
        }
    }
}
