//! The union itself: four parts, each with what needs no other, and the operations that need several.

use crate::coherence::Coherence;
use crate::config::UnionConfig;
use crate::copyup::Upper;
use crate::layers::Layers;
use crate::nodes::Nodes;
use crate::nodes::node::{Body, Node};
use crate::nodes::recovery::lost_forgets::LostForgets;
use crate::nodes::shared_name::SharedName;
use crate::questions::{QUESTION, Questions};
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};
use vellum_vfs::{NodeId, Result};

/// A writable (or read-only) tree made of layers; a [`vellum_vfs::Filesystem`].
pub struct Union(pub(crate) Core);

/// What the union's operations share. What one part is enough for is a method of that part.
pub(crate) struct Core {
    pub(crate) layers: Layers,
    pub(crate) upper: Upper,
    pub(crate) nodes: Nodes,
    pub(crate) coherence: Coherence,
    questions: OnceLock<Weak<dyn Questions>>,
}

impl Union {
    /// Opens the layers and prepares the work directory.
    ///
    /// EINVAL: no layers, or too many; otherwise the errno of what could not be read, with its path.
    pub fn new(config: UnionConfig) -> Result<Self> {
        let (layers, work, aufs) = Layers::open(config)?;
        let nodes = Nodes::new(&layers.config, layers.root_dir()?);
        let coherence = Coherence::new(&layers, nodes.is_recovering());
        Ok(Self(Core { layers, upper: Upper::new(work, aufs), nodes, coherence, questions: OnceLock::new() }))
    }

    /// Goes on with what a predecessor has left in [`UnionConfig::ledger`]; `held`: the descriptors that it names
    /// ([`crate::Ledger::held_descriptors`]). To be called before the kernel asks for anything.
    pub fn resume(&self, held: HashMap<RawFd, OwnedFd>) {
        self.0.resume(held);
    }

    /// Has `questions` answer what is asked of the tree by attributes whose names begin with [`QUESTION`].
    pub fn set_questions(&self, questions: Weak<dyn Questions>) {
        let _ = self.0.questions.set(questions);
    }

    /// Who answers the attribute `name`; None: it is a file's own.
    pub(crate) fn questions(&self, name: &CStr) -> Option<Arc<dyn Questions>> {
        let is_question = name.to_bytes().starts_with(QUESTION.as_bytes());
        if is_question { self.0.questions.get()?.upgrade() } else { None }
    }

    /// From so many nodes on, the bell of [`UnionConfig::nodes`] is rung, once.
    pub fn set_node_alarm(&self, at: usize) {
        self.0.nodes.set_alarm(at);
    }

    /// Asks the kernel to forget about `wanted` nodes that it does not use, from where the last call ended (0: from the beginning); where
    /// to go on. They are forgotten a moment later. ENOSYS: the kernel cannot be asked. To be called by a thread that answers nothing.
    pub fn prune(&self, from: usize, wanted: usize) -> Result<usize> {
        let (nodes, next) = self.0.nodes.kernel_nodes(from, wanted);
        if let Some(kernel) = self.0.coherence.kernel() {
            kernel.notifier.prune(&nodes)?;
        }
        Ok(next)
    }

    /// Gives memory back that forgotten nodes have left in tables.
    pub fn trim(&self) {
        self.0.nodes.trim();
        self.0.layers.trim();
    }

    /// Nodes of a predecessor that the kernel does not hold, as far as can be told at this moment. None: it has not begun to ask.
    #[must_use]
    pub fn lost_forgets(&self) -> Option<LostForgets> {
        self.0.lost_forgets()
    }

    /// Forgets those that it still does not hold. To be called when no answer of the predecessor can be on its way any more. How many.
    pub fn forget_lost(&self, before: &LostForgets) -> usize {
        self.0.forget_lost(before)
    }
}

impl Core {
    /// Drops all nodes; for the end of a mount.
    pub(crate) fn forget_all(&self) {
        self.upper.forget_partials();
        self.nodes.clear();
    }

    /// The node that the kernel means.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        match self.nodes.get(id) {
            Err(_) if self.nodes.is_recovering() => self.recover(id),
            found => found,
        }
    }
}

/// The path of a node in the mount, for messages; the names of removed parents are left out.
pub(crate) fn path_of(node: &Node) -> String {
    let mut names: Vec<SharedName> = Vec::new();
    let place_of = |node: &Node| match &node.body {
        Body::Dir(dir) => dir.place.read().clone(),
        Body::File(file) => file.state.read().names.first().cloned(),
    };
    let mut place = place_of(node);
    while let Some(at) = place {
        names.push(at.name);
        place = place_of(&at.parent);
    }
    names.iter().rev().fold(String::new(), |path, name| path + "/" + &name.to_string_lossy())
}
